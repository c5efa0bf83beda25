"""Covers the digest that says whether two configs describe the same run."""

import pytest

from qwen_vl_grpo import identity
from qwen_vl_grpo.errors import ConfigError

HARMLESS = [
    {"max_steps": 7},
    {"save_steps": 7},
    {"save_total_limit": 7},
    {"keep_best": "reward"},
    {"logging_steps": 7},
    {"tracking": {"project": "other", "report_to": "none"}},
    {"alarms": {"stop": ["kl"]}},
    {"allow_tight_memory": True},
    {"data": {"workers": 2}},
    {"registry": {"push": "end"}},
    {"registry": {"public": True}},
    {"vllm_server_base_url": "http://10.0.0.2:8000"},
    {"vllm_server_weights": "/mnt/weights"},
    {"renderer": {"batch_size": 8}},
    {"renderer": {"offload": "asleep"}},
    {"renderer": {"compile": True}},
    {"judge": {"concurrency": 2}},
    {"judge": {"attempts": 1}},
    {"judge": {"most_failures": 0.5}},
    {"judge": {"cache": "judged.sqlite"}},
    {"judge": {"replay": "only"}},
    {"judge": {"base_url": "http://127.0.0.1:8000/v1"}},
    {"judge": {"timeout": 10.0}},
    {"judge": {"requests_per_minute": 500}},
    {"judge": {"tokens_per_minute": 30_000}},
    {"judge": {"breaker_failures": 3}},
    {"judge": {"breaker_pause": 5.0}},
    {"judge": {"input_price": 2.5}},
    {"judge": {"output_price": 10.0}},
    {"judge": {"most_cost": 100.0, "input_price": 2.5}},
    {"judge": {"most_tokens": 1_000_000}},
    {"judge": {"spending": "spending.json"}},
    {"placement": {"renderer": "cuda:1"}},
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
    {"renderer": {"steps": 20}},
    {"judge": {"low": 0.1}},
    {"judge": {"votes": 3}},
    {"penalties": {"copying": 0.1}},
]


@pytest.mark.parametrize("change", HARMLESS, ids=str)
def test_a_harmless_key_does_not_change_the_digest(config_of, change):
    without = config_of(**{key: {} for key in ("renderer", "judge") if key in change})
    assert config_of(**change) != without
    assert identity.digest(config_of(**change)) == identity.digest(without)


def test_the_harmless_keys_are_the_ones_tried_here():
    tried = {
        f"{key}.{next(iter(value))}" if key in ("data", "registry", "renderer", "judge") else key
        for change in HARMLESS
        for key, value in change.items()
    }
    assert tried == set(identity.HARMLESS_KEYS)


@pytest.mark.parametrize("change", TELLING, ids=str)
def test_any_other_key_changes_the_digest(config_of, change):
    assert identity.digest(config_of(**change)) != identity.digest(config_of())


def test_the_order_of_the_keys_does_not_change_the_digest(config_of):
    assert identity.digest(config_of(seed=3, beta=0.1)) == identity.digest(config_of(beta=0.1, seed=3))


def test_the_keys_that_differ_are_named_with_their_section_and_the_harmless_ones_are_not(config_of):
    other = config_of(seed=1, max_steps=7, lora={"r": 8}, trl={"epsilon": 0.1}, data={"columns": {"answer": "gold"}})
    assert identity.differences(config_of(), other) == ["data.columns", "data.columns.answer", "lora.r", "seed", "trl", "trl.epsilon"]
    assert identity.differences(other, other.model_copy(update={"max_steps": 8})) == []


def test_a_harmless_key_may_lie_in_a_section_and_may_be_one_that_is_not_there(config_of, monkeypatch):
    monkeypatch.setattr(identity, "HARMLESS_KEYS", ("data.limit", "data.absent", "absent.key"))
    one, other = config_of(data={"limit": 3}), config_of(data={"limit": 4})
    assert identity.differences(one, other) == []
    assert identity.digest(one) == identity.digest(other)
    assert identity.differences(one, config_of(data={"limit": 3, "max_pixels": 448 * 448})) == ["data.max_pixels"]


@pytest.mark.parametrize(
    ("save_steps", "trl"), [(3, {"steps_per_generation": 4}), (1, {"num_iterations": 2}), (2, {"steps_per_generation": 3})]
)
def test_a_save_between_two_generations_is_refused(config_of, save_steps, trl):
    with pytest.raises(ConfigError, match="falls between two generations"):
        config_of(save_steps=save_steps, gradient_accumulation_steps=2, trl=trl)
    config_of(save_steps=6, gradient_accumulation_steps=2, trl=trl)
