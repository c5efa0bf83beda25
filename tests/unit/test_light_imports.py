"""Covers that the command line and every cheap refusal import no heavy library: a typo costs a blink, not a minute."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "transformers", "trl", "peft", "accelerate", "vllm", "diffusers", "datasets", "wandb", "pandas", "numpy"}
REPORT = "\nimport sys\nprint('LOADED', *sorted(sys.modules))"


def modules_after(code: str, home: Path, said: str = "") -> set[str]:
    """Run code in a new interpreter, see that it said something, and return the names of the modules that it loaded."""
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "src"), "GRPO_HOME": str(home), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code + REPORT], cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and said in done.stdout, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


def command(*arguments: str) -> str:
    """Code that runs the command line, and fails unless that ends with an exit code."""
    return (
        "from qwen_vl_grpo.cli import main\n"
        f"try:\n    main({list(arguments)!r})\n    raise AssertionError('the command did not exit')\n"
        "except SystemExit as end:\n    print('EXIT', end.code)\n"
    )


@pytest.mark.parametrize(
    "name",
    [
        "cli",
        "config",
        "index",
        "registry",
        "pruning",
        "exporting",
        "hardware",
        "knowledge",
        "planning",
        "report",
        "interfaces",
        "rewards",
        "solve_rates",
        "tasks",
        "answers",
        "images.width",
        "tracking",
        "trackers",
    ],
)
def test_importing_a_light_module_loads_no_heavy_library(name, tmp_path):
    loaded = modules_after(f"import qwen_vl_grpo.{name}", tmp_path)
    assert f"qwen_vl_grpo.{name}" in loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("train", "--help"),
        ("infer", "--help"),
        ("runs", "--help"),
        ("prepare", "--help"),
        ("validate", "--help"),
        ("validate", "--set", "num_generations=7"),
        ("prepare", "--set", "task.name=visual"),
        ("train", "--dry_run"),
        ("train", "--dry_run", "--config", "configs/prompt_enhancement.yaml"),
        ("train", "--dry_run", "--set", "judge.name=nobody"),
        ("plan",),
        ("plan", "--json", "--card", "24GB"),
        ("doctor", "--line"),
        ("doctor", "--quick", "--json"),
        ("runs",),
        ("runs", "--json"),
        ("runs", "show", "nothing"),
        ("audit", "--help"),
        ("audit", "nothing"),
        ("evaluate", "base"),
        ("evaluate", "nothing"),
        ("evaluate", "some/model"),
        ("compare", "--help"),
        ("compare", "nothing", "nobody"),
        ("compare", "all"),
        ("runs", "--sort", "right", "--state", "failed"),
        ("runs", "verify", "nothing"),
        ("runs", "prune", "--dry_run"),
        ("export", "nothing", "--merged", "full"),
        ("infer", "--run_id", "nothing", "--prompt", "Why?"),
        ("train", "--set", "learning_rat=1"),
        ("train", "--set", "run_id=../x"),
        ("train", "--set", "num_generations=7"),
        ("train", "--set", "task.name=visual"),
        ("train",),
    ],
    ids=" ".join,
)
def test_a_cheap_command_or_refusal_loads_no_heavy_library(arguments, tmp_path):
    loaded = modules_after(command(*arguments), tmp_path)
    assert "qwen_vl_grpo.cli" in loaded
    assert not loaded & HEAVY


def test_a_policy_that_the_renderer_cannot_read_is_refused_as_fast(tmp_path):
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer/config.json").write_text('{"joint_attention_dim": 3584}')
    changes = ("model_name=Qwen/Qwen2.5-VL-3B-Instruct", f"renderer.model={tmp_path}", "gradient_accumulation_steps=16")
    refused = command("train", "--config", "configs/text_to_image.yaml", *(part for change in changes for part in ("--set", change)))
    assert not modules_after(refused, tmp_path, "take Qwen/Qwen2.5-VL-7B-Instruct") & HEAVY


def test_help_reads_no_run(tmp_path):
    assert not modules_after(command("--help"), tmp_path) & {"qwen_vl_grpo.attempts", "qwen_vl_grpo.registry", "pydantic"}


def test_the_check_itself_notices_a_heavy_library(tmp_path):
    assert "numpy" in modules_after("import numpy", tmp_path) & HEAVY
