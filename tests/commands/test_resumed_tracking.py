"""Covers a tracked run that is killed and resumed: offline W&B has every step of it once and in order."""

import json
import subprocess
import sys

import pytest
from wandb_file import records
from wandb_service import served

TRACKED = {"max_steps": 8, "save_steps": 4, "tracking": {"report_to": "wandb", "mode": "offline"}}


@pytest.fixture(scope="module")
def history(workshop):
    """What the tracker has of a run that was killed and resumed."""
    process = workshop.start("-m", "qwen_vl_grpo", "train", "--config", workshop.config("followed", **TRACKED))
    workshop.killed_at(7, "followed", process)
    done = workshop.train("followed", "--resume", **TRACKED)
    assert done.returncode == 0, done.stderr
    found = list(workshop.run_dir("followed").glob("wandb/offline-run-*/run-followed.wandb"))
    assert len(found) == 1, "wandb sync would be given more than one part"
    history = [record.history for record in records(found[0], killed=True) if record.WhichOneof("record_type") == "history"]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in line.item} for line in history]


def test_no_step_of_training_goes_back_or_is_left_out(workshop, history):
    trained = [line["train/global_step"] for line in history if "train/loss" in line]
    assert trained == list(range(1, 9))
    losses = {line["step"]: line["loss"] for line in workshop.metrics("followed") if "loss" in line}
    assert {line["train/global_step"]: line["train/loss"] for line in history if "train/loss" in line} == losses
    written = [line["step"] for line in workshop.metrics("followed") if "loss" in line]
    assert len(written) > 8, "no step was done again, so nothing was shown"


def test_a_sync_makes_one_run_of_both_attempts(workshop, history):
    with served() as service:
        command, given = [sys.executable, "-m", "wandb", "sync", "--yes"], workshop.environment | service.environment
        done = subprocess.run(
            command, cwd=workshop.run_dir("followed"), env=given, capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stderr
    assert list(service.runs) == ["followed"]
    rows = service.history("followed")
    assert [row["train/global_step"] for row in rows if "train/loss" in row] == list(range(1, 9))
    assert [row["_step"] for row in rows] == list(range(len(rows)))
    tables = [json.loads(content) for name, content in service.files.items() if name.endswith("/completions.table.json")]
    steps = sorted(table["data"][0][table["columns"].index("step")] for table in tables)
    assert steps == [*range(1, 9), 8], "a table is missing, or was sent twice; TRL sends the last one again at the end"


def test_a_service_that_saw_the_first_attempt_gets_the_steps_it_lacks(workshop):
    config = workshop.config("online", **TRACKED | {"tracking": {"report_to": "wandb", "mode": "online"}})
    command = ["-m", "qwen_vl_grpo", "train", "--config", config]
    with served() as service:
        workshop.killed_at(7, "online", workshop.start(*command, **service.environment))
        again = workshop.run(*command, "--resume", **service.environment)
        assert again.returncode == 0, again.stderr
    assert list(service.runs) == ["online"]
    assert [row["train/global_step"] for row in service.history("online") if "train/loss" in row] == list(range(1, 9))
