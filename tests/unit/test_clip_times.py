"""Covers how long clip_times is needed: while requirements/ asks for a vLLM that leaves the times of clips out."""

import re
from pathlib import Path

from packaging.version import Version

from qwen_vl_grpo import clip_times

REQUIREMENTS = Path(__file__).parents[2] / "requirements"


def test_the_times_of_clips_are_told_for_vllm_while_an_older_one_is_asked_for():
    asked = re.findall(r"^vllm==([\d.]+)", "\n".join(path.read_text() for path in REQUIREMENTS.iterdir()), re.MULTILINE)
    assert min(map(Version, asked)) < Version(clip_times.MENDED), "remove clip_times.py: every vLLM asked for tells them by itself"
