"""Covers a run that is evaluated on the way and tracked offline by W&B with tables of completions and their pictures."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pandas
import pytest
from wandb_file import records as read_records
from wandb_service import served

SHY = """\
def shy(completions, trainer_state=None, **_):
    return [None if trainer_state and trainer_state.global_step == 1 else 0.0] * len(completions)
"""


@pytest.fixture(scope="module")
def tracked(workshop) -> str:
    (workshop.folder / "shy.py").write_text(SHY, encoding="utf-8")
    done = workshop.train(
        "tracked",
        rewards=[{"function": "brevity.py:brevity"}, {"function": "shy.py:shy"}],
        tracking={"report_to": "wandb", "mode": "offline", "log_completions": True},
        evaluation={"dataset_split": "test", "every": 2, "every_limit": 4, "samples": 2, "blind": False},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return "tracked"


@pytest.fixture(scope="module")
def records(workshop, tracked):
    """What `wandb sync` would send."""
    return list(read_records(next(workshop.run_dir(tracked).glob(f"wandb/offline-run-*/run-{tracked}.wandb"))))


def logged(records):
    """Rows of the history: name -> value."""
    rows = [record.history for record in records if record.HasField("history")]
    return [{"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row.item} for row in rows]


def test_a_sync_would_send_one_run_under_the_run_id(records, tracked):
    runs = [record.run for record in records if record.HasField("run")]
    assert {(run.run_id, run.project) for run in runs} == {(tracked, "grpo")}


def test_the_parts_of_the_reward_and_the_groups_are_sent_for_every_step(records):
    rows = [row for row in logged(records) if "train/reward" in row]
    assert [row["train/global_step"] for row in rows] == [1, 2, 3]
    names = ("rewards/brevity/mean", "rewards/brevity/std", "groups/without_spread", "groups/reward_std", "groups/best", "groups/worst")
    for row in rows:
        assert {f"train/{name}" for name in (*names, "groups/unique_completions")} <= set(row)
        assert row["train/groups/worst"] <= row["train/reward"] <= row["train/groups/best"] <= 0
        assert 1 <= row["train/groups/unique_completions"] <= 4


def test_the_table_is_sent_with_pictures(records):
    tables = [row for row in logged(records) if "completions/nrows" in row]
    assert {(row["completions/_type"], row["completions/nrows"], row["train/global_step"]) for row in tables} == {
        ("table-file", 8, step) for step in (1, 2, 3)
    }
    for record in records:
        if record.HasField("artifact") and record.artifact.type == "run_table":
            pictures = [file for file in record.artifact.manifest.contents if file.path.startswith("media/images/")]
            assert len(pictures) == 2, "eight rows of two prompts"
            assert all(Path(file.local_path).is_file() for file in pictures)


@pytest.fixture(scope="module")
def service(workshop, tracked):
    """What a W&B service has after `wandb sync` of the run's folder."""
    with served() as service:
        folder = next(workshop.run_dir(tracked).glob(f"wandb/offline-run-*[0-9]-{tracked}"))
        command = [sys.executable, "-m", "wandb", "sync", str(folder)]
        done = subprocess.run(
            command, env=workshop.environment | service.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
    return service


def test_a_sync_makes_one_run_with_every_step_once(service, workshop, tracked):
    assert list(service.runs) == [tracked]
    run = service.runs[tracked]
    assert [run[key] for key in ("project", "displayName", "groupName", "jobType")] == ["grpo", tracked, "visual_reasoning", "train"]
    assert json.loads(run["config"])["learning_rate"]["value"] == 1e-3
    rows = [row for row in service.history(tracked) if "train/reward" in row]
    written = [line for line in workshop.metrics(tracked) if "reward" in line]
    for name in ("reward", "rewards/brevity/mean", "groups/reward_std", "groups/without_spread"):
        assert [(row["train/global_step"], row[f"train/{name}"]) for row in rows] == [(line["step"], line[name]) for line in written]


def test_a_sync_brings_every_completion_with_its_picture(service, workshop, tracked):
    tables = [(number, artifact) for number, artifact in enumerate(service.artifacts) if artifact["artifactTypeName"] == "run_table"]
    assert len(tables) >= 3
    for number, artifact in tables:
        assert artifact["committed"]
        table = json.loads(service.files[f"artifacts/{number}/completions.table.json"])
        rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
        kept = pandas.read_parquet(workshop.run_dir(tracked) / f"completions/completions_{rows[0]['step']:05}.parquet")
        assert [row["completion"] for row in rows] == kept["completion"].tolist()
        for name in {name for names in kept["pictures"] for name in json.loads(names)} or {"no picture is named"}:
            assert (workshop.run_dir(tracked) / name).is_file()
        for row in rows:
            assert service.files[f"artifacts/{number}/{row['image'][0]['path']}"].startswith(b"\x89PNG")


def test_an_alarm_is_in_the_log_the_card_and_the_tracker(workshop, tracked, records):
    rang = workshop.card(tracked)["alarms"]
    assert [(alarm["name"], alarm["first_step"], alarm["last_step"]) for alarm in rang] == [("not_a_number", 2, 2)]
    assert "alarm not_a_number at step 2: no number in rewards/shy/mean" in (workshop.run_dir(tracked) / "training.log").read_text()
    values = [row["alarms/not_a_number"] for row in logged(records) if "alarms/not_a_number" in row]
    assert values == [1.0, 0.0]
    assert [record.alert.title for record in records if record.HasField("alert")] == ["not_a_number at step 2"]
    asked = workshop.grpo("runs", "alarms", tracked)
    assert asked.stdout.startswith("not_a_number, step 2 to 2: no number in rewards/shy/mean"), asked.stderr


def test_the_run_has_one_offline_run_of_its_id_beside_that_of_its_evaluation(workshop, tracked):
    runs = sorted(workshop.run_dir(tracked).glob("wandb/offline-run-*"))
    assert [run.name.split("-", 3)[3] for run in runs] == [tracked, f"eval-{tracked}"]
    assert list(runs[0].glob(f"run-{tracked}.wandb"))
    assert not (workshop.folder / "wandb").exists()


@pytest.mark.parametrize("gone", ["service", "client"])
def test_a_tracker_that_goes_away_costs_a_warning_and_no_metric(workshop, gone):
    """After the first step the service is shut, or wandb's own process is killed."""
    tracking = {"report_to": "wandb", "mode": "online"}
    with ExitStack() as stack:
        service = stack.enter_context(served())
        command = ["train", "--config", workshop.config(f"left-{gone}", tracking=tracking)]
        process = workshop.start("-m", "qwen_vl_grpo", *command, **service.environment, WANDB_FINISH_TIMEOUT="3")
        with workshop.held_before(2, f"left-{gone}", process):
            if gone == "client":
                core = subprocess.run(["pgrep", "-P", str(process.pid), "wandb-core"], capture_output=True, text=True, check=True)
                os.kill(int(core.stdout), signal.SIGKILL)
            stack.close()
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert "it has gaps from here on, the files here have none" in said
    assert workshop.card(f"left-{gone}")["state"] == "finished"
    assert [line["step"] for line in workshop.metrics(f"left-{gone}") if "loss" in line] == [1, 2, 3]


def test_a_service_that_takes_no_files_keeps_no_run_from_ending(workshop):
    """wandb tries to send an artifact again for ever, whatever its own limit says."""
    config = workshop.config("unsent", max_steps=1, tracking={"report_to": "wandb", "mode": "online"})
    with served() as service:
        service.full = True
        command = ["-m", "qwen_vl_grpo", "train", "--config", config]
        done = workshop.run(*command, **service.environment, WANDB_FINISH_TIMEOUT="3")
    assert done.returncode == 0, done.stderr
    assert "it has gaps from here on, the files here have none" in done.stderr
    assert workshop.card("unsent")["state"] == "finished"


def test_the_card_says_how_the_run_was_tracked(workshop, tracked):
    kept = workshop.card(tracked)["tracking"]
    assert (kept["report_to"], kept["id"], kept["mode"]) == ("wandb", tracked, "offline")


def test_every_step_leaves_a_table_of_completions_as_text(workshop, tracked):
    for step in (1, 2, 3):
        table = pandas.read_parquet(workshop.run_dir(tracked) / f"completions/completions_{step:05}.parquet")
        assert len(table) == 8
        assert set(table["step"]) == {step}
        assert all(isinstance(text, str) and "[picture]" in text for text in table["prompt"])
        assert table["brevity"].tolist() == pytest.approx([-0.01 * len(text) for text in table["completion"]])


def test_the_tables_reach_the_tracker_with_their_pictures(workshop, tracked):
    run = next(workshop.run_dir(tracked).glob(f"wandb/offline-run-*[0-9]-{tracked}"))
    assert list(run.rglob("completions*.table.json"))
    staged = [path.read_bytes() for path in (workshop.run_dir(tracked) / "wandb-data/artifacts/staging").iterdir()]
    assert any(content.startswith(b"\x89PNG") for content in staged)


def test_the_held_out_rows_are_scored_on_the_way(workshop, tracked):
    scored = [line for line in workshop.metrics(tracked) if any(key.startswith("eval/") for key in line)]
    assert [line["step"] for line in scored] == [2]
    assert {"eval/greedy/correct", "eval/greedy/format", "eval/sampled/rewards/brevity"} <= set(scored[0])
    assert scored[0]["eval/sampled/rewards/brevity"] < 0


def test_scoring_on_the_way_leaves_the_metrics_of_the_steps_whole(workshop, tracked):
    assert [line["step"] for line in workshop.metrics(tracked) if "rewards/brevity/mean" in line] == [1, 2, 3]


def test_the_scores_before_and_after_are_of_all_held_out_rows(workshop, tracked):
    metrics = workshop.card(tracked)["metrics"]
    assert [metrics[when]["greedy"]["n"] for when in ("before", "after")] == [12, 12]
    assert "blind" not in metrics
