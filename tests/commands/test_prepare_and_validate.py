"""Covers `grpo prepare` and `grpo validate` as commands: what they print, the cache that a run finds, and the exit codes."""

import json

import pytest

from tests.commands.conftest import PROJECT


@pytest.fixture(scope="module")
def charts(workshop):
    """A part with one row that cannot be used among the workshop's digits."""
    rows = [json.loads(line) for line in (workshop.folder / "digits/train.jsonl").read_text(encoding="utf-8").splitlines()[:6]]
    rows[3]["answer"] = ""
    (workshop.folder / "digits/odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return "odd"


def test_prepare_says_what_is_kept_and_dropped_and_a_run_finds_it(workshop, charts):
    config = workshop.config("prepared", dataset_split=charts, data={"unusable": "drop"}, evaluation={"held_out": 0.4})
    first, second = (workshop.run(str(PROJECT / "src/data_prep/data.py"), config) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert "split odd: 5 rows kept, 1 unusable (row 3: column 'answer' holds ''" in first.stdout
    assert "prepared into" in first.stdout
    assert "read from" in second.stdout
    assert "3 rows to train on, 2 held out (0.4 of the pictures)" in second.stdout


def test_prepare_refuses_what_a_run_would_refuse(workshop, charts):
    done = workshop.run("-m", "qwen_vl_grpo", "prepare", workshop.config("refused", dataset_split=charts))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "split odd, row 3: column 'answer' holds ''" in done.stderr


def test_validate_ends_with_1_on_a_fault_and_names_it(workshop, charts):
    done = workshop.run("-m", "qwen_vl_grpo", "validate", workshop.config("faulty", dataset_split=charts, rewards=[]))
    assert done.returncode == 1, done.stderr
    assert "fault: digits, split odd, row 3: column 'answer' holds ''" in done.stdout
    assert done.stdout.rstrip().endswith("1 faults")


def test_validate_ends_with_0_on_sound_data(workshop):
    done = workshop.run("-m", "qwen_vl_grpo", "validate", workshop.config("sound", rewards=[]), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert "12 gold answers and" in "\n".join(report["said"])
    assert (report["doubts"], report["faults"]) == ([], [])
