"""Covers what every process of a run is compared by: the config, the versions, the rows and the card."""

import datasets
import pytest

from qwen_vl_grpo import assembly, config, hardware, tasks, training

CONFIG = {"run_id": "one", "model_name": "some/model"}


def told(*answers, held_out=()):
    rows = datasets.Dataset.from_dict({"prompt": ["?"] * len(answers), "answer": answers, "picture_ids": [[]] * len(answers)})
    run = config.check(CONFIG)
    return training._same_everywhere(run, assembly.Prepared(tasks.build(run.task), [], [], None, rows, list(held_out), None, 0))


def differing(one, other):
    return {key for key in one | other if one.get(key) != other.get(key)}


def test_two_processes_that_are_alike_are_told_alike():
    assert not differing(told("a", "b"), told("a", "b"))


def test_other_rows_are_seen_though_there_are_as_many():
    assert differing(told("a", "b"), told("a", "c")) == {"rows"}
    assert differing(told("a"), told("a", held_out=["x"])) == {"held-out rows"}


def test_another_card_is_seen(monkeypatch):
    here = told("a")
    monkeypatch.setattr(hardware, "describe", lambda machine, plain=hardware.describe: plain(machine) | {"name": "NVIDIA H100"})
    assert differing(here, told("a")) == {"card"}


@pytest.mark.parametrize("name", ["trl", "transformers"])
def test_another_version_is_seen(monkeypatch, name):
    here = told("a")
    monkeypatch.setattr(hardware, "versions", lambda plain=hardware.versions: plain() | {name: "0.1"})
    assert differing(here, told("a")) == {f"version of {name}"}
