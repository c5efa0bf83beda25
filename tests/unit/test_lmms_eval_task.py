"""Covers the task file for lmms-eval without lmms-eval: it names functions that are there, and they ask and judge as the run does."""

import importlib.util
import re
from pathlib import Path

import pytest

from demo import digits
from qwen_vl_grpo.errors import RegistryError
from tests.made_runs import make_run

FOLDER = Path(__file__).parents[2] / "evaluation/lmms_eval"


@pytest.fixture
def task():
    spec = importlib.util.spec_from_file_location("grpo_run", FOLDER / "grpo_run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_function_of_the_file_is_there(task):
    named = re.findall(r"!function grpo_run\.(\w+)", (FOLDER / "grpo_run.yaml").read_text(encoding="utf-8"))
    assert len(named) == 5 and all(callable(getattr(task, name)) for name in named)


def test_rows_are_the_held_out_ones_asked_and_judged_as_by_the_run(task, checkpoint, tmp_path, monkeypatch):
    digits.write(tmp_path / "digits")
    make_run(
        tmp_path / "runs", "asked", checkpoint("qwen2_5_vl"), 1, dataset_name=str(tmp_path / "digits"), dataset_split="train",
        evaluation={"dataset_split": "test"}, data={"limit": 3},
    )  # fmt: skip
    with pytest.raises(RegistryError, match="GRPO_RUN_ID names the run"):
        task.rows(None)
    monkeypatch.setenv("GRPO_RUN_ID", "asked")
    first, *others = task.rows(None)
    assert len(others) == 2
    assert task.question(first) == "Which digit is this?"
    system, user = task.messages(first)
    assert system["role"] == "system" and "<reasoning>" in system["content"][0]["text"]
    assert [part["type"] for part in user["content"]] == ["image", "text"]
    assert user["content"][0]["url"] == task.pictures(first)[0]
    right = f"<reasoning>\nI see it.\n</reasoning>\n<answer>\n{first['answer']}\n</answer>\n"
    assert task.judged(first, [right]) == {"score": 1.0, "format": 1.0}
    assert task.judged(first, [first["answer"]]) == {"score": 0.0, "format": 0.0}
