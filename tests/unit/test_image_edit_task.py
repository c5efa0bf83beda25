"""Covers tasks/image_edit.py: Complex-Edit by its real columns, complexities, pictures that stay on one side, and rows that are refused."""

import json
from collections import Counter

import datasets
import pytest
from PIL import Image

from demo import edit_rows
from qwen_vl_grpo import dataset, evaluation, policy, sources, splits, tasks, validation
from qwen_vl_grpo.errors import ConfigError, DataError
from qwen_vl_grpo.sections import DataSection, TaskSection
from qwen_vl_grpo.tasks import image_edit

TASK = {"name": "image_edit"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows of our own as the data set's repository keeps its own."""
    made = tmp_path_factory.mktemp("edits")
    edit_rows.write(made)
    return made


@pytest.fixture
def config(checkpoint, config_of, folder):
    def make(**changes):
        given = {"model_name": checkpoint("qwen2_5_vl"), "max_completion_length": 16, "task": TASK, "dataset_split": "test_real"}
        return config_of(**given | {"dataset_name": str(folder)} | changes)

    return make


@pytest.fixture
def own_rows(tmp_path):
    """Write rows of other columns beside a picture; returns the file."""
    Image.new("RGB", (56, 84), "red").save(tmp_path / "red.png")

    def write(*rows):
        (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(tmp_path / "train.jsonl")

    return write


def test_a_row_asks_one_question_for_each_complexity(prepare):
    rows, report = prepare(data={"complexity": [1, 8], "limit": 4})
    first, last = (edit_rows.rows("test_real")[0]["edit"]["compound"][place]["compound_instruction"] for place in (0, 7))
    assert report.faults == []
    assert rows["id"] == ["0-c1", "0-c8", "1-c1", "1-c8"]
    assert [prompt[1]["content"] for prompt in rows["prompt"]][:2] == [first, last] == rows["original_prompt"][:2]
    assert (rows["complexity"], rows["image_id"]) == ([1, 8, 1, 8], ["0", "0", "1", "1"])
    assert "edit" not in rows.column_names
    assert [image.size for image in rows[0]["images"]] == [(112, 112)]
    assert rows[0]["prompt"][0] == {"role": "system", "content": image_edit.SYSTEM_PROMPT}


def test_all_complexities_are_asked_where_none_is_named(prepare):
    rows, _ = prepare(dataset_split="test_syn")
    assert Counter(rows["complexity"]) == dict.fromkeys(range(1, 9), 12)


def test_one_complexity_may_stand_without_a_list(config):
    assert config(data={"complexity": 3}).data.complexity == (3,)


@pytest.mark.parametrize(("level", "nearest"), [(0, 1), (9, 8)])
def test_an_unknown_complexity_is_refused_with_the_nearest(config, level, nearest):
    with pytest.raises(ConfigError, match=f"there is no complexity {level}; the nearest is {nearest}"):
        config(data={"complexity": [2, level]})


def test_a_complexity_for_another_task_is_refused(config):
    with pytest.raises(ConfigError, match=r"data\.complexity: is read by task image_edit alone, and task\.name is visual_reasoning"):
        config(task={"name": "visual_reasoning"}, data={"complexity": 3})


def test_the_eight_rows_of_a_picture_stand_on_one_side(config):
    made = config(evaluation={"held_out": 0.25})
    parts = splits.load(made, tasks.build(made.task), policy.load_processor(made))
    train, held_out = (Counter(rows["image_id"]) for rows in (parts.train, parts.held_out))
    assert not train.keys() & held_out.keys()
    assert (len(train), len(held_out)) == (18, 6)
    assert set((train | held_out).values()) == {8}


def test_the_library_that_loads_from_the_hub_gives_the_same_questions(folder):
    data = DataSection(complexity=(2,))
    hub = image_edit.arrange(sources._from_hub(str(folder), "test_syn", data).rows(), data)
    assert hub == image_edit.arrange(sources.find(str(folder), "test_syn", data).rows(), data)


def broken(**changes):
    """A row of the real columns with another picture or other compounds."""
    row = edit_rows.rows("test_real")[0]
    return {
        "image": changes.get("image", row["image"]),
        "edit": row["edit"] | {key: value for key, value in changes.items() if key != "image"},
    }


EMPTY = [{"reasoning": "", "compound_instruction": " "}] * 8
BROKEN = {
    "no picture": ({"image": None}, 2, "holds no picture; give it one or remove the row"),
    "six instructions": ({"compound": EMPTY[:6]}, 2, "has no edit.compound[7].compound_instruction; leave complexity 8 out"),
    "an empty instruction": ({"compound": EMPTY}, 2, "holds ' '; an instruction (of complexity 8) is text"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_row_that_cannot_be_used_is_named_by_its_number_in_the_data(prepare, tmp_path, fault):
    changes, count, said = BROKEN[fault]
    rows = datasets.Dataset.from_list([*edit_rows.rows("test_syn")[:2], broken(**changes)], features=edit_rows.FEATURES)
    (tmp_path / "data").mkdir()
    rows.to_parquet(tmp_path / "data/test_real-00000-of-00001.parquet")
    kept, report = prepare(dataset_name=str(tmp_path), data={"complexity": [7, 8]})
    assert [number for number, _, _ in report.faults] == [2] * count
    assert said in report.faults[-1][2]
    assert kept["image_id"] == ["0", "0", "1", "1"]


def test_a_picture_and_an_instruction_are_enough(prepare, own_rows):
    file = own_rows({"id": "a", "before": "red.png", "ask": "Make it blue."})
    rows, report = prepare(dataset_name=file, dataset_split="train", data={"columns": {"image": "before", "question": "ask"}})
    assert (report.faults, rows["id"], rows["original_prompt"], rows["image_id"]) == ([], ["a"], ["Make it blue."], ["a"])
    assert rows[0]["images"][0].size == (56, 84)


def test_rows_that_name_their_complexity_are_chosen_by_it(prepare, own_rows):
    file = own_rows(*({"image": "red.png", "instruction": f"Do {level}.", "complexity": level} for level in (1, 5, 5)))
    rows, _ = prepare(dataset_name=file, dataset_split="train", data={"complexity": 5})
    assert (rows["id"], rows["complexity"]) == (["1", "2"], [5, 5])
    with pytest.raises(DataError, match="no row is what data: asks for"):
        prepare(dataset_name=file, dataset_split="train", data={"complexity": 8})


def test_data_without_an_instruction_is_told_which_columns_it_has(prepare, own_rows):
    _, report = prepare(dataset_name=own_rows({"image": "red.png", "answer": "red"}), dataset_split="train")
    assert "has no column 'instruction' or" in report.faults[0][2]
    assert "it has image, answer; map it with data.columns.question" in report.faults[0][2]


def test_validate_finds_no_fault_in_sound_rows(config):
    found = validation.validate(config(data={"complexity": 1}, evaluation={"held_out": 0.25}))
    assert found.faults == []
    assert "18 rows to train on, 6 held out" in "\n".join(found.said)


def test_a_completion_is_well_formed_or_not_and_never_right_by_its_words(prepare):
    task = tasks.build(TaskSection(**TASK))
    (sample,) = dataset.to_samples(prepare(data={"limit": 1})[0])
    scores = evaluation.score([sample], [["a blue door", " <|im_end|>"]], task, [])
    assert (scores["format"], scores["n"]) == (0.5, 2)
    assert not scores.keys() & {"correct", "interval"}
    assert evaluation.flat({"greedy": scores}) == {"eval_greedy/format": 0.5}


def test_published_rewards_are_another_tasks():
    with pytest.raises(ConfigError, match=r"task\.mode: documented is for visual_reasoning"):
        tasks.build(TaskSection(name="image_edit", mode="documented"))
