"""Covers whether a config fits a card, which knob makes it fit, and what `train` refuses before anything is loaded."""

import json
import sys

import pytest

from docs import generate
from qwen_vl_grpo import cli, footprint, hardware, knobs, launch, plan_text, planning, shapes
from qwen_vl_grpo import config as configs
from qwen_vl_grpo.errors import ConfigError, HardwareError
from qwen_vl_grpo.footprint import CONTEXT, GIB, Prompt, measure
from qwen_vl_grpo.hardware import Hardware

SEVEN = shapes.published("Qwen/Qwen2.5-VL-7B-Instruct")
H100 = planning.CARDS["H100"][1]


def documented(**changes):
    return configs.check({"run_id": "unit"} | changes)


def fit(gib, known=SEVEN, prompt=None, **changes):
    return planning.plan(documented(**changes), [("a card", gib)], prompt, known).cards[0]


def test_the_documented_run_fits_the_documented_cards():
    planned = planning.plan(documented(), planning.CARDS.values(), known=SEVEN)
    assert {card.card: card.fits for card in planned.cards} == {
        "MI300X 192 GB": True, "H200 141 GB": True, "H100 80 GB": True, "24 GB": False,
    }  # fmt: skip
    assert all(not card.knobs for card in planned.cards if card.fits)


@pytest.mark.parametrize(("run", "card", "changes", "text", "measured"), generate.MEASURED)
def test_the_peak_of_a_measured_run_was_predicted_within_five_percent(run, card, changes, text, measured):
    assert generate.predicted(changes, card, text) == pytest.approx(measured, rel=0.05)


def test_what_vllm_refuses_at_its_start_does_not_fit():
    held = measure(documented(), SEVEN)
    largest = 1 - (CONTEXT + held.weights + held.adapter) / GIB / H100
    above = fit(H100, vllm_gpu_memory_utilization=largest + 0.001)
    assert above.reason.startswith("vLLM refuses to start: its 63.")
    below = fit(H100, vllm_gpu_memory_utilization=largest - 0.001)
    assert not below.reason.startswith("vLLM refuses to start")
    assert below.reason.startswith("generate takes")  # the optimizer comes after the start


def test_a_cache_that_holds_no_sequence_of_the_context_does_not_fit():
    found = fit(24, known=shapes.published("Qwen/Qwen3-VL-2B-Instruct"), vllm_gpu_memory_utilization=0.5)
    assert "KV cache hold no sequence of its context, 262,144" in found.reason
    assert found.knobs == {"vllm_max_model_length": 1792}  # 256 + 980 + 512, to a multiple of 256


def test_full_length_sequences_at_once_are_what_the_cache_holds():
    found = fit(H100)
    assert found.kv_sequences == found.kv_tokens // 2048 > 100


