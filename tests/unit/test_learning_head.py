"""Covers a policy whose output head learns alone: told by a gradient, counted by the plan, and refused where it cannot be."""

import pytest
import torch
from transformers import AutoModelForImageTextToText

from demo import tiny_qwen
from qwen_vl_grpo import policy, shapes
from qwen_vl_grpo.errors import ConfigError, PolicyError

FAMILY = "qwen2_5_vl"
ALONE = {"enabled": False, "language": "head"}


def tiny(tied):
    """A tiny model, and its config."""
    described = tiny_qwen.config(FAMILY, tiny_qwen.processor(FAMILY), tied=tied)
    return AutoModelForImageTextToText.from_config(described, dtype=torch.float32), described


def test_the_head_alone_gets_a_gradient_and_the_plan_counts_it(config_of):
    lora = config_of(lora=ALONE).lora
    model, described = tiny(tied=False)
    policy.freeze(model, lora)
    model(input_ids=torch.tensor([[7, 8, 9]])).logits.log_softmax(-1)[:, -1, 3].mean().backward()
    assert {name for name, weight in model.named_parameters() if weight.grad is not None} == {"lm_head.weight"}
    assert shapes.read(described.to_dict(), "a test").learning(lora) == model.lm_head.weight.numel()


def test_a_head_that_is_the_embeddings_cannot_learn_alone(config_of):
    with pytest.raises(PolicyError, match="head would train the embeddings, which are this model's head"):
        policy.freeze(tiny(tied=True)[0], config_of(lora=ALONE).lora)


def test_an_adapter_on_the_head_is_refused(config_of):
    with pytest.raises(ConfigError, match="past an adapter; set enabled: false beside head"):
        config_of(lora={"language": "head"})
