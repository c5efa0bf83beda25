"""Covers benchmarks/rendered_rows.py and phases.py: rows rehearsed on a CPU, what a phase is charged with, and the page made from a row."""

import json
import time
from types import SimpleNamespace

import pytest

from benchmarks import rendered_page, rendered_rows
from benchmarks.phases import LEARN, Phases
from qwen_vl_grpo import config


@pytest.fixture
def row(tmp_path, monkeypatch):
    """What a row of the rehearsal wrote."""
    monkeypatch.setattr(rendered_rows, "FOLDER", tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none-is-needed")  # the row would set it for all tests after it

    def run(name):
        rendered_rows.main([name, "--tiny"])
        return json.loads((tmp_path / f"rows/{name}-tiny.json").read_text())

    return run


@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("rendered-sd3", {"generate", "render", "judge", "learn"}),
        ("rendered-qwen-image", {"generate", "embed", "render", "judge", "learn"}),
    ],
)
def test_a_step_is_split_into_phases_that_add_up_to_it(row, name, phases):
    found = row(name)
    assert len(found["steps"]) == 2
    for step in found["steps"]:
        whole = step.pop("whole")
        assert set(step) == phases
        assert min(step.values()) > 0
        assert sum(step.values()) == pytest.approx(whole, abs=0.01)
    assert found["pictures a step"] == found["completions"] == 8
    assert found["renderer"]["failed"] == found["logged"]["rendered/failed"] == 0
    assert found["logged"]["grad_norm"] > 0
    shown = rendered_page.page([found])
    assert all(f"| {phase} |" in shown for phase in phases)
    assert found["versions"]["diffusers"] in shown


def test_a_phase_inside_another_is_charged_to_itself_alone():
    phases = Phases()
    worker = SimpleNamespace(draw=lambda: time.sleep(0.5))
    phases.follow(worker, "draw", "render")
    phases.on_train_begin()
    with phases.during("judge"):
        worker.draw()
        time.sleep(0.05)
    phases.on_step_end(None, None, SimpleNamespace())
    (step,) = phases.steps
    assert step["render"] >= 0.5 > step["judge"] >= 0.05
    assert step["whole"] == pytest.approx(step["render"] + step["judge"] + step[LEARN])


def test_no_step_is_begun_when_the_time_is_up():
    for until, stops in ((time.perf_counter() - 1, True), (time.perf_counter() + 60, False)):
        control = SimpleNamespace(should_training_stop=False)
        Phases(until).on_step_end(None, None, control)
        assert control.should_training_stop is stops


@pytest.mark.parametrize(("cards", "renderer", "judge"), [(1, "auto", "auto"), (2, "cuda:1", "cuda:1"), (8, "cuda:1", "cuda:2")])
def test_the_parts_take_as_many_cards_as_there_are(cards, renderer, judge):
    placed = config.load("configs/prompt_enhancement.yaml", [f"placement={rendered_rows.layout(cards)}"]).placement
    assert placed is not None and (placed.renderer, placed.judge) == (renderer, judge)
