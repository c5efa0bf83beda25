"""Covers the published numbers of MMMG and Complex-Edit: what their own code said of recorded answers, ours says, too."""

import json
from pathlib import Path

import pytest

from qwen_vl_grpo import knowledge
from qwen_vl_grpo.judges import checklist

FIXTURES = Path(__file__).parents[1] / "fixtures"


def fixture(name):
    return map(json.loads, (FIXTURES / name).read_text(encoding="utf-8").splitlines())


MMMG, *PICTURES = fixture("mmmg_scores.jsonl")


def test_mmmg_was_run_at_the_named_commit_on_answers_of_every_kind():
    assert MMMG["commit"] == "98bb915a645d6d575dea3700a391966bd317c83a"
    assert len(PICTURES) >= 100
    between = [row for row in PICTURES if 0 < row["ged"] < 1]
    assert len(between) >= 60
    assert {row["ged"] for row in PICTURES} >= {0.0, 1.0}


def test_answers_are_read_as_mmmg_reads_them():
    differing = []
    for row in PICTURES:
        elements, dependencies = checklist.published(row["answer"], row["elements"], row["dependencies"])
        if {"elements": elements, "dependencies": dependencies} != row["read"]:
            differing.append(row)
    assert differing == []


def test_fidelity_and_readability_are_those_of_mmmg():
    for row in PICTURES:
        fidelity = knowledge.fidelity(row["read"]["elements"], row["read"]["dependencies"])
        assert fidelity == pytest.approx(1 - row["ged"], abs=1e-12), row
        if row["regions"] is not None:
            assert fidelity * knowledge.readability(row["regions"]) == pytest.approx(row["score"], abs=1e-12), row
