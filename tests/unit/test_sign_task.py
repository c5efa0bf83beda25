"""Covers the task of the sign demonstration: its prompts and splits, and a reward that is earned by the picture alone."""

import json

import pytest

from demo import sign_reader, sign_task, sign_words
from qwen_vl_grpo import tasks
from qwen_vl_grpo.errors import DataError, JudgeError
from qwen_vl_grpo.sections import DataSection, TaskSection


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    """A memory of judgements for each test."""
    monkeypatch.setattr(sign_task, "MEMORY", tmp_path / "judgements.sqlite")
    sign_task.signs.cache_clear()
    yield
    sign_task.signs.cache_clear()


def test_no_held_out_prompt_is_trained_on_and_none_says_its_own_answer():
    rows = sign_words.splits()
    prompts = [row["question"] for part in rows.values() for row in part]
    assert len(set(prompts)) == len(prompts)
    assert not [row for part in rows.values() for row in part if row["answer"] in row["question"].split()]
    assert {row["answer"] for row in rows["test"]} <= {row["answer"] for row in rows["train"]}
    assert len(rows["test"]) == len(list(sign_words.facts()))


def test_the_warm_up_imitates_what_is_wrong_as_often_as_it_says(tmp_path):
    sign_words.write(tmp_path, seed=1)
    rows = [json.loads(line) for line in (tmp_path / "warmup.jsonl").read_text(encoding="utf-8").splitlines()]
    right = sum(row["target"] == row["answer"] for row in rows) / len(rows)
    copied = sum(row["target"] in row["asked_with"].split() for row in rows) / len(rows)
    assert right == pytest.approx(sign_words.RIGHT, abs=0.04) and copied == pytest.approx(sign_words.COPIED, abs=0.04)
    assert not {row["question"] for row in rows} & {row["question"] for row in sign_words.splits()["test"]}


def test_the_reward_is_what_is_read_and_copying_the_prompt_earns_nothing():
    rows = sign_words.splits()["test"][::6]
    answers = [row["answer"] for row in rows]
    assert sign_task.sign_reward(answers, answers) == [1.0] * len(rows)
    assert sign_task.sign_reward([row["question"] for row in rows], answers) == [0.0] * len(rows)


def test_a_completion_without_words_earns_nothing():
    assert sign_task.sign_reward([[{"content": " \n"}], [{"content": "\x00"}]], ["closed", "closed"]) == [0.0, 0.0]


def test_a_sign_that_cannot_be_read_has_no_score(monkeypatch):
    def out_of_memory(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(sign_task, "MOST_FAILURES", 1.0)
    monkeypatch.setattr(sign_reader.SignReader, "read", out_of_memory)
    assert sign_task.sign_reward(["closed", ""], ["closed", "closed"]) == [None, 0.0]
    sample = sign_task.read_row({"id": "x", "question": "x", "answer": "closed"}, DataSection(), "")
    with pytest.raises(JudgeError, match="could not be judged"):
        sign_task.judge("closed", sample)
    monkeypatch.setattr(sign_task, "MOST_FAILURES", 0.05)
    with pytest.raises(JudgeError, match="out of memory"):
        sign_task.sign_reward(["closed"], ["closed"])


def test_the_config_names_a_task_whose_examples_are_told_apart():
    task = tasks.build(TaskSection(name="demo/sign_task.py:build"))
    sample = task.read_row(sign_words.splits()["train"][0], DataSection(), task.system_prompt)
    assert task.examples is not None and not sample.images
    right, wrong = task.examples(sample)
    assert task.judge(right, sample).correct
    assert [task.judge(text, sample).correct for text in wrong] == [False] * 3
    with pytest.raises(DataError, match="no question or no answer"):
        task.read_row({"id": "x"}, DataSection(), "")
