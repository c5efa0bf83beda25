"""Covers preparing: MathVista by its real schema, several processes, the cache and what makes it stale, and rows that are left out."""

import json
import os
import signal

import datasets
import pytest
from PIL import Image

from qwen_vl_grpo import dataset, policy, processes, sources, tasks
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.sections import DataSection

TEXT, TEXTS = datasets.Value("string"), datasets.List(datasets.Value("string"))
MATHVISTA = datasets.Features(
    {
        "pid": TEXT, "question": TEXT, "image": TEXT, "decoded_image": datasets.Image(), "choices": TEXTS, "unit": TEXT,
        "precision": datasets.Value("float64"), "answer": TEXT, "question_type": TEXT, "answer_type": TEXT,
        "metadata": {
            "category": TEXT, "context": TEXT, "grade": TEXT, "img_height": datasets.Value("int64"), "img_width": datasets.Value("int64"),
            "language": TEXT, "skills": TEXTS, "source": TEXT, "split": TEXT, "task": TEXT,
        },
        "query": TEXT,
    }
)  # fmt: skip
"""Columns of AI4Math/MathVista (dataset card, revision d32e834)."""


def mathvista_rows():
    common = {"unit": None, "metadata": dict.fromkeys(MATHVISTA["metadata"]) | {"img_width": 1514, "skills": ["arithmetic"]}}
    red, blue = Image.new("RGB", (300, 200), "red"), Image.new("RGBA", (100, 100), "blue")
    return [
        common | {
            "pid": "1", "question": "How far?", "image": "images/1.jpg", "decoded_image": red, "choices": None, "precision": 1.0,
            "answer": "1.2", "question_type": "free_form", "answer_type": "float", "query": "Hint: one decimal place.\nQuestion: How far?",
        },
        common | {
            "pid": "2", "question": "Which?", "image": "images/2.jpg", "decoded_image": blue, "choices": ["9 cm", "3 cm"],
            "precision": None,
            "answer": "9 cm", "question_type": "multi_choice", "answer_type": "text",
            "query": "Question: Which?\nChoices:\n(A) 9 cm\n(B) 3 cm",
        },
    ]  # fmt: skip


@pytest.fixture
def mathvista(tmp_path):
    """A folder as the data set's repository lies on the Hub."""
    (tmp_path / "mathvista/data").mkdir(parents=True)
    rows = datasets.Dataset.from_list(mathvista_rows(), features=MATHVISTA)
    rows.to_parquet(tmp_path / "mathvista/data/testmini-00000-of-00001-725687bf7a18d64b.parquet")
    return tmp_path / "mathvista"


@pytest.fixture
def folder(tmp_path):
    for name, colour in (("red", "red"), ("blue", "blue")):
        Image.new("RGB", (56, 84), colour).save(tmp_path / f"{name}.png")
    return tmp_path


@pytest.fixture
def prepare(checkpoint, config_of, folder):
    """Prepare a part with the tiny Qwen2.5-VL and return its rows and report."""

    def run(name=None, split="train", answers=(), **changes):
        if answers:
            rows = [{"image": "red.png", "question": "Which colour?", "answer": answer} for answer in answers]
            (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        config = config_of(**{"model_name": checkpoint("qwen2_5_vl"), "max_completion_length": 16} | changes)
        return dataset.prepare(config, tasks.build(config.task), policy.load_processor(config), str(name or folder), split)

    return run


def test_mathvista_is_read_by_its_real_schema_from_its_own_files(prepare, mathvista):
    rows, report = prepare(mathvista, "testmini")
    assert (rows["id"], rows["answer"], report.faults) == (["1", "2"], ["1.2", "9 cm"], [])
    assert [prompt[1]["content"] for prompt in rows["prompt"]] == [row["query"] for row in mathvista_rows()]
    assert (rows["precision"], rows["choices"]) == ([1.0, None], [[], ["9 cm", "3 cm"]])
    assert rows[0]["metadata"]["skills"] == ["arithmetic"]
    assert [image.mode for row in rows for image in row["images"]] == ["RGB", "RGB"]


def test_the_library_that_loads_from_the_hub_gives_the_same_rows(mathvista):
    data = DataSection()
    hub, local = sources._from_hub(str(mathvista), "testmini", data), sources.find(str(mathvista), "testmini", data)
    assert hub.rows() == local.rows()
    assert len(sources._from_hub(str(mathvista), "testmini", DataSection(limit=1)).rows()) == 1


def test_what_the_hub_does_not_have_is_refused(mathvista):
    with pytest.raises(DataError, match="cannot be loaded from the Hub"):
        sources.find("AI4Math/MathVista", "testmini", DataSection())


def test_a_second_time_the_rows_come_from_the_cache_and_are_the_same(prepare):
    first, said = prepare(answers=["a", "b"])
    again, said_again = prepare()
    assert (said.cached, said_again.cached) == (False, True)
    assert first.column_names == again.column_names
    assert first.remove_columns("images").to_list() == again.remove_columns("images").to_list()
    assert [image.tobytes() for row in first for image in row["images"]] == [image.tobytes() for row in again for image in row["images"]]


def repainted(folder):
    Image.new("RGB", (56, 84), "green").save(folder / "red.png")


def reworded(folder):
    path = folder / "train.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("Which colour?", "What colour?"), encoding="utf-8")


STALE = {
    "a picture": (repainted, {}),
    "a row": (reworded, {}),
    "the pixel limits": (None, {"data": {"max_pixels": 20000}}),
    "the number of rows": (None, {"data": {"limit": 1}}),
    "the system prompt": (None, {"task": {"system_prompt": "Look."}}),
    "the context": (None, {"vllm_max_model_length": 3000}),
    "the room for a completion": (None, {"max_completion_length": 17}),
    "the model's patches and tokens": (None, {"model_name": "qwen3_vl"}),
}


@pytest.mark.parametrize("what", STALE)
def test_another_content_is_prepared_again(prepare, folder, checkpoint, what):
    edit, changes = STALE[what]
    prepare(answers=["a", "b"])
    if edit:
        edit(folder)
    if "model_name" in changes:
        changes = {"model_name": checkpoint(changes["model_name"])}
    assert not prepare(**changes)[1].cached


def test_what_changes_no_row_does_not_prepare_again(prepare):
    prepare(answers=["a", "b"])
    for changes in ({"data": {"workers": 2}}, {"data": {"unusable": "drop", "overlong": "drop"}}, {"seed": 3}, {"run_id": "other"}):
        assert prepare(**changes)[1].cached


@pytest.mark.parametrize("name", ["rows.arrow", "pictures.arrow", "about.json"])
@pytest.mark.parametrize("harm", ["cut", "flip", "remove"])
def test_a_broken_cache_is_made_again(prepare, name, harm):
    rows, report = prepare(answers=["a", "b"])
    before = rows.remove_columns("images").to_list()
    path = report.folder / name
    content = path.read_bytes()
    middle = len(content) // 2
    path.unlink()
    if harm != "remove":
        path.write_bytes(content[:middle] if harm == "cut" else content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :])
    again, report = prepare()
    assert not report.cached
    assert again.remove_columns("images").to_list() == before
    assert prepare()[1].cached
    assert [entry.name for entry in report.folder.parent.iterdir()] == [report.folder.name]


