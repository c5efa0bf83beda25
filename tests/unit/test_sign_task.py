"""Covers the task of the sign demonstration: its prompts and splits, and a reward that is earned by the picture alone."""

import json
from pathlib import Path

import pytest
from PIL import Image

from demo import sign_reader, sign_task, sign_words
from demo.sign_painter import SignPainter, paint
from qwen_vl_grpo import config, tasks
from qwen_vl_grpo.errors import DataError, JudgeError
from qwen_vl_grpo.sections import DataSection, TaskSection


@pytest.fixture
def signs(tmp_path):
    """Makes the reward of the demonstration's own config, with a memory of judgements for each test."""
    keys = (f"output_dir={tmp_path}", f"judge.cache={tmp_path / 'judgements.sqlite'}")

    def made(*changes):
        run = config.load("configs/demo/sign.yaml", [*keys, *changes])
        ((function, _weight),) = tasks.rewards(tasks.build(run.task), run)
        return function

    return made


@pytest.fixture
def reward(signs):
    return signs()


def rewarded(reward, completions, rows):
    """Score completions the way the trainer does."""
    columns = {"original_prompt": [row["question"] for row in rows], "rubric": [row["answer"] for row in rows]}
    return reward(completions=[[{"role": "assistant", "content": text}] for text in completions], **columns)


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


def test_the_reward_is_what_is_read_and_copying_the_prompt_earns_nothing(reward):
    rows = sign_words.splits()["test"][::6]
    assert rewarded(reward, [row["answer"] for row in rows], rows) == [1.0] * len(rows)
    assert rewarded(reward, [row["question"] for row in rows], rows) == [0.0] * len(rows)


def test_the_parts_of_the_reward_are_those_of_the_config(reward):
    assert reward.identities == (SignPainter().identity, sign_reader.SignReader().identity)
    row = {"question": "the opposite of open", "answer": "closed"}
    assert rewarded(reward, ["closed"], [row]) == [1.0]
    assert Path(reward._config.judge.cache).is_file()


def test_a_completion_without_words_earns_nothing(reward):
    row = {"question": "the opposite of open", "answer": "closed"}
    assert rewarded(reward, [" \n", "\x00", "open"], [row] * 3) == [0.0, 0.0, 0.0]


def test_a_sign_that_cannot_be_read_has_no_score(signs, reward, monkeypatch):
    before, sign = sign_reader.SignReader.read, paint("closed")
    assert isinstance(sign, Image.Image)
    broken = sign.tobytes()

    def out_of_memory(reader, image):
        if image.tobytes() == broken:
            raise RuntimeError("out of memory")
        return before(reader, image)

    monkeypatch.setattr(sign_reader.SignReader, "read", out_of_memory)
    row = {"id": "x", "question": "x", "answer": "closed"}
    with pytest.raises(JudgeError, match="out of memory"):
        rewarded(reward, ["closed"], [row])
    with pytest.raises(JudgeError, match="could not be judged"):
        sign_task.judge("closed", sign_task.read_row(row, DataSection(), ""))
    assert rewarded(signs("judge.most_failures=0.5"), ["closed", "open", ""], [row] * 3) == [None, 0.0, 0.0]


def test_the_config_names_a_task_whose_examples_are_told_apart():
    task = tasks.build(TaskSection(name="demo/sign_task.py:build"))
    sample = task.read_row(sign_words.splits()["train"][0], DataSection(), task.system_prompt)
    assert task.examples is not None and not sample.images
    right, wrong = task.examples(sample)
    assert task.judge(right, sample).correct
    assert [task.judge(text, sample).correct for text in wrong] == [False] * 3
    with pytest.raises(DataError, match="no question or no answer"):
        task.read_row({"id": "x"}, DataSection(), "")
