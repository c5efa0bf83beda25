"""Covers reading rows: files and folders, which columns reach the rewards, and each fault named with its row."""

import io
import json
import shutil

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from qwen_vl_grpo import dataset, policy, tasks
from qwen_vl_grpo.errors import ConfigError, DataError

GOOD = {"id": "7", "image": "red.png", "question": "Which colour is this?", "answer": "red"}


@pytest.fixture
def folder(tmp_path):
    """A folder with one picture, ready for rows."""
    Image.new("RGB", (56, 84), "red").save(tmp_path / "red.png")
    return tmp_path


@pytest.fixture
def load(folder, checkpoint, config_of):
    """Write rows as JSON Lines (unless told otherwise) and load them for Qwen2.5-VL."""

    def read(*rows, name=None, split="train", model=None, **changes):
        if rows:
            (folder / "train.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        config = config_of(model_name=model or checkpoint("qwen2_5_vl"), max_completion_length=16, **changes)
        task = tasks.build(config.task)
        return dataset.load(config, task, policy.load_processor(config), str(name or folder), split)

    return read


def png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def test_a_row_becomes_a_chat_with_its_picture_and_answer(load):
    row = load(GOOD)[0]
    assert (row["id"], row["answer"], [image.size for image in row["images"]]) == ("7", "red", [(56, 84)])
    assert [turn["role"] for turn in row["prompt"]] == ["system", "user"]
    assert row["prompt"][1]["content"] == "Which colour is this?"


def test_a_file_is_read_by_its_path(load, folder):
    load(GOOD)
    assert load(name=folder / "train.jsonl")[0]["answer"] == "red"


def test_parquet_with_pictures_in_it_is_read(load, folder):
    picture = {"bytes": png(Image.new("RGB", (56, 56), "blue")), "path": None}
    table = pyarrow.Table.from_pylist([{"image": picture, "question": "Which?", "answer": "blue", "level": 3}])
    pyarrow.parquet.write_table(table, folder / "train.parquet")
    row = load()[0]
    assert (row["answer"], row["level"], row["images"][0].getpixel((0, 0))) == ("blue", 3, (0, 0, 255))


def test_a_picture_is_found_beside_its_file_from_any_folder(load, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert len(load(GOOD)[0]["images"]) == 1


def test_a_picture_in_a_renamed_column_is_found_beside_its_file_too(load):
    row = {"photo": "red.png", "question": "Which?", "answer": "red"}
    assert len(load(row, data={"columns": {"image": "photo"}})[0]["images"]) == 1


def test_a_separator_that_json_allows_inside_a_text_does_not_end_the_row(load):
    question = "first\u2028second\x85third"
    assert load(GOOD | {"question": question})[0]["prompt"][1]["content"] == question


def test_further_columns_are_kept_for_the_rewards(load):
    rows = load(GOOD | {"unit": "cm", "level": 3}, GOOD | {"unit": None, "level": 4})
    assert (rows["unit"], rows["level"]) == (["cm", None], [3, 4])


def test_a_column_that_mixes_types_is_kept_as_text(load):
    assert load(GOOD | {"level": 3}, GOOD | {"level": "four"})["level"] == ["3", "four"]


def test_a_list_that_mixes_types_is_kept_too(load):
    assert len(load(GOOD | {"choices": [1, "two"]}, GOOD | {"choices": None})) == 2


def test_a_number_is_an_answer(load):
    assert load(GOOD | {"answer": 3.5})[0]["answer"] == "3.5"


def test_rows_with_and_without_pictures_stand_side_by_side(load):
    rows = load(
        GOOD, {"images": [], "question": "6 times 7?", "answer": "42"}, {"images": ["red.png"] * 2, "question": "Same?", "answer": "yes"}
    )
    assert [len(row["images"]) for row in rows] == [1, 0, 2]


def test_a_limit_takes_the_first_rows(load):
    assert load(*(GOOD | {"answer": str(i)} for i in range(5)), data={"limit": 2})["answer"] == ["0", "1"]


def test_a_system_prompt_of_the_config_replaces_that_of_the_task(load):
    assert load(GOOD, task={"system_prompt": "Be brief."})[0]["prompt"][0]["content"] == "Be brief."


def broken(folder):
    (folder / "broken.png").write_bytes(png(Image.new("RGB", (64, 64)))[:60])
    return GOOD | {"image": "broken.png"}


def no_picture(folder):
    (folder / "notes.png").write_text("no picture")
    return GOOD | {"image": "notes.png"}


def sliver(folder):
    Image.new("RGB", (2, 1000)).save(folder / "sliver.png")
    return GOOD | {"image": "sliver.png"}


FAULTS = {
    "broken picture": (broken, r"picture .*broken\.png", "replace|remove|repair"),
    "file that is no picture": (no_picture, r"picture .*notes\.png", "replace|remove|repair"),
    "picture that is not there": (lambda _: GOOD | {"image": "gone.png"}, r"picture .*gone\.png", "replace|remove|repair"),
    "picture that is far too long": (sliver, "picture of 2x1000", "crop it"),
    "missing column": (lambda _: {"image": "red.png", "answer": "red"}, "no column .* for the question", r"data\.columns\.question"),
    "answer of the wrong type": (
        lambda _: GOOD | {"answer": ["red"]},
        r"column 'answer' holds \['red'\] \(list\)",
        r"data\.columns\.answer",
    ),
    "prompt longer than the context": (lambda _: GOOD | {"question": "why " * 5000}, "need .* tokens", r"data\.overlong: drop"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_row_and_what_to_do(load, folder, fault):
    make, said, advice = FAULTS[fault]
    with pytest.raises(DataError) as error:
        load(GOOD, make(folder))
    assert error.match(rf"^{folder}, split train, row 1: ")
    assert error.match(said)
    assert error.match(advice)
    assert "\n" not in str(error.value)


def test_a_prompt_that_is_too_long_can_be_dropped_instead(load):
    rows = load(GOOD, GOOD | {"question": "why " * 5000}, data={"overlong": "drop"})
    assert len(rows) == 1


def test_a_data_set_of_which_nothing_is_left_is_refused(load):
    with pytest.raises(DataError, match=r"no row is left to use; check data\.overlong"):
        load(GOOD | {"question": "why " * 5000}, data={"overlong": "drop"})


def test_a_context_that_the_model_does_not_have_is_refused(load):
    with pytest.raises(ConfigError, match=r"vllm_max_model_length 4097: .* holds 4096 tokens; set it to 4096 or less"):
        load(GOOD, use_vllm=True, vllm_max_model_length=4097)
    assert len(load(GOOD, use_vllm=True, vllm_max_model_length=4096)) == 1
    assert len(load(GOOD, use_vllm=True, vllm_max_model_length=4097, engine={"hf_overrides": {}})) == 1


def test_a_prompt_has_no_more_room_than_the_model_itself_whatever_its_tokenizer_says(load, tmp_path, checkpoint):
    short = tmp_path / "short"
    shutil.copytree(checkpoint("qwen2_5_vl"), short)
    described = json.loads((short / "config.json").read_text())
    described["text_config"]["max_position_embeddings"] = 40
    (short / "config.json").write_text(json.dumps(described))
    with pytest.raises(DataError, match="the context holds 40;"):
        load(GOOD, model=str(short))


def test_room_for_the_completion_counts_as_part_of_the_prompt(load):
    with pytest.raises(DataError, match="the context holds 40;"):
        load(GOOD, vllm_max_model_length=40)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_data_set_is_refused(load, folder, text):
    (folder / "train.jsonl").write_text(text)
    with pytest.raises(DataError, match=r"split train: the data set is empty"):
        load()


def test_a_split_that_is_not_there_is_refused_with_those_that_are(load):
    load(GOOD)
    with pytest.raises(DataError, match=r"no split 'test' .*; splits there: train"):
        load(split="test")


def test_a_path_that_is_not_there_is_not_looked_for_on_the_hub(load, folder):
    with pytest.raises(DataError, match=r"there is no file or folder .*nowhere here"):
        load(name=folder / "nowhere")


@pytest.mark.parametrize(("line", "said"), [("{", "is not JSON"), ("[1]", "holds list; each line is one row")])
def test_a_line_that_is_no_row_is_named(load, folder, line, said):
    (folder / "train.jsonl").write_text(json.dumps(GOOD) + "\n" + line + "\n")
    with pytest.raises(DataError, match=rf"line 2 {said}"):
        load()


@pytest.mark.parametrize("name", ["train.parquet", "train.jsonl"])
def test_a_file_of_the_wrong_kind_is_named(load, folder, name):
    (folder / name).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        load()


def test_a_fingerprint_changes_with_prompt_answer_and_picture_and_with_nothing_else(load, folder):
    Image.new("RGB", (56, 84), "blue").save(folder / "blue.png")
    first = dataset.fingerprint(load(GOOD))
    assert dataset.fingerprint(load(GOOD)) == first
    for change in ({"question": "Why?"}, {"answer": "blue"}, {"image": "blue.png"}):
        assert dataset.fingerprint(load(GOOD | change)) != first