def test_several_processes_make_the_same_rows_in_the_same_order(prepare, own_home):
    answers = [str(number) for number in range(30)]
    one, report = prepare(answers=answers, data={"workers": 1})
    first = (report.folder / "rows.arrow").read_bytes(), (report.folder / "pictures.arrow").read_bytes()
    (report.folder / "about.json").unlink()
    two, again = prepare(data={"workers": 2})
    assert not again.cached
    assert one["answer"] == two["answer"] == answers
    assert ((report.folder / "rows.arrow").read_bytes(), (report.folder / "pictures.arrow").read_bytes()) == first


def test_the_work_is_done_in_other_processes():
    made = list(processes.each(lambda number: (number, os.getpid()), 20, workers=2))
    assert [number for number, _ in made] == list(range(20))
    assert os.getpid() not in {process for _, process in made}


def test_a_process_that_is_killed_is_said_so():
    with pytest.raises(DataError, match=r"was killed.*data\.workers"):
        list(processes.each(lambda number: os.kill(os.getpid(), signal.SIGKILL), 4, workers=2))


def test_an_error_of_the_work_itself_keeps_its_kind():
    with pytest.raises(ZeroDivisionError):
        list(processes.each(lambda number: 1 // number, 4, workers=2))


def test_rows_are_dropped_by_reason_and_the_report_says_which(prepare, folder):
    lines = [{"question": "Which?", "answer": "a"}, {"question": "Which?", "answer": ""}, {"question": "why " * 5000, "answer": "b"}]
    (folder / "train.jsonl").write_text("".join(json.dumps({"image": "red.png"} | line) + "\n" for line in lines), encoding="utf-8")
    rows, report = prepare()
    assert (len(rows), [fault[:2] for fault in report.faults]) == (1, [(1, "unusable"), (2, "too long for the context")])
    assert "1 rows kept, 1 too long for the context (row 2: prompt and completion need" in str(report)
    assert "1 unusable (row 1: column 'answer' holds ''" in str(report)


def test_a_refusal_says_how_many_more_there_are(checkpoint, config_of, folder):
    (folder / "train.jsonl").write_text('{"image": "red.png", "question": "Which?", "answer": ""}\n' * 3, encoding="utf-8")
    config = config_of(model_name=checkpoint("qwen2_5_vl"))
    with pytest.raises(DataError, match=r"row 0: column 'answer' holds ''.* \(2 more rows are at fault; `grpo validate` lists them\)"):
        dataset.load(config, tasks.build(config.task), policy.load_processor(config), str(folder), "train")


def test_samples_read_their_pictures_when_they_are_looked_at(prepare):
    rows, _ = prepare(answers=["a", "b"])
    sample = dataset.to_samples(rows)[1]
    assert (sample.answer, len(sample.images), sample.images[0].size) == ("b", 1, (56, 84))
    assert sample.images[0] is not sample.images[0]
    assert next(iter(sample.images)).tobytes() == rows[1]["images"][0].tobytes()
