"""Covers the documented QwenWrapper with tiny real models, one that sees and one of text alone."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from qwen_vl_grpo.enhancing import QwenWrapper
from qwen_vl_grpo.errors import DataError, HardwareError, PolicyError


@pytest.fixture(scope="module")
def text_only(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("text-only")
    tokens = AutoTokenizer.from_pretrained(checkpoint("qwen2_vl"))
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokens), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokens.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", ["qwen2_vl", "text only"])
def test_the_documented_calls(checkpoint, text_only, kind):
    name = text_only if kind == "text only" else checkpoint(kind)
    wrapper = QwenWrapper(model_name=name, device="auto", max_new_tokens=8, temperature=0.0)
    one = wrapper.enhance_prompt("a cat")
    assert one["original_prompt"] == "a cat" and isinstance(one["enhanced_prompt"], str) and 0 <= one["quality"] <= 5
    both = wrapper.enhance_prompts_batch(["a cat", "a square wheel rolling down a hill"])
    assert [told["original_prompt"] for told in both] == ["a cat", "a square wheel rolling down a hill"]
    assert both[0] == one  # padding on the left changes nothing
    assert wrapper.enhance_prompts_batch([]) == []


def test_sampling_is_the_callers_and_not_the_checkpoints(checkpoint):
    wrapper = QwenWrapper(model_name=checkpoint("qwen2_vl"), max_new_tokens=8, temperature=1.0)
    torch.manual_seed(0)
    assert len({wrapper.enhance_prompt("a cat")["completion"] for _ in range(4)}) > 1


def test_what_cannot_be_used_is_said(checkpoint):
    with pytest.raises(PolicyError, match=r"^model_name no/such/model: there is no such folder here"):
        QwenWrapper(model_name="no/such/model")
    with pytest.raises(HardwareError, match=r"placement.policy: there is no cuda:3"):
        QwenWrapper(model_name=checkpoint("qwen2_vl"), device="cuda:3")
    with pytest.raises(DataError, match="a prompt is text, and not empty"):
        QwenWrapper(model_name=checkpoint("qwen2_vl")).enhance_prompt(" ")
