"""Covers what a plan says beside memory on one card: disk, host, judge, hours, and how several cards share a trainer."""

import json
import statistics
from pathlib import Path

import pytest

from demo import tiny_qwen
from qwen_vl_grpo import config as configs
from qwen_vl_grpo import footprint, pace, plan_text, planning, rendered_footprint, shapes, spreading, storage
from qwen_vl_grpo.footprint import GIB, Prompt
from qwen_vl_grpo.judges import prompts
from qwen_vl_grpo.spreading import Spread

SEVEN = shapes.published("Qwen/Qwen2.5-VL-7B-Instruct")
ROWS = Path(__file__).parents[2] / "docs/gpu_rows"
WHOLE = {"lora": {"enabled": False}}
H100 = planning.CARDS["H100"][1]


def documented(**changes):
    return configs.check({"run_id": "unit"} | changes)


def held(config, spread=spreading.ALONE):
    return spreading.split(footprint.measure(config, SEVEN), config, SEVEN, spread)


@pytest.mark.parametrize("rate", pace.RATES, ids=lambda rate: rate.row)
def test_a_rate_is_what_its_row_measured(rate):
    row = json.loads((ROWS / f"{rate.row}.json").read_text())
    logged = row["ours, logged"]["rollouts/seconds/generate_and_score"]
    assert (rate.date, rate.generate, rate.recomputed) == (row["date"], logged, row["layers recomputed"])
    assert rate.learn == pytest.approx(statistics.median(row["seconds"]["ours"]) - logged, abs=1e-2)
    assert rate.card in row["card"] and rate.completions == round(row["responses a second"] * row["median"]["ours"])


