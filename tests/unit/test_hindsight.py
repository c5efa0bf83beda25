"""Covers the plan beside what a run measured: predicted on a card and without one, compared where both are known."""

import pytest

from qwen_vl_grpo import config as configs
from qwen_vl_grpo import footprint, hindsight, launch, plan_figures, planning
from qwen_vl_grpo.footprint import GIB, Prompt
from qwen_vl_grpo.hardware import Hardware
from qwen_vl_grpo.shapes import of

H100 = Hardware("cuda", 1, "NVIDIA H100 80GB HBM3", 16)
CPU = Hardware("cpu", 0, "x86_64", 2)


def config(**changes):
    return configs.check({"run_id": "unit", "data": {"max_pixels": 448 * 448}} | changes)


def test_a_card_is_predicted_by_phase_as_the_plan_says():
    found = {name: said["predicted"] for name, said in hindsight.predict(config(), H100, 79.1, 312, True, 0).items()}
    as_planned = config(gradient_checkpointing=0)
    fit = planning.judge(as_planned, of(as_planned), Prompt(56, 1, 256), "", 79.1)
    assert {name: found[f"card, {name}, GiB"] for name in fit.phases} == fit.phases
    held = footprint.measure(as_planned, of(as_planned), Prompt(56, 1, 256))
    assert found[plan_figures.TORCH] == footprint.torch_peak(held, as_planned, 79.1 * GIB) / GIB
    assert found[plan_figures.SECONDS] == pytest.approx(5.912, abs=0.01)  # docs/gpu_rows/step-7b.json


def test_without_a_card_weights_are_float32_and_on_the_host():
    found = {name: said["predicted"] for name, said in hindsight.predict(config(use_vllm=False), CPU, None, 312, True, 0).items()}
    assert found.keys() == {plan_figures.HOST, plan_figures.CHECKPOINT, plan_figures.SECONDS}
    assert found[plan_figures.HOST] > 4 * of(config()).total() / GIB
    assert found[plan_figures.SECONDS] is None


@pytest.mark.parametrize("strategy", ["zero3", "fsdp2"])
def test_of_a_split_trainer_the_card_alone_is_predicted(monkeypatch, strategy):
    for name, value in (launch.TOLD[strategy] | {"WORLD_SIZE": "2"}).items():
        monkeypatch.setenv(name, value)
    found = hindsight.predict(config(lora={"enabled": False}), H100, 79.1, 312, True, 0)
    assert {name.split(",")[0] for name in found} == {"card", *(name.split(",")[0] for name in (plan_figures.TORCH, plan_figures.RESERVED))}
    two = found[plan_figures.TORCH]["predicted"]
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert hindsight.predict(config(lora={"enabled": False}), H100, 79.1, 312, True, 0)[plan_figures.TORCH]["predicted"] < two - 10


def test_of_an_engine_on_several_cards_nothing_is_said():
    assert hindsight.predict(config(trl={"vllm_tensor_parallel_size": 2}), H100, 79.1, 312, True, 0) == {}


def test_only_what_is_known_on_both_sides_has_a_ratio():
    predicted = {"a": {"predicted": 2.0}, "b": {"predicted": None}, "c": {"predicted": 4.0}}
    found = hindsight.compare(predicted, {"a": 3.0, "b": 5.0, "other": 1.0})
    assert found == {
        "a": {"predicted": 2.0, "measured": 3.0, "ratio": 1.5},
        "b": {"predicted": None, "measured": 5.0, "ratio": None},
        "c": {"predicted": 4.0},
    }
    assert [line.split() for line in hindsight.text(found).splitlines()[1:]] == [
        ["a", "2", "3", "1.50"], ["b", "-", "5"], ["c", "4", "-"],
    ]  # fmt: skip
