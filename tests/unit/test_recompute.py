"""Covers what gradient checkpointing recomputes: the layers that were asked for, and never a frozen tower."""

import peft
import pytest
import torch
from PIL import Image

from demo.tiny_qwen import FAMILIES
from qwen_vl_grpo import assembly, launch, policy
from qwen_vl_grpo.hardware import Hardware
from qwen_vl_grpo.interfaces import Sample

QUESTION = Sample("1", [{"role": "user", "content": "Which colour?"}], [Image.new("RGB", (112, 112), "red")], "red")


def passes(model, processor):
    """How often each block is run in one forward and backward pass under checkpointing, and the gradient of the adapter."""
    torch.manual_seed(0)
    tuned = peft.get_peft_model(model, policy.adapter(policy.LoraSection()))
    tuned.enable_input_require_grads()  # as TRL's trainer does
    tuned.gradient_checkpointing_enable({"use_reentrant": False})
    tuned.train()
    counts = {}
    for name, blocks in (("vision", model.model.visual.blocks), ("language", model.get_decoder().layers)):
        counts[name] = [0] * len(blocks)
        for index, block in enumerate(blocks):
            block.register_forward_pre_hook(lambda *_, name=name, index=index: counts[name].__setitem__(index, counts[name][index] + 1))
    tuned(**policy.encode(processor, [QUESTION])).logits.log_softmax(-1)[:, -8:, 3].mean().backward()
    return counts, torch.cat([weight.grad.flatten() for weight in tuned.parameters() if weight.grad is not None])


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_first_layers_are_recomputed_and_the_gradient_is_the_same(checkpoint, config_of, family):
    config = config_of(model_name=checkpoint(family))
    processor = policy.load_processor(config)
    published, expected = passes(policy.load_model(config), processor)
    assert published["language"] == [2, 2, 2]
    ours = policy.load_model(config)
    policy.recompute(ours, 1)
    counts, gradient = passes(ours, processor)
    assert counts == {"vision": [1, 1], "language": [2, 1, 1]}
    assert torch.equal(gradient, expected)


def test_a_tower_that_learns_still_gets_its_gradient(checkpoint, config_of):
    config = config_of(model_name=checkpoint("qwen2_5_vl"), lora={"vision": True})
    model = policy.load_model(config)
    policy.recompute(model, 3)
    tuned = peft.get_peft_model(model, policy.adapter(config.lora))
    tuned.gradient_checkpointing_enable({"use_reentrant": False})
    tuned.train()
    tuned(**policy.encode(policy.load_processor(config), [QUESTION])).logits.float().square().mean().backward()
    gradients = [weight.grad for name, weight in tuned.named_parameters() if "visual" in name and "lora_B" in name]
    assert gradients and all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)


def test_a_machine_decides_what_automatic_checkpointing_recomputes(checkpoint, config_of):
    def layers(machine, memory, chosen="auto"):
        config = config_of(model_name=checkpoint("qwen2_5_vl"), gradient_checkpointing=chosen)
        return assembly.layers_to_recompute(config, 64, machine, memory)

    cpu, card = Hardware("cpu", 0, "", 2), Hardware("cuda", 1, "a card", 2)
    assert layers(cpu, None) == 0
    assert layers(card, 80.0) == 0
    assert layers(card, 0.7) == layers(card, None) == 3  # too little, and not known
    assert (layers(cpu, None, True), layers(card, None, False), layers(card, 0.7, 1)) == (3, 0, 1)


def test_a_card_that_holds_a_part_of_the_policy_recomputes_fewer_layers(config_of, monkeypatch):
    config = config_of(model_name="Qwen/Qwen2.5-VL-7B-Instruct", lora={"enabled": False}, batch_size=8, gradient_checkpointing="auto")
    card = Hardware("cuda", 1, "a card", 8)
    alone = assembly.layers_to_recompute(config, 1024, card, 79.1)
    for name, value in (launch.TOLD["fsdp2"] | {"WORLD_SIZE": "8"}).items():
        monkeypatch.setenv(name, value)
    assert 0 < assembly.layers_to_recompute(config, 1024, card, 79.1) < alone