TURNS = {
    # GiB of the card, the config, the keys of the knobs
    "a smaller share": (H100, {"vllm_gpu_memory_utilization": 0.95}, ["vllm_gpu_memory_utilization"]),
    "a larger share": (H100, {"vllm_gpu_memory_utilization": 0.2}, ["vllm_gpu_memory_utilization"]),
    "smaller micro-steps": (H100, {"batch_size": 64}, ["batch_size", "gradient_accumulation_steps"]),
    "checkpointing": (H100, {"gradient_checkpointing": False, "batch_size": 7, "num_generations": 7}, ["gradient_checkpointing"]),
    "sleep": (
        44,
        {
            "vllm_enable_sleep_mode": False, "vllm_gpu_memory_utilization": 0.55, "batch_size": 1, "gradient_accumulation_steps": 8,
            "data": {"max_pixels": 3_000_000},
        },
        ["vllm_enable_sleep_mode"],
    ),
    "an adapter": (H100, {"lora": {"enabled": False}, "beta": 0.1}, ["lora.enabled"]),
    "four bits": (34, {}, ["lora.quantization"]),
    "several": (28, {}, ["vllm_gpu_memory_utilization", "vllm_max_model_length", "lora.quantization"]),
    "shorter completions": (
        H100,
        {"use_vllm": False, "batch_size": 1, "num_generations": 32, "gradient_accumulation_steps": 32, "max_completion_length": 65536},
        ["max_completion_length"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("turn", TURNS)
def test_the_knobs_that_are_named_make_it_fit_as_set_would(turn, write_yaml):
    gib, changes, expected = TURNS[turn]
    found = fit(gib, **changes)
    assert not found.fits
    assert list(found.knobs) == expected
    path = write_yaml(json.dumps({"run_id": "unit"} | changes))
    config = configs.load(path, [f"{key}={json.dumps(value)}" for key, value in found.knobs.items()])
    assert planning.judge(config, SEVEN, Prompt(), "", gib).fits
    assert config == knobs.changed(documented(**changes), found.knobs)


def test_smaller_micro_steps_leave_the_step_as_it_is():
    found = fit(H100, batch_size=64, gradient_accumulation_steps=2).knobs
    assert found["batch_size"] * found["gradient_accumulation_steps"] == 128


def test_none_of_several_knobs_could_be_left_out():
    found = fit(28).knobs
    for left_out in found:
        config = knobs.changed(documented(), {key: value for key, value in found.items() if key != left_out})
        assert not planning.judge(config, SEVEN, Prompt(), "", 28).fits


def test_where_no_knob_is_enough_none_is_named():
    found = fit(23.5, known=shapes.published("Qwen/Qwen2.5-VL-72B-Instruct"))
    assert found.knobs == {}
    assert "no knob is enough" in plan_text.text(planning.plan(documented(model_name="Qwen/Qwen2.5-VL-72B-Instruct"), [("small", 23.5)]))


def test_the_text_names_the_source_of_the_shapes_and_what_is_estimated():
    shown = plan_text.text(planning.plan(documented(), [("a card", 28)], known=SEVEN))
    assert "8,292,166,656 weights, read from the kept shapes of Qwen/Qwen2.5-VL-7B; 40,370,176 learn" in shown
    assert "estimated, GiB: activations scoring" in shown
    assert "turn first: --set vllm_gpu_memory_utilization=" in shown
    tied = planning.plan(documented(), [], known=shapes.published("Qwen/Qwen2.5-VL-3B"))
    assert "head tied" in plan_text.text(tied)


@pytest.mark.parametrize("name", ["h100", "H100"])
def test_a_card_is_named_or_given_in_gib(name):
    assert planning.named(name) == ("H100 80 GB", 79.1)
    assert planning.named("44.5") == ("44.5 GiB", 44.5)


@pytest.mark.parametrize("name", ["H900", "-3", "nan", "inf", ""])
def test_a_card_that_is_none_is_refused_with_those_there_are(name):
    with pytest.raises(ConfigError, match="name one of MI300X, H200, H100, 24GB, or give the GiB"):
        planning.named(name)


REFUSED = {
    "too large a share": (H100, {"vllm_gpu_memory_utilization": 0.9}, r"takes 71\.2 of this card's 79\.1 GiB .* set it to 0\.79 at most"),
    "too small a share": (H100, {"vllm_gpu_memory_utilization": 0.1}, r"which do not hold vLLM's copy of the weights, 15\.4 GiB"),
    "no share at all": (23.5, {}, r"no share of this card's 23\.5 GiB is enough: the trainer holds 15\.9 GiB"),
    "the optimizer": (H100, {"lora": {"enabled": False}}, r"what learns 28\.4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_share_that_cannot_be_had_beside_the_trainer_is_refused_in_one_sentence(case):
    gib, changes, said = REFUSED[case]
    with pytest.raises(HardwareError, match=said) as error:
        planning.refuse(documented(**changes), gib)
    assert str(error.value).startswith("run unit: vllm_gpu_memory_utilization ")
    assert "\n" not in str(error.value)


def test_the_highest_share_that_a_refusal_names_is_not_refused():
    assert planning.refuse(documented(vllm_gpu_memory_utilization=0.79), H100) is None
    with pytest.raises(HardwareError):
        planning.refuse(documented(vllm_gpu_memory_utilization=0.8), H100)


@pytest.mark.parametrize(
    "changes",
    [
        {"use_vllm": False},
        {"vllm_mode": "server"},
        {"trl": {"vllm_tensor_parallel_size": 2}},
        {"trl": {"deepspeed": "zero3.json"}},
        {"model_name": "someone/else"},
    ],
)
def test_what_cannot_be_known_here_is_not_refused(changes):
    assert planning.refuse(documented(vllm_gpu_memory_utilization=0.95, **changes), 20.0) is None


@pytest.mark.parametrize("variable", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"])
def test_a_sharded_launch_is_not_refused(monkeypatch, variable):
    monkeypatch.setenv(variable, "true")
    assert planning.refuse(documented(), 20.0) is None


TIGHT = {
    # the config, the longest prompt, what is said
    "an engine that stays awake": (
        {"vllm_enable_sleep_mode": False, "vllm_gpu_memory_utilization": 0.75},
        4096,
        r"backward takes \d+\.\d GiB; turn first: --set ",
    ),
    "an engine that sleeps": (
        {"vllm_gpu_memory_utilization": 0.79},
        512,
        r"generate takes 8\d\.\d GiB; turn first: --set vllm_gpu",
    ),
}


@pytest.mark.parametrize("case", TIGHT)
def test_what_does_not_fit_by_the_estimates_is_refused_with_the_knob_to_turn(case):
    changes, longest, said = TIGHT[case]
    config = documented(**changes)
    assert planning.refuse(config, H100) is None  # by the exact counts alone it could be
    with pytest.raises(HardwareError, match=said) as error:
        planning.refuse_tight(config, H100, longest)
    assert "\n" not in str(error.value)
    turned = str(error.value).split("turn first: ")[1].split(", or set")[0].replace("--set ", "").split()
    raw = {"run_id": "unit"} | changes
    for key, _, value in (change.partition("=") for change in turned):
        raw[key] = json.loads(value)
    assert planning.refuse_tight(configs.check(raw), H100, longest) is None


@pytest.mark.parametrize("strategy", ["zero2", "zero3", "fsdp2"])
def test_a_split_trainer_is_judged_by_its_share(monkeypatch, strategy):
    whole = documented(lora={"enabled": False}, use_vllm=False)
    for name, value in (launch.TOLD[strategy] | {"WORLD_SIZE": "8"}).items():
        monkeypatch.setenv(name, value)
    planning.refuse_tight(whole, 60.0, 1500)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(HardwareError, match=r"does not fit this card's 60\.0 GiB by `grpo plan`, with prompts of up to 1500 tokens"):
        planning.refuse_tight(whole, 60.0, 1500)


@pytest.mark.parametrize(("run", "card", "changes", "text", "measured"), generate.MEASURED)
def test_what_has_run_is_not_refused(run, card, changes, text, measured):
    config, gib = configs.check({"run_id": "measured", "data": {"max_pixels": 448 * 448}} | changes), planning.CARDS[card][1]
    assert planning.refuse(config, gib) is None
    assert planning.refuse_tight(config, gib, text + 256) is None


def test_the_documented_run_fits_the_cards_that_it_was_written_for():
    for gib in (H100, planning.CARDS["H200"][1], planning.CARDS["MI300X"][1]):
        assert planning.refuse_tight(documented(), gib, 1500) is None


OCCUPIED = {
    # what others hold, who, the config, what is said
    "one": (30.0, (4711,), {}, r"another process holds 30\.0 of this card's 79\.1 GiB \(pid 4711\), and the run needs 71\.9 \("),
    "two": (30.0, (1, 22), {}, r"other processes hold 30\.0 .* \(pid 1, 22\)"),
    "a container hides who": (30.0, (), {}, r"another process holds 30\.0 of this card's 79\.1 GiB, and"),
    "no engine": (70.0, (), {"use_vllm": False}, r"the run needs 16\.5 \(16\.5 for the trainer, 0\.0 for vLLM\)"),
}


@pytest.mark.parametrize("case", OCCUPIED)
def test_a_card_that_another_process_fills_is_refused_in_one_sentence(case):
    held, processes, changes, said = OCCUPIED[case]
    config = documented(**changes)
    with pytest.raises(HardwareError, match=said) as error:
        planning.refuse_occupied(config, H100, held, processes)
    assert "\n" not in str(error.value)
    needs = 71.9 if config.use_vllm else 16.5
    assert planning.refuse_occupied(config, H100, H100 - needs - 0.1, processes) is None


def test_what_an_idle_card_holds_is_no_other_process():
    assert planning.refuse_occupied(documented(vllm_gpu_memory_utilization=0.99), H100, 0.4) is None


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A machine with a GPU and vLLM, as far as the early refusals look."""
    monkeypatch.setattr(hardware, "detect", lambda: Hardware("cuda", 1, "NVIDIA L4", 8))
    monkeypatch.setattr(hardware, "require", lambda config, machine: None)
    monkeypatch.setattr(hardware, "torch_build", lambda: ("cuda", "13.0"))
    monkeypatch.setattr(hardware, "memory_gib", lambda machine: 22.0)
    monkeypatch.setattr(hardware, "occupied", lambda machine: (21.0, (7,)))


def test_train_refuses_the_share_before_the_model_loads(on_a_gpu, write_yaml):
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "--config", str(write_yaml("run_id: too-much\n"))])
    assert str(end.value).startswith("error: run too-much: vllm_gpu_memory_utilization 0.7: no share of this card's 22.0 GiB is enough")


def test_train_refuses_a_card_that_another_run_fills_before_the_model_loads(on_a_gpu, write_yaml):
    small = "run_id: second\nmodel_name: Qwen/Qwen3-VL-2B-Instruct\nvllm_gpu_memory_utilization: 0.5\n"
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "--config", str(write_yaml(small))])
    assert str(end.value).startswith("error: run second: another process holds 21.0 of this card's 22.0 GiB (pid 7), and the run needs")


def test_a_refusal_for_memory_can_be_overruled(on_a_gpu, write_yaml, monkeypatch):
    monkeypatch.setattr(hardware, "quiet_libraries", lambda: sys.exit("past the refusals"))
    with pytest.raises(SystemExit, match="past the refusals"):
        cli.main(["train", "--config", str(write_yaml("run_id: stubborn\n")), "--set", "allow_tight_memory=true"])


def test_plan_shows_the_card_of_this_machine(on_a_gpu, write_yaml, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["plan", "--config", str(write_yaml("run_id: here\n")), "--json"])
    assert end.value.code == 0
    assert json.loads(capsys.readouterr().out)["cards"][-1]["card"] == "here: NVIDIA L4"


@pytest.mark.parametrize(("card", "code"), [("H100", 0), ("24GB", 1)])
def test_plan_exits_with_1_where_the_named_card_is_too_small(write_yaml, capsys, card, code):
    with pytest.raises(SystemExit) as end:
        cli.main(["plan", "--config", str(write_yaml("run_id: named\n")), "--card", card, "--json"])
    assert end.value.code == code
    cards = json.loads(capsys.readouterr().out)["cards"]
    assert [found["fits"] for found in cards] == [code == 0]


def test_automatic_checkpointing_recomputes_no_more_layers_than_the_card_needs():
    def layers(gib, **changes):
        return footprint.recomputed_layers(planning.settled(documented(**changes), SEVEN, Prompt(), gib), SEVEN)

    assert layers(191.7) == 0
    assert 0 < layers(79.1) < SEVEN.layers
    assert layers(23.5) == SEVEN.layers
    assert layers(79.1, batch_size=4) < layers(79.1)
    assert layers(191.7, gradient_checkpointing=True) == SEVEN.layers
    assert layers(23.5, gradient_checkpointing=False) == 0
    assert layers(23.5, gradient_checkpointing=1) == 1


def test_what_automatic_checkpointing_keeps_leaves_a_share_of_the_card():
    settled = planning.settled(documented(), SEVEN, Prompt(), 79.1)
    one_less = settled.model_copy(update={"gradient_checkpointing": settled.gradient_checkpointing - 1})

    def used(config):
        return footprint.phases(measure(config, SEVEN, Prompt()), config, 79.1 * GIB)["backward"] / GIB

    assert used(settled) <= (1 - planning.TO_SPARE) * 79.1 < used(one_less)
