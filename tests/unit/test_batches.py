"""Covers batches.py and strategies.py: a step on any number of devices, and which runs a way of sharing the weights is right for."""

import json

import pytest

from qwen_vl_grpo import batches, strategies
from qwen_vl_grpo.config import arithmetic, check
from qwen_vl_grpo.errors import ConfigError

ZERO3 = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3", "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true"}
FSDP2 = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}
WHOLE = {"lora": {"enabled": False}, "use_vllm": True}


@pytest.mark.parametrize(
    ("devices", "size", "accumulation"), [(1, 8, 12), (2, 8, 6), (3, 8, 4), (4, 8, 3), (8, 6, 2), (16, 6, 1), (32, 3, 1), (96, 1, 1)]
)
def test_a_step_has_its_prompts_on_any_number_of_devices(config_of, devices, size, accumulation):
    config = batches.fitted(config_of(prompts_per_step=12), devices)
    assert (config.batch_size, config.gradient_accumulation_steps) == (size, accumulation)
    assert "= 96 completions a step = 12 prompts x 8 generations" in arithmetic(config, devices)
    assert batches.fitted(check(config.model_dump(mode="json")), devices) == config


@pytest.mark.parametrize(
    ("devices", "ways"),
    [(5, "into 4 or 6, and on 5 devices 10 or 15 prompts fit"), (97, "into 96, and on 97 devices 97 prompts fit")],
)
def test_a_step_that_does_not_part_is_refused_with_the_nearest_that_do(config_of, devices, ways):
    with pytest.raises(ConfigError, match=f"prompts_per_step 12: its 96 completions do not part into {devices} devices; they do {ways}"):
        batches.fitted(config_of(prompts_per_step=12), devices)


def test_without_prompts_a_step_the_config_stays_as_it_is(config_of):
    assert batches.fitted(config_of(), 7) == config_of()


def test_the_strategy_is_read_from_what_the_launcher_has_set(tmp_path, monkeypatch):
    assert strategies.named({}) == "single"
    assert (strategies.named(ZERO3), strategies.named(FSDP2)) == ("zero3", "fsdp2")
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}), encoding="utf-8")
    assert strategies.named(ZERO3 | {"ACCELERATE_DEEPSPEED_CONFIG_FILE": str(tmp_path / "ds.json")}) == "zero2"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert strategies.named({}) == "ddp"


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [
        *((name, {"lora": lora}) for name in ("single", "ddp", "zero2") for lora in ({}, {"enabled": False}, {"quantization": "4bit"})),
        ("zero3", WHOLE),
        ("fsdp2", WHOLE),
    ],
)
def test_what_a_strategy_is_right_for_starts(config_of, strategy, keys):
    strategies.refuse(config_of(**keys), strategy, True, ZERO3 | FSDP2)


@pytest.mark.parametrize(
    ("strategy", "keys", "said"),
    [
        ("zero3", {}, "lora: .* under zero3.*launch with ddp or zero2"),
        ("fsdp2", {"lora": {"quantization": "4bit"}}, "lora: .* under fsdp2.*launch with ddp or zero2"),
        ("zero3", WHOLE | {"use_vllm": False}, "use_vllm: .*take ddp"),
        ("zero2", WHOLE | {"init_from": "a"}, "init_from: .*launch with ddp"),
        ("zero2", {"warmup": {"dataset_name": "digits"}}, "warmup: cannot run under zero2; .* with init_from"),
        ("fsdp1", WHOLE, "fsdp1 is none of ddp, zero2, zero3 and fsdp2"),
    ],
)
def test_what_a_strategy_would_train_wrongly_is_refused_with_one_that_does_not(config_of, strategy, keys, said):
    with pytest.raises(ConfigError, match=said):
        strategies.refuse(config_of(**keys), strategy, True, ZERO3 | FSDP2)


def test_an_engine_on_more_cards_than_the_launch_has_is_refused_before_it_starts(config_of, monkeypatch):
    config = config_of(use_vllm=True, trl={"vllm_tensor_parallel_size": 2})
    for processes in ("1", "3"):
        monkeypatch.setenv("WORLD_SIZE", processes)
        with pytest.raises(ConfigError, match=f"size 2: an engine takes 2 processes and the run has {processes}; .* a multiple of 2 cards"):
            strategies.refuse_engine(config)
    monkeypatch.setenv("WORLD_SIZE", "4")
    strategies.refuse_engine(config)
    monkeypatch.setenv("WORLD_SIZE", "1")
    strategies.refuse_engine(config_of(use_vllm=True, vllm_mode="server", trl={"vllm_tensor_parallel_size": 2}))


def test_a_sharded_run_is_kept_as_one_model(config_of):
    with pytest.raises(ConfigError, match="set FSDP_STATE_DICT_TYPE=FULL_STATE_DICT"):
        strategies.refuse(config_of(**WHOLE), "fsdp2", True, FSDP2 | {"FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT"})


def test_a_strategy_that_a_cpu_would_pass_over_in_silence_is_refused_there(config_of):
    with pytest.raises(ConfigError, match="zero2 is ddp here; launch with ddp"):
        strategies.refuse(config_of(), "zero2", accelerated=False)
