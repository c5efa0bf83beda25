"""Covers wrong inputs of the demonstration: one line and exit code 1, as everywhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["demo", "--set", "lerning_rate=1"], "did you mean 'learning_rate'?"),
        (["demo.control", "--seed", "7"], "run_id digits-demo-s7: no such run"),
        (["demo.summary"], "run_id digits-demo: no such run"),
        (["demo.sign_page"], "run_id sign-demo: no such run"),
        (["demo.motion_page"], "run_id video-demo: no such run"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_wrong_input_is_said_in_one_line(command, said, tmp_path):
    environment = os.environ | {"GRPO_HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1
