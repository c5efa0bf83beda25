"""Covers the parts of a run: what is held out stays the same, and no picture stands on both sides."""

import json
import logging
from pathlib import Path

import datasets
import pytest
from PIL import Image

from qwen_vl_grpo import policy, splits, tasks
from qwen_vl_grpo.errors import ConfigError, DataError
from qwen_vl_grpo.sections import EvaluationSection

PROJECT = Path(__file__).resolve().parents[2]
PAIRS = [["a"], ["b"], ["a"], ["c"], ["c", "d"], ["d"], ["e"], []]
"""The pictures of eight rows: 0 and 2 share one, 3 to 5 are linked, the last is a question in text."""


def table(pictures=PAIRS):
    return datasets.Dataset.from_dict(
        {
            "id": [str(number) for number in range(len(pictures))],
            "prompt": [[{"role": "user", "content": "How many?"}]] * len(pictures),
            "picture_ids": pictures,
        }
    )


def shown(rows):
    return {picture for pictures in rows["picture_ids"] for picture in pictures}


def test_rows_are_linked_by_the_pictures_that_they_show():
    assert splits.by_picture(PAIRS, [f"text {number}" for number in range(8)]) == ["a", "b", "a", "c", "c", "c", "e", "text 7"]
    assert splits.by_picture([["b", "c"], ["a", "c"], ["a"]], [""] * 3) == ["a", "a", "a"]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_share_is_held_out_picture_by_picture(share):
    parts = splits.apart(table(), EvaluationSection(held_out=share))
    assert not shown(parts.train) & shown(parts.held_out)
    assert len(parts.train) + len(parts.held_out) == 8
    assert parts.shared == 0


def test_a_share_of_many_pictures_is_that_share():
    pictures = [[str(number)] for number in range(1000)]
    assert len(splits.apart(table(pictures), EvaluationSection(held_out=0.1)).held_out) == 100


def test_the_same_pictures_are_held_out_whatever_their_order():
    section = EvaluationSection(held_out=0.4)
    assert shown(splits.apart(table(), section).held_out) == shown(splits.apart(table(PAIRS[::-1]), section).held_out)


def test_ids_hold_out_their_rows_and_leave_out_those_that_show_their_pictures(tmp_path):
    (tmp_path / "ids.txt").write_text("# the ids\n0\n6\n", encoding="utf-8")
    parts = splits.apart(table(), EvaluationSection(ids_file=str(tmp_path / "ids.txt")))
    assert (parts.held_out["id"], parts.train["id"], parts.shared) == (["0", "6"], ["1", "3", "4", "5", "7"], 1)


def test_ids_that_are_not_in_the_data_are_counted(tmp_path, caplog):
    (tmp_path / "ids.txt").write_text("0\n99\n", encoding="utf-8")
    splits.apart(table(), EvaluationSection(ids_file=str(tmp_path / "ids.txt")))
    assert "1 of its 2 ids are in the data" in caplog.text


@pytest.mark.parametrize(
    ("text", "said"), [(None, "cannot be read"), ("# nothing\n", "holds no id"), ("99\n", "8 rows to train on and 0 held")]
)
def test_a_file_of_ids_that_holds_nothing_out_is_refused(tmp_path, text, said):
    if text is not None:
        (tmp_path / "ids.txt").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=said):
        splits.apart(table(), EvaluationSection(ids_file=str(tmp_path / "ids.txt")))


def test_the_published_ids_hold_out_a_tenth_of_testmini():
    pids = table([[str(number)] for number in range(1001)]).select(range(1, 1001))
    parts = splits.apart(pids, EvaluationSection(ids_file=str(PROJECT / "configs/mathvista_testmini_held_out.txt")))
    assert (len(parts.held_out), len(parts.train)) == (100, 900)


def test_a_file_of_ids_that_is_not_there_is_refused_before_any_row_is_read(config_of):
    config = config_of(dataset_name="nowhere/at-all", evaluation={"ids_file": "gone.txt"})
    with pytest.raises(DataError, match=r"ids_file gone\.txt: cannot be read"):
        splits.load(config, tasks.build(config.task), None)


def test_a_share_that_leaves_nothing_is_refused():
    with pytest.raises(DataError, match="leaves 0 rows to train on and 2 held out"):
        splits.apart(table([["a"], ["a"]]), EvaluationSection(held_out=0.5))


@pytest.mark.parametrize("two", [{"held_out": 0.1, "dataset_split": "test"}, {"held_out": 0.1, "ids_file": "ids.txt"}], ids=str)
def test_what_is_held_out_is_said_once(config_of, two):
    with pytest.raises(ConfigError, match="each name the held-out part; keep one"):
        config_of(evaluation=two)


def test_a_picture_that_two_splits_share_is_said(tmp_path, checkpoint, config_of, caplog):
    Image.new("RGB", (56, 84), "red").save(tmp_path / "red.png")
    Image.new("RGB", (56, 84), "red").save(tmp_path / "red.bmp")  # the same picture in another file
    for split, picture in (("train", "red.png"), ("test", "red.bmp")):
        row = {"image": picture, "question": "Which colour?", "answer": "red"}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    config = config_of(
        model_name=checkpoint("qwen2_5_vl"), dataset_name=str(tmp_path), dataset_split="train", evaluation={"dataset_split": "test"}
    )
    with caplog.at_level(logging.WARNING):
        parts = splits.load(config, tasks.build(config.task), policy.load_processor(config))
    assert (len(parts.train), len(parts.held_out)) == (1, 1)
    assert "1 training rows show a picture of split test" in caplog.text
