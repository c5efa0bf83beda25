"""Covers `grpo doctor --rollouts` on the real engine: what passes, what it measures, and an engine that ignores the adapter."""

import pytest

from qwen_vl_grpo import engine_check, rollouts
from qwen_vl_grpo.errors import ConfigError, RolloutError


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
def test_a_sound_engine_follows_a_policy_that_moves_and_comes_back(config_of, lora):
    figures = engine_check.rollouts(config_of(lora=lora))
    assert list(figures) == ["at the start", "after a sleep and a wake", "with a policy that moved", "moved back"]
    assert all(figure["parity/pictures"] < 1e-5 for figure in figures.values())
    assert figures["with a policy that moved"]["shift"] > 1e-3


def test_an_engine_that_ignores_the_adapter_is_found(config_of, monkeypatch):
    def base_only(model):
        for name, weight in model.named_parameters():
            if "lora_" not in name:
                yield name.replace(".base_layer", "").removeprefix("base_model.model."), weight

    monkeypatch.setattr(rollouts, "merged_weights", base_only)
    with pytest.raises(RolloutError, match=r"with a policy that moved: .* weights are not the policy's"):
        engine_check.rollouts(config_of())


def test_a_config_without_an_engine_has_nothing_to_check(config_of):
    with pytest.raises(ConfigError, match="use_vllm is false"):
        engine_check.rollouts(config_of(use_vllm=False))
