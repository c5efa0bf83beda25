"""Covers `train --seeds`: one run a seed under one group, their spread, and a group that is killed, stopped and resumed."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time

import pytest

GROUP = {"max_steps": 6, "save_steps": 2, "evaluation": {"dataset_split": "test", "samples": 2, "blind": False}}


def start(workshop, *arguments):
    """A group of two in a session of its own, so that one kill -9 can take the run with it, as a machine does that goes down."""
    command = [sys.executable, "-m", "qwen_vl_grpo", "train", "--config", workshop.config("pair", **GROUP), "--seeds", "2", *arguments]
    where = {"cwd": workshop.folder, "env": workshop.environment, "start_new_session": True}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **where)


def after_a_step(workshop, process, run_id):
    """Wait until a run has done one step more."""

    def steps():
        metrics = workshop.run_dir(run_id) / "metrics.jsonl"
        return metrics.read_text().count("\n") if metrics.exists() else 0

    there, deadline = steps(), time.monotonic() + 300
    while steps() == there:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="module")
def pair(workshop):
    """A group that was killed in its second run, stopped in it again, and resumed to its end: what was said, and the first card before."""
    process = start(workshop)
    after_a_step(workshop, process, "pair-s1")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    card = workshop.card("pair-s0")
    process = start(workshop, "--resume")
    after_a_step(workshop, process, "pair-s1")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 143, errors
    assert errors.splitlines().count("interrupted") == 1
    done = workshop.train("pair", "--seeds", "2", "--resume", **GROUP)
    assert done.returncode == 0, done.stderr
    return done.stdout, card


def test_every_seed_has_a_run_of_its_own_that_names_the_group(workshop, pair):
    cards = [workshop.card(f"pair-s{i}") for i in (0, 1)]
    assert [(card["run_id"], card["group"], card["config"]["seed"], card["state"]) for card in cards] == [
        ("pair-s0", "pair", 0, "finished"),
        ("pair-s1", "pair", 1, "finished"),
    ]


def test_a_finished_run_is_left_alone_and_a_stopped_one_goes_on(workshop, pair):
    assert workshop.card("pair-s0") == pair[1]
    assert [attempt["state"] for attempt in workshop.card("pair-s1")["attempts"]] == ["killed", "interrupted", "finished"]


def test_mean_and_spread_of_each_score_are_kept_and_shown(workshop, pair):
    kept = json.loads((workshop.run_dir("pair") / "group.json").read_text())
    values = [workshop.card(f"pair-s{i}")["metrics"]["after"]["sampled"]["rewards"]["brevity"] for i in (0, 1)]
    mean, spread = round(statistics.fmean(values), 4), round(abs(values[0] - values[1]) / 2**0.5, 4)
    assert kept["scores"]["after/sampled/rewards/brevity"] == {"mean": mean, "sd": spread, "n": 2, "values": values}
    assert values[0] != values[1]
    assert {"before/greedy/correct", "after/greedy/format", "last_step/reward"} < kept["scores"].keys()
    assert not [name for name in kept["scores"] if name.endswith(("/n", "/rows"))]
    line = next(line for line in pair[0].splitlines() if line.startswith("after/sampled/rewards/brevity"))
    assert line.split()[1:4] == [f"{mean:.4f}", f"{spread:.4f}", "2"]
    shown = workshop.grpo("runs", "show", "pair")
    assert shown.returncode == 0
    assert pair[0].endswith("\n" + shown.stdout)
    assert json.loads(workshop.grpo("runs", "show", "pair", "--json").stdout) == kept


def test_a_group_that_was_moved_is_found_again(workshop, pair):
    (workshop.folder / "home/index/pair.json").unlink()
    assert " pair, pair-s0, pair-s1" in workshop.grpo("runs", "scan", "runs").stdout
    assert workshop.grpo("runs", "show", "pair").stdout.startswith("group pair: pair-s0 (seed 0) finished")


@pytest.mark.parametrize(
    ("run_id", "arguments", "changes", "said"),
    [
        ("pair", ("--seeds", "2"), {}, "run_id pair: exists already"),
        ("pair", (), {}, "run_id pair: exists already"),
        ("pair", ("--seeds", "2", "--resume"), {"learning_rate": 1e-2}, "run_id pair-s0: cannot be resumed with another learning_rate"),
        ("pair", ("--resume",), {}, "run_id pair: is a group; `grpo runs show pair` names its runs"),
        ("first", ("--seeds", "2", "--resume"), {}, "run_id first: there is no group in runs/first to resume"),
    ],
)
def test_what_would_mix_groups_and_runs_is_refused(workshop, pair, finished, refused, run_id, arguments, changes, said):
    assert said in refused(workshop.train(run_id, *arguments, **GROUP | changes))


def test_a_group_does_not_answer(workshop, pair, refused):
    said = refused(workshop.infer("--run_id", "pair", "--prompt", "Why?"))
    assert "run_id pair: is a group; `grpo runs show pair` names its runs" in said
