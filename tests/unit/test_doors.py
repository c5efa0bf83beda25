"""Covers the documented scripts and files: they are where the documentation puts them, and lead into the package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SCRIPTS = {
    "src/data_prep/data.py": "--set",
    "src/fine_tuning/train.py": "--config",
    "src/inference/inference.py": "--run_id",
}


def run(arguments, folder):
    """Run python in another folder, with no path set that could help it find the package."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_documented_script_shows_its_help_from_any_folder(script, tmp_path):
    done = run([str(PROJECT / script), "--help"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert SCRIPTS[script] in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_documented_script_is_a_door_of_at_most_fifteen_lines(script):
    assert len((PROJECT / script).read_text().splitlines()) <= 15


def handed_on(file, module, names):
    """Code that loads a documented file as a user would, and checks that its names are the package's own."""
    return (
        f"import sys; sys.path.insert(0, {str(PROJECT / 'src/fine_tuning')!r})\n"
        f"import {file}, {module}\n"
        f"assert {file}.__file__ == {str(PROJECT / 'src/fine_tuning' / (file + '.py'))!r}\n"
        f"for name in {names!r}: assert getattr({file}, name) is getattr(sys.modules[{module!r}], name), name\n"
    )


def test_the_rewards_stand_where_the_documentation_puts_them(tmp_path):
    names = ["xmlcount_reward_func", "soft_format_reward_func", "strict_format_reward_func", "correctness_reward_func"]
    done = run(["-c", handed_on("rewards", "qwen_vl_grpo.rewards", names)], tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_loading_of_models_stands_where_the_documentation_puts_it(tmp_path):
    names = ["load_model", "load_processor", "adapter", "trainable_parts"]
    done = run(["-c", handed_on("model", "qwen_vl_grpo.policy", names)], tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_documented_classes_of_prompt_enhancement_stand_there_too(tmp_path):
    for file, module, names in (
        ("model", "qwen_vl_grpo.enhancing", ["QwenWrapper"]),
        ("rewards", "qwen_vl_grpo.judges.clip", ["CLIPRewardCalculator"]),
    ):
        done = run(["-c", handed_on(file, module, names)], tmp_path)
        assert done.returncode == 0, done.stderr
