"""Covers `grpo infer --draw` as a command: the picture of one answer, pictures of a file of questions, and what is refused."""

import json

import pytest
from PIL import Image

from demo import tiny_pictures, tiny_qwen_image
from tests.made_runs import make_run


@pytest.fixture(scope="module")
def drawing(workshop):
    """The ids of a run that is drawn from its words, of one that is drawn from its states, and of one whose config names no renderer."""
    tiny_pictures.sd3(workshop.folder / "own-sd3")
    tiny_qwen_image.build(workshop.folder / "own-qwen-image", "qwen_image", workshop.folder / "tiny-qwen2.5-vl")
    small = {"width": 32, "height": 32, "steps": 1}
    runs = {
        "drawn-words": {"task": {"name": "prompt_enhancement"}, "renderer": {"model": "own-sd3", "t5": False} | small},
        "drawn-states": {"task": {"name": "text_to_image"}, "renderer": {"name": "qwen_image", "model": "own-qwen-image"} | small},
        "drawn-by-none": {"task": {"name": "text_to_image"}},
    }
    with pytest.MonkeyPatch.context() as there:
        there.setenv("GRPO_HOME", str(workshop.folder / "home"))
        there.chdir(workshop.folder)
        for run_id, changes in runs.items():
            make_run(workshop.folder / "runs", run_id, "tiny-qwen2.5-vl", **changes)
    return list(runs)


def test_the_picture_of_one_answer_is_a_file_and_stands_in_its_record(workshop, drawing):
    done = workshop.infer("--run_id", drawing[1], "--prompt", "Draw a frog.", "--draw")
    assert done.returncode == 0, done.stderr
    record = json.loads((workshop.folder / "home/inference/prompts.jsonl").read_text().splitlines()[-1])
    picture = record["picture"]
    assert picture["path"].startswith(f"{workshop.folder}/home/inference/drawn/{drawing[1]}-prompt-")
    assert f"picture: {picture['path']} (32x32)\n" in done.stderr
    assert (record["run_id"], len(picture["conditioning_sha256"]), picture["error"]) == (drawing[1], 64, None)
    with Image.open(picture["path"]) as file:
        assert (file.size, file.info) == ((32, 32), {})


def test_a_file_of_questions_is_drawn_once(workshop, drawing):
    rows = [{"id": "cat", "prompt": "a cat"}, {"id": "gone", "prompt": "a dog", "image": "gone.png"}, {"id": "owl", "prompt": "an owl"}]
    (workshop.folder / "to-draw.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = ("--run_id", drawing[0], "--input", "to-draw.jsonl", "--output", "drawn.jsonl", "--draw", "--picture_dir", "pictures")
    done = workshop.infer(*command)
    assert done.stdout.startswith("2 answered, 1 could not be asked, 0 could not be drawn: "), done.stderr
    records = {record["item"]: record for record in map(json.loads, (workshop.folder / "drawn.jsonl").read_text().splitlines())}
    files = {f"pictures/{path.name}" for path in (workshop.folder / "pictures").iterdir()}
    assert {records[name]["picture"]["path"] for name in ("cat", "owl")} == files
    assert "3 of 3 answers are there already" in workshop.infer(*command).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--run_id", "first", "--draw"], "run first has the task visual_reasoning, whose answers are not drawn"),
        (["--run_id", "drawn-states", "--draw", "--backend", "vllm"], "the policy's own states, which vLLM does not give"),
        (["--run_id", "drawn-by-none", "--draw"], "names no renderer, and text_to_image has none of its own"),
        (["--run_id", "drawn-words", "--picture_dir", "here"], "add --draw"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_anything_is_asked(workshop, finished, drawing, refused, arguments, said):
    assert said in refused(workshop.infer(*arguments, "--prompt", "a cat"))
