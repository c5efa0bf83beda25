"""Covers the video demonstration as a command: a few steps on real clips, the controls without time, and its page."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("max_steps=2", "warmup.steps=2", "warmup.batch_size=4", "batch_size=16", "data.limit=12", "evaluation.samples=1")


@pytest.fixture
def demo(tmp_path):
    """A module of the demonstration in a folder of its own that shows it the checkout's files."""
    for name in ("configs", "demo", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs").mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "HF_", "GRPO_"))}
    environment = kept | {"GRPO_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{tmp_path / 'src'}:{tmp_path}"}

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)

    return run


def test_a_run_of_two_steps_is_scored_with_and_without_time_and_written_down(demo, tmp_path):
    done = demo("demo.motion", *(argument for setting in SMALL for argument in ("--set", setting)))
    assert done.returncode == 0, done.stderr
    card = json.loads((tmp_path / "outputs/demo/video-demo/run.json").read_text(encoding="utf-8"))
    assert (card["state"], card["metrics"]["after"]["greedy"]["rows"]) == ("finished", 12)
    ends = json.loads((tmp_path / "outputs/demo/video-s0.json").read_text(encoding="utf-8"))
    assert {name: scores["n"] for name, scores in ends["controls"].items()} == {
        "the clips as they are": 12, "one frame of each, repeated": 12, "their frames in a drawn order": 12, "white frames": 12,
        "played forwards alone": 6, "played backwards alone": 6,
    }  # fmt: skip
    assert ends["controls"]["the clips as they are"]["correct"] == card["metrics"]["after"]["greedy"]["correct"]
    assert "before and after GRPO" in " ".join(done.stdout.split())
    page = demo("demo.motion_page")
    assert page.returncode == 0, page.stderr
    assert (tmp_path / "docs/video_demo.md").read_text(encoding="utf-8").count("\n| ") == 9
