"""Covers what a process holds by phase: exact for what decides a refusal, near what real models keep for activations."""

import pytest

from benchmarks import activations
from qwen_vl_grpo import config as configs
from qwen_vl_grpo import footprint, shapes
from qwen_vl_grpo.footprint import GIB, Prompt

SEVEN = shapes.published("Qwen/Qwen2.5-VL-7B-Instruct")


def documented(**changes):
    return configs.check({"run_id": "unit", "lora": {"r": 16}} | changes)


def held(prompt=None, known=SEVEN, **changes):
    return footprint.measure(documented(**changes), known, prompt)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen2_vl", {}),
        ("qwen2_5_vl", {}),
        ("qwen3_vl", {}),
        ("qwen2_5_vl", {"gradient_checkpointing": False}),
        ("qwen2_5_vl", {"gradient_checkpointing": 3}),
        ("qwen3_vl", {"gradient_checkpointing": 4}),
        ("qwen2_5_vl", {"lora": {"r": 4, "vision": True}, "gradient_checkpointing": False}),
        ("qwen3_vl", {"lora": {"enabled": False}}),
    ],
)
def test_activations_are_near_what_a_real_model_keeps(family, changes):
    for counted, estimated in activations.count(family, activations.run_config(**changes)).values():
        assert estimated == pytest.approx(counted, rel=0.12)


def test_an_adapter_learns_in_float32_with_two_adam_states():
    learning = SEVEN.learning(documented().lora)
    assert (held().adapter, held().gradients, held().optimizer) == (4 * learning, 4 * learning, 8 * learning)
    assert held().weights == held().engine_weights == 2 * SEVEN.total()


def test_an_adapter_on_four_bits_learns_in_bfloat16():
    learning = SEVEN.learning(documented().lora)
    qlora = held(lora={"quantization": "4bit"})
    assert (qlora.adapter, qlora.optimizer) == (2 * learning, 4 * learning)
    assert qlora.weights == SEVEN.base_bytes(documented(lora={"quantization": "4bit"}).lora, 2) < held().weights / 2


@pytest.mark.parametrize(("dtype", "width"), [("auto", 2), ("bfloat16", 2), ("float32", 4)])
def test_full_fine_tuning_learns_in_the_type_of_its_weights(dtype, width):
    full = held(lora={"enabled": False}, dtype=dtype)
    learning = SEVEN.learning(documented(lora={"enabled": False}).lora)
    assert (full.weights, full.adapter, full.optimizer) == (width * SEVEN.total(), 0, 2 * width * learning)


@pytest.mark.parametrize(("optimizer", "bytes_a_weight"), [("adamw_torch_fused", 8), ("adamw_8bit", 2), ("adafactor", 0)])
def test_the_states_of_adam_are_counted_in_the_width_that_they_have(optimizer, bytes_a_weight):
    assert held(trl={"optim": optimizer}).optimizer == bytes_a_weight * SEVEN.learning(documented().lora)


def test_a_reference_model_is_a_second_copy_in_full_fine_tuning_only():
    assert held(beta=0.1).reference == held(lora={"enabled": False}).reference == 0
    assert held(beta=0.1, lora={"enabled": False}).reference == 2 * SEVEN.total()


@pytest.mark.parametrize(
    ("name", "width"), [("Qwen/Qwen2.5-VL-7B", 57344), ("Qwen/Qwen2.5-VL-3B", 36864), ("Qwen/Qwen3-VL-8B", 2 * 36 * 8 * 128 * 2)]
)
def test_a_token_of_kv_cache_is_a_key_and_a_value_in_every_layer(name, width):
    known = shapes.published(name)
    assert held(known=known).kv_token == width
    assert held(known=known, engine={"kv_cache_dtype": "fp8"}).kv_token == width / 2


def test_the_kv_cache_has_what_the_weights_leave_of_the_share():
    config, share = documented(vllm_gpu_memory_utilization=0.5), 40 * GIB
    left = share - 2 * SEVEN.total() - footprint.ENGINE_WORKSPACE
    assert footprint.kv_tokens(footprint.measure(config, SEVEN), config, 80 * GIB) == left // 57344
    assert footprint.kv_tokens(footprint.measure(config, SEVEN), config, 20 * GIB) == 0


def test_logits_of_all_tokens_never_exist():
    def of(vocabulary):
        text = dict.fromkeys(shapes.TEXT_KEYS, 64) | {"vocab_size": vocabulary, "num_hidden_layers": 1}
        return held(known=shapes.read({"model_type": "qwen2_5_vl", "text_config": text}, ""))

    assert of(10**7).backward == of(10**5).backward
    tokens = of(10**5).sequences * documented().max_completion_length
    narrower = of(footprint.VOCABULARY_TILE).logits - of(400).logits
    assert narrower == 2 * tokens * (footprint.VOCABULARY_TILE - 400), "a vocabulary that is no tile wide takes none"


def test_a_micro_step_of_half_the_sequences_keeps_half():
    whole, half = held(batch_size=16), held(batch_size=8, gradient_accumulation_steps=4)
    assert (whole.completions, half.completions) == (32, 32)
    assert half.backward == pytest.approx(whole.backward / 2, rel=0.02)


def test_checkpointing_keeps_a_fraction():
    assert held(gradient_checkpointing=True).backward < held(gradient_checkpointing=False).backward / 5


def test_a_prompt_is_its_text_and_its_pictures_within_the_context():
    assert held(Prompt(100, 2), data={"max_pixels": 448 * 448}).prompt_tokens == 100 + 2 * 256
    assert held(Prompt(5000, 1), vllm_max_model_length=2048).sequence == 2048


@pytest.mark.parametrize(("settings", "completions"), [({}, 16), ({"steps_per_generation": 4}, 32), ({"generation_batch_size": 64}, 64)])
def test_completions_at_once_follow_trl(settings, completions):
    assert held(trl=settings).completions == completions


def test_the_engine_is_beside_the_trainer_when_it_starts_and_generates_and_sleeps_when_it_may():
    card, config = 100 * GIB, documented(vllm_gpu_memory_utilization=0.5)
    measured = footprint.measure(config, SEVEN)
    asleep = footprint.phases(measured, config, card)
    assert asleep["start"] == footprint.CONTEXT + measured.weights + measured.adapter + 50 * GIB
    assert asleep["generate"] == asleep["start"] + measured.optimizer + footprint.ENGINE_AWAKE
    assert asleep["save"] == footprint.CONTEXT + measured.resident + footprint.ENGINE_ASLEEP
    assert asleep["backward"] == asleep["save"] + measured.pictures + measured.gradients + measured.backward
    awake = footprint.phases(measured, documented(vllm_gpu_memory_utilization=0.5, vllm_enable_sleep_mode=False), card)
    assert awake["backward"] == asleep["backward"] + 50 * GIB + footprint.ENGINE_AWAKE - footprint.ENGINE_ASLEEP
    assert awake["generate"] == asleep["generate"]


@pytest.mark.parametrize("changes", [{"use_vllm": False}, {"vllm_mode": "server"}])
def test_without_an_engine_here_no_share_is_taken(changes):
    config = documented(**changes)
    measured = footprint.measure(config, SEVEN)
    assert measured.engine_weights == 0
    assert footprint.phases(measured, config, 80 * GIB) == footprint.phases(measured, config, 800 * GIB)
    assert (measured.generation > 0) == (not config.use_vllm)
