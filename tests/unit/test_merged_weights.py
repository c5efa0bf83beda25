"""Covers what the engine is given of a LoRA policy: base plus adapter, and a base that is never written to."""

import pytest
import torch
from peft import get_peft_model

from qwen_vl_grpo import merging, policy
from qwen_vl_grpo.sections import LoraSection


@pytest.fixture(params=["float32", "bfloat16"])
def adapted(request, checkpoint, config_of):
    """A LoRA policy whose adapter already does something."""
    model = policy.load_model(config_of(model_name=checkpoint("qwen2_5_vl"), dtype=request.param))
    model = get_peft_model(model, policy.adapter(LoraSection(r=4, vision=True)))
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.05)
    return model


def test_the_engine_gets_the_names_of_the_base_model(adapted, checkpoint, config_of):
    names = [name for name, _ in merging.merged_weights(adapted)]
    plain = policy.load_model(config_of(model_name=checkpoint("qwen2_5_vl")))
    assert names == [name for name, _ in plain.named_parameters()]


def test_the_engine_gets_what_peft_would_merge(adapted):
    ours = {name: weight.clone() for name, weight in merging.merged_weights(adapted)}
    merged = dict(adapted.merge_and_unload().named_parameters())
    changed = 0
    for name, weight in ours.items():
        torch.testing.assert_close(weight, merged[name], rtol=2**-7 if weight.dtype is torch.bfloat16 else 1e-6, atol=1e-3)
        changed += weight.dtype is torch.bfloat16 or torch.allclose(weight, merged[name], atol=1e-6)
    assert changed == len(ours)


def test_the_engine_gets_what_a_4_bit_base_multiplies_with(checkpoint, config_of):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install bitsandbytes")
    config = config_of(model_name=checkpoint("qwen2_5_vl"), lora={"quantization": "4bit"})
    model = get_peft_model(policy.load_model(config), policy.adapter(config.lora))
    layer = model.get_base_model().get_decoder().layers[0].self_attn.q_proj
    given = dict(merging.merged_weights(model))["model.language_model.layers.0.self_attn.q_proj.weight"]
    torch.testing.assert_close(given.T + layer.base_layer.bias, layer(torch.eye(len(given), requires_grad=True)), rtol=1e-5, atol=1e-6)


def test_the_base_is_bit_equal_after_500_syncs_where_trls_way_changes_it(adapted):
    base = {name: weight.clone() for name, weight in adapted.named_parameters() if "lora_" not in name}
    for _ in range(500):
        for _ in merging.merged_weights(adapted):
            pass
    assert all(torch.equal(weight, base[name]) for name, weight in adapted.named_parameters() if name in base)
    if policy.dtype_of(adapted) is torch.bfloat16:
        for _ in range(20):
            adapted.merge_adapter()
            adapted.unmerge_adapter()
        assert not all(torch.equal(weight, base[name]) for name, weight in adapted.named_parameters() if name in base)


def test_with_the_adapter_switched_off_the_engine_gets_the_base_and_then_the_adapter_again(adapted):
    base = {name.removeprefix("base_model.model.").replace(".base_layer", ""): weight for name, weight in adapted.named_parameters()}
    with adapted.disable_adapter():
        assert all(torch.equal(weight, base[name]) for name, weight in merging.merged_weights(adapted))
    assert not all(torch.equal(weight, base[name]) for name, weight in merging.merged_weights(adapted))


def test_an_engine_that_fails_halfway_leaves_the_adapter_as_it_was(adapted):
    weights = merging.merged_weights(adapted)
    next(weights)
    weights.close()
    assert not any(module.merged for module in adapted.modules() if hasattr(module, "lora_A"))