@pytest.mark.parametrize("rate", pace.RATES, ids=lambda rate: rate.row)
def test_the_step_of_a_row_takes_what_the_row_took(rate):
    config = documented(gradient_accumulation_steps=rate.completions // 8, gradient_checkpointing=rate.recomputed)
    known = shapes.published(rate.model)
    measured = footprint.measure(config, known, Prompt(rate.prompt - 256, 1, 256))
    found = pace.of(config, known, measured, rate.recomputed, "NVIDIA H100 80GB HBM3")
    assert found.seconds == pytest.approx(rate.generate + rate.learn, rel=1e-6)
    assert f"{rate.row}" in found.source and "H100, 2026-11-28" in found.source


OTHERS = {
    "another card": ({}, "H200 141 GB", SEVEN),
    "a slower card of the name": ({}, "NVIDIA H100 PCIe", SEVEN),
    "another model": ({}, "H100", shapes.published("Qwen/Qwen3-VL-8B")),
    "whole weights": (WHOLE, "H100", SEVEN),
    "an engine that stays awake": ({"vllm_enable_sleep_mode": False}, "H100", SEVEN),
    "transformers' generation": ({"use_vllm": False}, "H100", SEVEN),
    "many more completions": ({"gradient_accumulation_steps": 64}, "H100", SEVEN),
    "pictures that are drawn": ({"task": {"name": "image_edit"}}, "H100", SEVEN),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_no_row_measured_has_no_rate(case):
    changes, card, known = OTHERS[case]
    config = documented(**changes)
    assert pace.of(config, known, footprint.measure(config, known), 0, card) is None


def test_a_checkpoint_holds_what_learns_and_the_states_of_adam():
    learning = SEVEN.learning(documented().lora)
    adapter = storage.disk(documented(), SEVEN, held(documented()))
    assert (adapter.weights, adapter.optimizer, adapter.processor) == (4 * learning, 8 * learning, storage.PROCESSOR)
    whole = storage.disk(documented(**WHOLE), SEVEN, held(documented(**WHOLE)))
    assert whole.weights == 2 * SEVEN.total()
    written = spreading.written(held(documented(**WHOLE)), documented(**WHOLE), SEVEN, Spread("fsdp2", 8))
    split = storage.disk(documented(**WHOLE), SEVEN, written)
    assert (split.weights, split.optimizer) == (whole.weights, 2 * whole.optimizer)  # in float32


def test_a_checkpoint_of_the_model_alone_is_what_a_run_wrote():
    """The arm qlora-ddp of docs/scaling.md: 0.0732 GiB, with a tokenizer of 15.6 MiB."""
    three = shapes.published("Qwen/Qwen2.5-VL-3B-Instruct")
    config = documented(lora={"quantization": "4bit"}, trl={"save_only_model": True})
    measured = storage.disk(config, three, footprint.measure(config, three))
    assert measured.optimizer == 0 and measured.checkpoint / GIB == pytest.approx(0.0732, rel=0.03)


def test_a_policy_of_four_bits_is_read_whole():
    """The same arm: a process held 8.83 GiB of the host at most."""
    three, config = shapes.published("Qwen/Qwen2.5-VL-3B-Instruct"), documented(lora={"quantization": "4bit"})
    told = storage.host(config, three, footprint.measure(config, three), on_card=True)
    assert sum(told.values()) / GIB == pytest.approx(8.83, rel=0.1)


@pytest.mark.parametrize(("changes", "at_once"), [({}, 1), ({"save_steps": 30}, 4), ({"save_steps": 10, "save_total_limit": 2}, 3)])
def test_as_many_checkpoints_lie_there_as_are_kept_and_written(changes, at_once):
    found = storage.disk(documented(**changes), SEVEN, held(documented(**changes)))
    assert found.checkpoints == at_once and found.whole == at_once * found.checkpoint


def test_without_a_card_the_host_holds_the_whole_run():
    config = documented(use_vllm=False, dtype="float32")
    assert storage.host(config, SEVEN, held(config), on_card=True).keys() == {"libraries", "weights while they load"}
    assert storage.host(config, SEVEN, held(config), on_card=False)["policy"] > held(config).resident


MEASURED = {
    # size of demo.tiny_qwen, GiB of ru_maxrss: two steps of 4 answers of 64 tokens after prompts of at most 88, 2026-11-29
    "a tiny policy, whole": ("tiny", 1.00, {"enabled": False}),
    "115 million weights, whole": ("100m", 3.16, {"enabled": False}),
    "115 million weights, an adapter": ("100m", 2.33, {"r": 8}),
}


@pytest.mark.parametrize("case", MEASURED)
def test_the_host_memory_of_a_run_on_a_cpu_is_what_it_took(case):
    size, took, lora = MEASURED[case]
    known = shapes.read(tiny_qwen.config("qwen2_5_vl", tiny_qwen.processor("qwen2_5_vl"), size).to_dict(), case)
    config = documented(
        use_vllm=False, dtype="float32", lora=lora, gradient_checkpointing=False, batch_size=4, max_completion_length=64, num_generations=4,
        gradient_accumulation_steps=1,
    )  # fmt: skip
    told = storage.host(config, known, footprint.measure(config, known, Prompt(72, 1, 16)), on_card=False)
    assert sum(told.values()) / GIB == pytest.approx(took, rel=0.08)


def test_a_judge_is_asked_once_a_question_and_picture():
    config = documented(task={"name": "image_edit"}, judge={"name": "complex_edit", "input_price": 2.0}, max_steps=10)
    found = pace.asked(config)
    assert (found.pictures, found.requests) == (160, 320)
    letters = [len(prompts.read(name).text) for name in ("edit_alignment", "edit_quality", "mmmg")]
    assert [count for _, count in (*pace.QUESTIONS["complex_edit"], *pace.QUESTIONS["mmmg"])] == pytest.approx(letters, rel=0.02)
    assert found.input_cost == pytest.approx(2.0 * found.input_tokens / 1e6)
    assert pace.asked(documented()) is None


def test_each_way_to_share_holds_less_than_the_one_before():
    config = documented(**WHOLE)
    resident = [held(config, Spread(name, 8)).resident + held(config, Spread(name, 8)).gradients for name in spreading.STRATEGIES[1:4]]
    assert resident == sorted(resident, reverse=True)
    alone, zero2, zero3, fsdp2 = (held(config, Spread(name, 8)) for name in ("single", "zero2", "zero3", "fsdp2"))
    assert zero2.weights == alone.weights and zero2.optimizer == 12 * SEVEN.learning(config.lora) // 8
    assert zero3.loaded == alone.weights // 8 and fsdp2.loaded == alone.weights  # FSDP2 splits what each card has loaded
    assert fsdp2.optimizer == 8 * SEVEN.learning(config.lora) // 8 < zero3.optimizer
    assert held(config, Spread("zero3", 1)) == alone


def test_fsdp2_learns_in_float32():
    config, learning = documented(**WHOLE), SEVEN.learning(documented(**WHOLE).lora)
    alone, fsdp2 = held(config), held(config, Spread("fsdp2", 8))
    assert fsdp2.weights == (alone.weights + 2 * learning) // 8
    assert fsdp2.splitting == alone.weights + 2 * learning + fsdp2.weights
    assert fsdp2.gradients == 4 * learning // 8
    eight_bits = documented(**WHOLE, trl={"optim": "adamw_bnb_8bit"})
    assert held(eight_bits, Spread("fsdp2", 8)).optimizer == 2 * learning // 8
    with_reference = held(documented(**WHOLE, beta=0.1), Spread("fsdp2", 8))
    assert with_reference.score == 4 * SEVEN.total() > fsdp2.score and with_reference.reference == alone.weights // 8


def test_while_fsdp2_splits_a_policy_each_card_holds_all_of_it():
    shared = Spread("fsdp2", 8)
    asleep, awake = (
        planning.judge(documented(**WHOLE, vllm_enable_sleep_mode=on), SEVEN, Prompt(), "", H100, shared) for on in (True, False)
    )
    splitting = held(documented(**WHOLE), shared).splitting / GIB
    assert asleep.phases["split"] == pytest.approx(splitting + (footprint.CONTEXT + footprint.ENGINE_ASLEEP) / GIB, abs=0.01)
    assert awake.phases["split"] > asleep.phases["split"] + 0.5 * documented().vllm_gpu_memory_utilization * H100
    assert "split" not in planning.judge(documented(**WHOLE), SEVEN, Prompt(), "", H100, Spread("zero3", 8)).phases


SHARED = {
    # GiB of a card, ranks, the config -> the way to share
    "an adapter is copied": (H100, 8, {}, "ddp"),
    "whole weights are split": (H100, 8, WHOLE, "zero3"),
    "where the optimizer alone is too much": (planning.CARDS["MI300X"][1], 8, WHOLE | {"beta": 0.1}, "zero2"),
    "nothing is enough": (23.5, 8, WHOLE, None),
}


@pytest.mark.parametrize("case", SHARED)
def test_the_first_way_to_share_that_fits_is_taken(case):
    gib, ranks, changes, strategy = SHARED[case]
    assert planning.strategy_that_fits(documented(**changes), gib, ranks, SEVEN) == strategy


def test_what_cannot_be_had_is_left_out():
    assert planning.strategy_that_fits(documented(**WHOLE), H100, 8, SEVEN, among=("ddp", "fsdp2")) == "fsdp2"


def test_the_text_says_how_several_cards_share():
    shown = plan_text.text(planning.plan(documented(**WHOLE), [planning.CARDS["H100"]], known=SEVEN, ranks=8))
    assert "zero3 is the first way to share the trainer that fits" in shown
    assert "100 steps of at most 262,144 tokens" in shown


def test_the_documented_rows_stand_beside_ours():
    edit = configs.check({"run_id": "unit", "task": {"name": "image_edit"}, "renderer": {"name": "qwen_image_edit"}, "use_vllm": False})
    planned = planning.plan(edit, [], known=SEVEN)
    assert plan_text.documented(planned).keys() == plan_text.DOCUMENTED.keys()
    assert plan_text.documented(planned)["DiT"] == pytest.approx(2 * rendered_footprint.QWEN_IMAGE["transformer"] / 1e9)
    assert "DiT 15 and 40.9" in plan_text.text(planned)


def test_an_evaluation_is_a_phase_where_there_is_one():
    scored = documented(use_vllm=False, evaluation={"held_out": 0.1, "batch_size": 64})
    found = planning.judge(scored, SEVEN, Prompt(), "", H100).phases
    assert found["evaluate"] > found["generate"] > found["optimizer"] >= found["save"] > found["load"]
    assert "evaluate" not in planning.judge(documented(), SEVEN, Prompt(), "", H100).phases
    assert found["evaluate"] * GIB > footprint.measure(scored, SEVEN).evaluation
