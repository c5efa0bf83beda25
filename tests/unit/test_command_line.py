"""Covers what a person sees when a command is refused: one line on stderr, exit code 1, and the traceback on request."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


def grpo(*arguments, folder=PROJECT):
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-m", "qwen_vl_grpo", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


def test_the_documented_run_on_a_cpu_says_in_one_line_what_is_missing():
    done = grpo("train")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: run v1-baseline: use_vllm needs an NVIDIA or AMD GPU and this machine has none")
    assert done.stderr.count("\n") == 1


def test_debug_shows_the_traceback_of_the_same_error():
    done = grpo("train", "--debug")
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert "HardwareError: run v1-baseline: use_vllm needs" in done.stderr


def test_every_refusing_command_takes_debug():
    done = grpo("runs", "show", "nothing", "--debug")
    assert "RegistryError: run_id nothing: no such run" in done.stderr


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("base",), "grpo evaluate base: is what a run beside it began from; write `grpo evaluate RUN_ID --against base`"),
        (("all",), "run_id: 'all' is the word for every run, so no run has it as its id; give another"),
        (("nobody",), "run_id nobody: no such run"),
        (("some/model", "--config", "configs/qwen_grpo.yaml", "--against", "nobody"), "run_id nobody: no such run"),
        (("some/model",), "some/model: is a model and no run, so --config has to say what it is asked"),
    ],
    ids=" ".join,
)
def test_who_cannot_be_evaluated_is_refused_at_once(asked, said):
    done = grpo("evaluate", *asked)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr


def test_an_error_of_several_lines_is_shown_as_one(tmp_path):
    (tmp_path / "mine.py").write_text("raise ImportError('first line\\nsecond line')", encoding="utf-8")
    done = grpo("train", "--set", f"task.name={tmp_path / 'mine.py'}:build")
    assert done.returncode == 1
    assert "first line second line" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_error_in_an_own_task_function_is_named(tmp_path):
    (tmp_path / "mine.py").write_text("def build():\n    return 1 / 0\n", encoding="utf-8")
    done = grpo("train", "--set", f"task.name={tmp_path / 'mine.py'}:build")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "ZeroDivisionError" in done.stderr


def test_a_dry_run_prints_the_resolved_config_and_its_arithmetic():
    import yaml

    done = grpo("train", "--dry_run", "--set", "lora.r=32")
    assert done.returncode == 0
    assert yaml.safe_load(done.stdout)["lora"]["r"] == 32
    assert "# 8 completions a device x 2 accumulation x 1 device(s) = 16 completions a step = 2 prompts x 8" in done.stdout


def test_a_resolved_config_is_a_config_with_the_same_digest(tmp_path):
    first = grpo("train", "--dry_run", "--set", "seed=5").stdout
    (tmp_path / "resolved.yaml").write_text(first, encoding="utf-8")
    assert grpo("train", "--config", str(tmp_path / "resolved.yaml"), "--dry_run").stdout == first


def test_the_version_is_that_of_the_package():
    import tomllib

    declared = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert grpo("--version").stdout.strip() == declared
