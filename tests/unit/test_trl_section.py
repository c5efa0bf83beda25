"""Covers the `trl:` section of a config: it repeats no key of ours and lets no truncated sampler in."""

import pytest

from qwen_vl_grpo import config as configs
from qwen_vl_grpo.errors import ConfigError

TRUNCATED = [("top_p", 0.9), ("top_k", 50), ("min_p", 0.05)]


@pytest.mark.parametrize("key", configs.TRL_KEYS)
def test_a_key_that_a_key_of_ours_sets_is_refused_with_its_name(config_of, key):
    with pytest.raises(ConfigError) as error:
        config_of(trl={key: 1})
    assert f"trl: {key} repeats the key {configs.TRL_KEYS[key]!r}" in str(error.value)


def test_any_other_key_is_handed_on(config_of):
    assert config_of(trl={"epsilon_high": 0.28}).trl == {"epsilon_high": 0.28}


@pytest.mark.parametrize(("key", "value"), TRUNCATED)
def test_a_truncated_sampler_is_refused_with_the_reason_and_the_way_out(config_of, key, value):
    with pytest.raises(ConfigError, match=rf"trl\.{key}: .*every ratio is biased.*allow_biased_sampling"):
        config_of(trl={key: value})


@pytest.mark.parametrize(("key", "value"), TRUNCATED)
def test_a_truncated_sampler_may_not_hide_in_generation_kwargs(config_of, key, value):
    with pytest.raises(ConfigError, match="allow_biased_sampling"):
        config_of(trl={"generation_kwargs": {key: value}})


@pytest.mark.parametrize(("key", "value"), TRUNCATED)
def test_a_truncated_sampler_is_taken_from_someone_who_asks_for_it(config_of, key, value):
    assert config_of(trl={key: value}, allow_biased_sampling=True).trl == {key: value}


@pytest.mark.parametrize(("key", "value"), [("top_p", 1), ("top_p", 1.0), ("top_k", 0), ("top_k", -1), ("min_p", None), ("min_p", 0.0)])
def test_a_sampler_that_is_spelt_out_as_off_is_no_truncation(config_of, key, value):
    assert config_of(trl={key: value}).trl == {key: value}


@pytest.mark.parametrize("key", sorted(configs.ENGINE_KEYS))
def test_the_engine_section_repeats_no_key_of_ours(config_of, key):
    with pytest.raises(ConfigError, match=f"engine: {key} repeats the key '{configs.ENGINE_KEYS[key]}'"):
        config_of(engine={key: 1})
