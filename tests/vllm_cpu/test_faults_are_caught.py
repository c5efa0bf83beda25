"""Covers the gate's teeth: each fault that peers were burned by is injected, and the gate stops the run."""

import pytest
import torch

from qwen_vl_grpo import parity, rollouts
from qwen_vl_grpo.errors import RolloutError


def push(model, part, size=0.3):
    """Move the policy far enough that old weights or old picture embeddings must show."""
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        if part in name:
            weight.data.add_(torch.randn_like(weight) * size)


def test_a_sound_engine_passes_after_the_policy_moved(trainer_of):
    trainer, samples = trainer_of()
    push(trainer.model, "lora_B")
    parity.check(trainer, samples, "now")


def test_stale_weights(trainer_of, monkeypatch):
    trainer, samples = trainer_of()
    parity.check(trainer, samples, "now")
    monkeypatch.setattr(rollouts.FaithfulGeneration, "sync_weights", lambda self: None)
    push(trainer.model, "lora_B")
    with pytest.raises(RolloutError, match="weights are not the policy's"):
        parity.check(trainer, samples, "now")


def test_stale_picture_embeddings(trainer_of, monkeypatch):
    trainer, samples = trainer_of(lora=False)
    parity.check(trainer, samples, "now")
    monkeypatch.setattr(type(trainer.vllm_generation.llm.llm_engine), "reset_encoder_cache", lambda self: None)
    push(trainer.model, "visual.blocks")
    with pytest.raises(RolloutError, match="old picture embeddings"):
        parity.check(trainer, samples, "now")


def test_an_adapter_that_was_merged_and_not_restored(trainer_of):
    trainer, samples = trainer_of()
    push(trainer.model, "lora_B")
    trainer.model.merge_adapter()
    with pytest.raises(RolloutError, match="weights are not the policy's"):
        parity.check(trainer, samples, "now")


def test_pictures_that_are_expanded_twice(trainer_of, monkeypatch):
    trainer, samples = trainer_of()
    monkeypatch.setattr(rollouts, "collapse", lambda ids, *_: list(ids))
    with pytest.raises(RolloutError, match="vLLM read a prompt of"):
        parity.check(trainer, samples, "now")


def test_a_sampler_that_does_not_follow_the_seed(trainer_of, monkeypatch):
    trainer, samples = trainer_of()
    monkeypatch.setattr(rollouts, "seeded", lambda parts: torch.no_grad())
    with pytest.raises(RolloutError, match="seed"):
        parity.check(trainer, samples, "now")
