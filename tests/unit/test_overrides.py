"""Covers `--set`: how a value is read, where it goes, and what is refused."""

import pytest

from qwen_vl_grpo import config as configs
from qwen_vl_grpo.errors import ConfigError


def value_at(config, dotted):
    value = config.model_dump()
    for part in dotted.split("."):
        value = value[part]
    return value


@pytest.mark.parametrize(
    ("override", "where", "value"),
    [
        ("learning_rate=1.0e-5", "learning_rate", 1e-5),
        ("learning_rate=1e-5", "learning_rate", 1e-5),
        ("run_id=v2-lr", "run_id", "v2-lr"),
        ("use_vllm=false", "use_vllm", False),
        ("lora.r=32", "lora.r", 32),
        ("evaluation.dataset_split=test", "evaluation.dataset_split", "test"),
        ("data.limit=null", "data.limit", None),
        ("tracking.tags=[a, b]", "tracking.tags", ("a", "b")),
        ("trl.warmup_steps=5", "trl.warmup_steps", 5),
        ("task.system_prompt=a=b", "task.system_prompt", "a=b"),
        ("rewards=[{function: correctness_reward_func, weight: 2}]", "rewards", ({"function": "correctness_reward_func", "weight": 2.0},)),
    ],
)
def test_a_value_is_read_as_yaml_and_put_in_its_place(write_yaml, override, where, value):
    assert value_at(configs.load(write_yaml("run_id: a\ndata: {limit: 3}\n"), [override]), where) == value


def test_an_override_leaves_its_neighbours_alone(write_yaml):
    loaded = configs.load(write_yaml("run_id: a\nlora: {alpha: 64, r: 8}\n"), ["lora.r=4"])
    assert (loaded.lora.r, loaded.lora.alpha) == (4, 64)


def test_the_last_of_two_overrides_wins(write_yaml):
    assert configs.load(write_yaml("run_id: a\n"), ["seed=1", "seed=2"]).seed == 2


def test_a_section_that_the_file_leaves_empty_can_be_filled(write_yaml):
    assert configs.load(write_yaml("run_id: a\nlora:\n"), ["lora.r=4"]).lora.r == 4


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("lora.r", "write --set key=value"),
        ("=3", "write --set key=value"),
        ("seed.x=1", "seed is a value, not a section"),
        ("tracking.tags=[a", "not valid YAML"),
        ("learning_rat=1", "did you mean 'learning_rate'"),
        ("lora.rank=1", "unknown key 'lora.rank'"),
        ("run_id=../x", "is not a run id"),
    ],
)
def test_an_override_that_cannot_be_used_is_refused(write_yaml, override, said):
    with pytest.raises(ConfigError, match=said):
        configs.load(write_yaml("run_id: a\nseed: 0\n"), [override])
