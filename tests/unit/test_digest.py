"""Covers the digest that says whether two configs describe the same run."""

import pytest

from qwen_vl_grpo import config as configs

HARMLESS = [
    {"max_steps": 7},
    {"save_steps": 7},
    {"logging_steps": 7},
    {"tracking": {"project": "other", "report_to": "none"}},
    {"allow_tight_memory": True},
    {"vllm_server_base_url": "http://10.0.0.2:8000"},
    {"vllm_server_weights": "/mnt/weights"},
]
TELLING = [
    {"run_id": "other"},
    {"seed": 1},
    {"vllm_mode": "server"},
    {"learning_rate": 1e-3},
    {"model_name": "Qwen/Qwen3-VL-4B-Instruct"},
    {"dataset_split": "test"},
    {"lora": {"r": 8}},
    {"rewards": [{"function": "correctness_reward_func"}]},
    {"data": {"max_pixels": 448 * 448}},
    {"evaluation": {"held_out": 0.1}},
    {"task": {"system_prompt": "Answer."}},
    {"trl": {"epsilon": 0.1}},
]


@pytest.mark.parametrize("change", HARMLESS, ids=str)
def test_a_harmless_key_does_not_change_the_digest(config_of, change):
    assert config_of(**change) != config_of()
    assert configs.digest(config_of(**change)) == configs.digest(config_of())


def test_the_harmless_keys_are_the_ones_tried_here():
    assert {key for change in HARMLESS for key in change} == set(configs.HARMLESS_KEYS)


def test_the_number_of_processes_that_prepare_does_not_change_the_digest(config_of):
    assert configs.digest(config_of(data={"workers": 2})) == configs.digest(config_of())


@pytest.mark.parametrize("change", TELLING, ids=str)
def test_any_other_key_changes_the_digest(config_of, change):
    assert configs.digest(config_of(**change)) != configs.digest(config_of())


def test_the_order_of_the_keys_does_not_change_the_digest(config_of):
    assert configs.digest(config_of(seed=3, beta=0.1)) == configs.digest(config_of(beta=0.1, seed=3))
