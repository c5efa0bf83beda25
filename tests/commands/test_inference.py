"""Covers asking a run by its run_id: the answer alone on stdout, the record as JSON, and refusals before anything is loaded."""

import json
import shutil

QUESTION = ("--prompt", "Which digit is this?")
PICTURE = ("--image_path", "digits/pictures/0000.png")


def test_the_answer_stands_alone_on_stdout_and_is_that_of_the_record(workshop, finished):
    plain = workshop.infer("--run_id", finished, *QUESTION, *PICTURE)
    assert plain.returncode == 0, plain.stderr
    told = workshop.infer("--run_id", finished, *QUESTION, *PICTURE, "--json")
    record = json.loads(told.stdout)
    assert plain.stdout == record["answer"] + "\n"
    assert (record["run_id"], record["prompt"], record["images"]) == (finished, QUESTION[1], [PICTURE[1]])
    assert record["answer"] in record["completion"]
    assert record["checkpoint_sha256"] == workshop.card(finished)["checkpoint_files"]
    assert f"{finished}: loaded in" in plain.stderr


def test_a_question_needs_no_picture(workshop, finished):
    done = workshop.infer("--run_id", finished, *QUESTION, "--json", "--max_new_tokens", "3")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["images"] == []


def test_an_unknown_run_gets_the_nearest_one(workshop, finished, refused):
    assert f"run_id firts: no such run; did you mean {finished}" in refused(workshop.infer("--run_id", "firts", *QUESTION))


def test_a_picture_that_is_not_there_is_refused(workshop, finished, refused):
    assert "gone.png" in refused(workshop.infer("--run_id", finished, *QUESTION, "--image_path", "gone.png"))


def test_a_file_that_is_no_picture_is_refused_by_its_name(workshop, finished, refused):
    assert "brevity.py" in refused(workshop.infer("--run_id", finished, *QUESTION, "--image_path", "brevity.py"))


def test_a_checkpoint_that_was_changed_does_not_answer(workshop, finished, refused):
    weights = workshop.run_dir(finished) / "checkpoint-3/model.safetensors"
    kept = weights.with_suffix(".kept")
    shutil.copy2(weights, kept)
    try:
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        assert "model.safetensors is missing or has changed since the run" in refused(workshop.infer("--run_id", finished, *QUESTION))
    finally:
        shutil.move(kept, weights)


def test_a_run_that_was_moved_answers_after_a_scan(workshop, finished, refused):
    there, elsewhere = workshop.run_dir(finished), workshop.folder / "archive" / finished
    elsewhere.parent.mkdir()
    shutil.move(there, elsewhere)
    try:
        assert "grpo runs scan" in refused(workshop.grpo("runs", "show", finished))
        assert workshop.grpo("runs", "scan", "archive").stdout.startswith(f"1 runs found below archive: {finished}")
        assert workshop.grpo("runs", "show", finished, "--json").returncode == 0
    finally:
        shutil.move(elsewhere, there)
        workshop.grpo("runs", "scan", "runs")
