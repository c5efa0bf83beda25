"""Covers asking a run by its run_id: the answer alone on stdout, the record as JSON, and refusals before anything is loaded."""

import json
import shutil
import time

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
    assert (record["backend"], record["error"], len(record["sha"]), len(record["image_sha256"])) == ("transformers", None, 64, 1)
    assert record["completion_tokens"] <= record["max_new_tokens"]
    assert f"{finished}: loaded in" in plain.stderr
    assert "Loading weights" not in plain.stderr
    kept = (workshop.folder / "home/inference/prompts.jsonl").read_text().splitlines()
    assert json.loads(kept[-1]) == record


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


def test_a_batch_that_is_killed_goes_on_where_it_was_and_repeats_and_loses_nothing(workshop, finished):
    rows = [json.dumps({"id": f"q{i}", "prompt": "Which digit is this?", "image": f"digits/pictures/{i:04d}.png"}) for i in range(60)]
    rows[6] = '{"id": "q6", "prompt'
    rows[9] = json.dumps({"id": "q9", "prompt": "Why?", "image": "gone.png"})
    (workshop.folder / "many.jsonl").write_text("\n".join(rows))
    command = ("--run_id", finished, "--input", "many.jsonl", "--output", "many-answers.jsonl", "--batch_size", "1")
    output = workshop.folder / "many-answers.jsonl"
    process = workshop.start("-m", "qwen_vl_grpo", "infer", *command)
    deadline = time.monotonic() + 200
    while not output.is_file() or output.read_bytes().count(b"\n") < 5:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate()
    before = output.read_text().rpartition("\n")[0].splitlines()
    assert 5 <= len(before) < 60
    done = workshop.infer(*command)
    assert done.returncode == 0, done.stderr
    assert "of 60 answers are there already" in done.stderr
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [json.dumps(record) for record in records[: len(before)]] == before
    assert sorted(record["item"] for record in records) == sorted(["line 7", *(f"q{i}" for i in range(60) if i != 6)])
    assert {record["item"]: record["error"] for record in records if record["error"]}.keys() == {"line 7", "q9"}
    assert done.stdout.startswith("58 answered, 2 could not be asked: ")
    assert "answers/s" in done.stderr


def test_what_cannot_be_asked_together_is_refused(workshop, finished, refused):
    assert "--prompt TEXT, or --input FILE" in refused(workshop.infer("--run_id", finished))
    assert "video clip.mp4: " in refused(workshop.infer("--run_id", finished, *QUESTION, "--video_path", "clip.mp4"))
    assert "--image_path and --video_path go with one --prompt" in refused(workshop.infer("--run_id", finished, *PICTURE, "--input", "x"))
    (workshop.folder / "one.jsonl").write_text('{"prompt": "Why?"}')
    said = refused(workshop.infer("--run_id", finished, "--input", "one.jsonl", "--output", "digits"))
    assert said == "error: digits: cannot be used (Is a directory); name another place, or change what is there"


def test_a_picture_in_the_network_behind_is_refused_before_anything_is_loaded(workshop, finished, refused):
    line = refused(workshop.infer("--run_id", finished, *QUESTION, "--image_path", "http://169.254.169.254/latest?token=secret"))
    assert "which is not public" in line
    assert "secret" not in line
