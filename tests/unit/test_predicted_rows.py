"""Covers what the plan predicts of the runs in docs/gpu_rows/plan-*.json, beside what they took on a card."""

import json
from pathlib import Path

import pytest

from benchmarks import gpu_plan

ROWS = Path(__file__).parents[2] / "docs/gpu_rows"
RUNS = {
    f"{size} {name}": (size, name, found["measured"])
    for size in gpu_plan.CONFIGURATIONS
    for name, found in json.loads((ROWS / f"plan-{size}.json").read_text(encoding="utf-8"))["configurations"].items()
    if "measured" in found
}
H200_GIB = 139.8


@pytest.mark.parametrize("case", RUNS)
def test_the_plan_is_within_a_tenth_of_what_a_run_took(case):
    size, name, measured = RUNS[case]
    config = gpu_plan.settings(size, name).model_copy(update={"model_name": f"Qwen/Qwen2.5-VL-{size.upper()}-Instruct"})
    fit, predicted = gpu_plan.predict(config, H200_GIB)
    phases = measured["in use"].keys() - ({"score"} if name.startswith("whole") else set())  # looked at before Adam had its states
    assert {"start", "generate", "backward"} <= phases
    for phase in phases:
        assert measured["in use"][phase] == pytest.approx(fit.phases[phase], rel=0.1), phase
    assert max(measured["allocated by torch"].values()) == pytest.approx(predicted["allocated by torch at most"], rel=0.1)
    assert measured["host"]["at most"] == pytest.approx(predicted["host"], rel=0.1)
    assert measured["layers recomputed"] == predicted["layers recomputed"]


def test_there_are_runs_of_both_sizes_whole_and_adapted_asleep_and_awake():
    assert len(RUNS) >= 4
    words = {"3b", "7b", "lora", "whole", "asleep", "awake"}
    assert words <= {word for case in RUNS for part in case.split() for word in part.split("-")}
