"""Covers how many completions and prompts a step holds, and which groups do not fit into it."""

import pytest

from qwen_vl_grpo import config as configs
from qwen_vl_grpo.errors import ConfigError


def test_the_documented_run_learns_from_two_prompts_a_step():
    assert configs.arithmetic(configs.check({"run_id": "v1-baseline"})) == (
        "8 completions a device x 2 accumulation x 1 device(s) = 16 completions a step = 2 prompts x 8 generations; "
        "100 steps = 1600 completions"
    )


def test_every_device_of_a_launch_adds_its_completions(config_of, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert "x 4 device(s) = 64 completions a step = 8 prompts x 8" in configs.arithmetic(config_of())


def test_the_number_of_devices_can_be_given(config_of):
    assert "x 2 device(s) = 32 completions a step" in configs.arithmetic(config_of(), devices=2)


@pytest.mark.parametrize("keys", [{"batch_size": 6, "gradient_accumulation_steps": 1}, {"num_generations": 7}, {"num_generations": 32}])
def test_groups_that_do_not_fit_into_a_step_are_refused_with_the_way_out(config_of, keys):
    with pytest.raises(ConfigError, match=r"num_generations: groups of .* do not divide .*; change batch_size"):
        configs.arithmetic(config_of(**keys))


def test_devices_can_make_a_group_fit(config_of):
    keys = {"batch_size": 2, "gradient_accumulation_steps": 1, "num_generations": 8}
    assert "= 8 completions a step = 1 prompts x 8" in configs.arithmetic(config_of(**keys), devices=4)


def test_a_longer_generation_window_leaves_the_step_as_it_is(config_of):
    assert "= 16 completions a step = 2 prompts x 8" in configs.arithmetic(config_of(trl={"steps_per_generation": 4}))


def test_a_generation_window_too_short_for_a_group_is_refused_by_its_own_name(config_of):
    with pytest.raises(ConfigError, match="steps_per_generation"):
        configs.arithmetic(config_of(batch_size=4, gradient_accumulation_steps=2, trl={"steps_per_generation": 1}))


def test_a_generation_batch_that_splits_a_group_is_refused_by_its_own_name(config_of):
    with pytest.raises(ConfigError, match="generation_batch_size"):
        configs.arithmetic(config_of(trl={"generation_batch_size": 12}))


def test_a_step_of_eight_gpus_is_told_what_makes_it_fit_on_one(config_of):
    config = config_of(batch_size=1, gradient_accumulation_steps=2)
    assert "x 8 device(s) = 16 completions a step = 2 prompts x 8" in configs.arithmetic(config, devices=8)
    with pytest.raises(ConfigError, match=r"gradient_accumulation_steps=8 makes it one here, and 4 devices .*--num_processes 4"):
        configs.arithmetic(config)
    assert configs.arithmetic(config_of(batch_size=1, gradient_accumulation_steps=8))


def test_a_look_at_a_run_counts_the_devices_that_it_needs(config_of, monkeypatch):
    config = config_of(batch_size=1, gradient_accumulation_steps=2)
    assert "x 4 device(s) = 8 completions a step = 1 prompts x 8" in configs.elsewhere(config)
    assert configs.elsewhere(config_of()) == configs.arithmetic(config_of())
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert "x 8 device(s) = 16 completions a step" in configs.elsewhere(config)
    with pytest.raises(ConfigError, match="generation_batch_size"):
        configs.elsewhere(config_of(trl={"generation_batch_size": 12}))
