"""Covers what W&B gets beside the training: scores as a run of job type evaluation, answers as runs of job type inference."""

import json
import subprocess
import sys

import pytest
from wandb_service import served

QUESTION = ("--prompt", "Which digit is this?", "--image_path", "digits/pictures/0000.png")


def table(service, name):
    """The rows of the table of this name that the service got last."""
    sent = [number for number, artifact in enumerate(service.artifacts) if f"{name}.table.json" in artifact["files"]]
    content = json.loads(service.files[f"artifacts/{sent[-1]}/{name}.table.json"])
    return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]], f"artifacts/{sent[-1]}/"


def online(workshop, service, *command, **environment):
    return workshop.run("-m", "qwen_vl_grpo", *command, **service.environment | environment)


@pytest.fixture(scope="module")
def scored(workshop):
    """A run that is scored and tracked online, and what the service has of it."""
    evaluation = {"dataset_split": "test", "samples": 2}
    config = workshop.config("scored", evaluation=evaluation, tracking={"report_to": "wandb", "mode": "online", "tags": ["tiny"]})
    with served() as service:
        done = online(workshop, service, "train", "--config", config)
    assert done.returncode == 0, done.stderr
    return service


def test_a_run_and_its_evaluation_are_two_runs_of_the_service(scored):
    told = {name: (run["jobType"], run["groupName"], run["project"], run["tags"]) for name, run in scored.runs.items()}
    assert told == {
        "scored": ("train", "visual_reasoning", "grpo", ["tiny"]),
        "eval-scored": ("evaluation", "scored", "grpo", ["tiny"]),
    }


def test_the_scores_of_the_evaluation_are_those_of_the_card(workshop, scored):
    metrics = workshop.card("scored")["metrics"]
    rows, _ = table(scored, "scores")
    assert [(row["when"], row["completions"]) for row in rows] == [
        ("before", "greedy"), ("before", "sampled"), ("after", "greedy"), ("after", "sampled"), ("blind", "greedy"),
    ]  # fmt: skip
    for row in rows:
        given = metrics[row["when"]] if row["when"] == "blind" else metrics[row["when"]][row["completions"]]
        assert (row["correct"], [row["low"], row["high"]], row["n"]) == (given["correct"], given["interval"], given["n"])
    summary = json.loads(scored.lines["eval-scored", "wandb-summary.json"][0])
    assert summary["after/greedy/n"] == metrics["after"]["greedy"]["n"]


def test_the_answers_of_the_evaluation_stand_beside_their_pictures(workshop, scored):
    rows, folder = table(scored, "answers")
    kept = [json.loads(line) for line in (workshop.run_dir("scored") / "answers.jsonl").read_text().splitlines()]
    assert [(row["item"], row["before/completion"], row["after/correct"]) for row in rows] == [
        (item["id"], item["before"]["completion"], item["after"]["correct"]) for item in kept
    ]
    assert scored.files[folder + rows[0]["image"][0]["path"]].startswith(b"\x89PNG")


def test_the_service_is_told_where_the_weights_are_and_gets_no_byte_of_them(workshop, scored):
    (told,) = [artifact for artifact in scored.artifacts if artifact["artifactTypeName"] == "model"]
    assert json.loads(told["metadata"])["sha256"] == workshop.card("scored")["checkpoint_files"]
    assert not any("safetensors" in name for name in scored.files)


def test_answers_are_sent_only_when_asked_for(workshop, scored):
    with served() as service:
        done = online(workshop, service, "infer", "--run_id", "scored", *QUESTION)
    assert done.returncode == 0, done.stderr
    assert service.runs == {}


def test_an_answer_is_a_run_of_the_service_with_its_picture_latency_and_tokens(workshop, scored):
    with served() as service:
        done = online(workshop, service, "infer", "--run_id", "scored", *QUESTION, "--json", "--wandb")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    ((name, run),) = service.runs.items()
    assert name.startswith("infer-scored-")
    assert (run["jobType"], run["groupName"], run["project"]) == ("inference", "scored", "grpo")
    ((row,), folder) = table(service, "answers")
    assert {key: row[key] for key in ("prompt", "answer", "seconds", "completion_tokens", "error")} == {
        key: record[key] for key in ("prompt", "answer", "seconds", "completion_tokens", "error")
    }
    assert service.files[folder + row["image"][0]["path"]].startswith(b"\x89PNG")
    (line,) = [line for line in service.history(name) if "infer/index" in line]
    assert (line["infer/seconds"], line["infer/completion_tokens"]) == (record["seconds"], record["completion_tokens"])


@pytest.fixture
def questions(workshop):
    rows = [json.dumps({"id": f"q{i}", "prompt": "Which digit is this?", "image": f"digits/pictures/{i:04d}.png"}) for i in range(70)]
    rows[3] = json.dumps({"id": "q3", "prompt": "Why?", "image": "gone.png"})
    (workshop.folder / "followed.jsonl").write_text("\n".join(rows))
    return "followed.jsonl"


def test_a_batch_sends_every_latency_and_a_bounded_table_and_again_all_that_is_there(workshop, scored, questions):
    for _ in range(2):
        with served() as service:
            done = online(workshop, service, "infer", "--run_id", "scored", "--input", questions, "--wandb")
        assert done.returncode == 0, done.stderr
        ((name, _),) = service.runs.items()
        assert len([line for line in service.history(name) if "infer/index" in line]) == 70
        rows, _ = table(service, "answers")
        assert len(rows) == 64
        assert [row["item"] for row in rows if row["error"]] == ["q3"]
        summary = json.loads(service.lines[name, "wandb-summary.json"][0])
        assert (summary["answered"], summary["failed"], summary["shown"]) == (69, 1, 64)


def test_a_service_that_goes_away_costs_a_warning_and_no_answer(workshop, scored, questions):
    """The service ends as soon as the run is known to it, while the model is still loading."""
    output = workshop.folder / "all.jsonl"
    command = ["infer", "--run_id", "scored", "--input", questions, "--output", str(output), "--wandb", "--temperature", "0.5"]
    with served() as service:
        process = workshop.start("-m", "qwen_vl_grpo", *command, **service.environment, WANDB_FINISH_TIMEOUT="3")
        while not service.runs:
            assert process.poll() is None, process.communicate()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "it has gaps from here on, the files here have none" in err
    assert out.startswith("69 answered, 1 could not be asked")
    assert len(output.read_text().splitlines()) == 70


def test_a_service_that_is_not_there_at_the_start_is_an_error(workshop, scored, refused):
    with served() as service:
        pass
    done = online(workshop, service, "infer", "--run_id", "scored", *QUESTION, "--wandb", WANDB_INIT_TIMEOUT="3")
    assert "--wandb: W&B did not start" in refused(done)


def test_without_a_key_the_answers_wait_for_a_sync(workshop, scored):
    done = workshop.infer("--run_id", "scored", *QUESTION, "--wandb")
    assert done.returncode == 0, done.stderr
    (folder,) = (workshop.folder / "home/inference/wandb").glob("offline-run-*-infer-scored-*")
    with served() as service:
        command = [sys.executable, "-m", "wandb", "sync", str(folder)]
        subprocess.run(command, env=workshop.environment | service.environment, capture_output=True, timeout=120, check=True)
    assert [run["jobType"] for run in service.runs.values()] == ["inference"]
    assert table(service, "answers")[0][0]["prompt"] == QUESTION[1]
