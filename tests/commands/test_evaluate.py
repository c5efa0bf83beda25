"""Covers `grpo evaluate` as a command: what training said of a run, the same again, against its base, and after a kill -9 on the way."""

import json
import time

import pytest


def items(workshop, run_id):
    """What lies in the files of items beside a run, whole lines alone."""
    files = (workshop.run_dir(run_id) / "evaluations").glob("*/items.jsonl")
    return {path.parent.name: [json.loads(line) for line in path.read_bytes().splitlines(True) if line.endswith(b"\n")] for path in files}


@pytest.fixture(scope="module")
def compared(workshop, finished):
    done = workshop.grpo("evaluate", finished, "--against", "base", "--json", "--export", "lmms_eval")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_base_and_tuned_are_scored_as_training_scored_them(workshop, finished, compared):
    metrics = workshop.card(finished)["metrics"]
    for who, when in (("base", "before"), ("tuned", "after")):
        assert {key: compared[who]["scores"]["greedy"][key] for key in metrics[when]["greedy"]} == metrics[when]["greedy"]
        assert compared[who]["scores"]["sampled"]["n"] == 24
    assert compared["changes"]["greedy"]["format"]["n"] == 12


def test_a_killed_evaluation_goes_on_and_comes_to_the_same(workshop, finished, compared):
    command = ("evaluate", finished, "--batch_size", "2")
    process = workshop.start("-m", "qwen_vl_grpo", *command)
    (known,) = items(workshop, finished)
    deadline = time.monotonic() + 300
    while not (begun := [lines for name, lines in items(workshop, finished).items() if name != known and lines]):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    process.kill()
    process.communicate()
    done = workshop.grpo(*command)
    assert done.returncode == 0, done.stderr
    ((_, whole),) = [(name, lines) for name, lines in items(workshop, finished).items() if name != known]
    assert whole[: len(begun[0])] == begun[0]
    assert len({line["item"] for line in whole}) == len(whole) == 36
    assert f"# {finished}" in done.stdout and "well-formed and right" in done.stdout
