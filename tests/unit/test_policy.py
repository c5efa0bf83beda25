"""Covers the policy: which weights learn, in which type, and which checkpoints and processors are refused or mended."""

import importlib.util
import shutil

import peft
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor, LlamaConfig

from demo.tiny_qwen import FAMILIES, TEXT_FAMILIES
from qwen_vl_grpo import dataset, engine_prompts, policy, processors
from qwen_vl_grpo.errors import DataError, PolicyError
from qwen_vl_grpo.interfaces import Sample

LANGUAGE = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.fixture
def load(checkpoint, config_of):
    """Load the tiny model of a family under a config."""

    def make(family, **changes):
        config = config_of(model_name=checkpoint(family), **changes)
        return policy.load_model(config), config

    return make


def adapted(model, config):
    """Names of the layers that get an adapter."""
    tuned = peft.get_peft_model(model, policy.adapter(config.lora))
    return {name.split(".lora_A")[0] for name, weight in tuned.named_parameters() if weight.requires_grad and "lora_A" in name}


@pytest.mark.parametrize("family", [*FAMILIES, *TEXT_FAMILIES])
def test_an_adapter_sits_on_every_language_layer_and_nowhere_else(load, family):
    names = adapted(*load(family))
    assert {name.split(".layers.")[1] for name in names} == {
        f"{layer}.{block}.{kind}"
        for layer in range(3)
        for block, kinds in (
            ("self_attn", LANGUAGE - {"gate_proj", "up_proj", "down_proj"}),
            ("mlp", {"gate_proj", "up_proj", "down_proj"}),
        )
        for kind in kinds
    }
    assert all("language_model" in name for name in names) == (family in FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_with_vision_every_linear_layer_of_the_tower_gets_an_adapter_too(load, family):
    model, config = load(family, lora={"vision": True})
    tower = {name for name, layer in model.named_modules() if "visual." in name and isinstance(layer, torch.nn.Linear)}
    language = {name for name in adapted(*load(family)) if "visual" not in name}
    names = {name.removeprefix("base_model.model.") for name in adapted(model, config)}
    assert {name for name in names if "visual." in name} == tower
    assert len(names) == len(language) + len(tower)


def test_the_adapter_of_a_config_sits_on_the_layers_it_names(load):
    assert {name.rsplit(".", 1)[1] for name in adapted(*load("qwen2_5_vl", lora={"target_modules": ["q_proj"]}))} == {"q_proj"}


def test_an_adapter_takes_rank_scale_and_dropout_from_the_config(config_of):
    lora = policy.adapter(config_of(lora={"r": 4, "alpha": 12, "dropout": 0.1}).lora)
    assert (lora.r, lora.lora_alpha, lora.lora_dropout) == (4, 12, 0.1)


@pytest.mark.parametrize("family", FAMILIES)
def test_full_fine_tuning_leaves_the_vision_tower_as_it_is(load, family):
    model, config = load(family, lora={"enabled": False})
    policy.freeze(model, config.lora)
    parts = policy.trainable_parts(model)
    assert {name: learning for name, (learning, _) in parts.items()} == {"vision": 0, "merger": 0, "language": parts["language"][1]}
    assert sum(total for _, total in parts.values()) == sum(weight.numel() for weight in model.parameters())


def test_full_fine_tuning_trains_the_tower_when_asked(load):
    model, config = load("qwen2_5_vl", lora={"enabled": False, "vision": True})
    policy.freeze(model, config.lora)
    assert all(learning == total > 0 for learning, total in policy.trainable_parts(model).values())
    assert policy.adapter(config.lora) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the weights are bfloat16")
def test_weights_are_float32_on_a_cpu(load):
    model, _ = load("qwen2_5_vl")
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_weights_are_of_the_type_that_the_config_asks_for(load):
    model, _ = load("qwen2_5_vl", dtype="bfloat16")
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_a_model_of_another_family_is_refused_with_those_that_learn(config_of, tmp_path):
    LlamaConfig().save_pretrained(tmp_path)
    with pytest.raises(
        PolicyError, match="is of the family llama; the families that learn here are qwen2_vl, qwen2_5_vl, qwen3_vl, qwen2, qwen3"
    ):
        policy.load_model(config_of(model_name=str(tmp_path)))


def test_a_processor_without_pictures_is_refused(config_of, checkpoint, tmp_path):
    AutoProcessor.from_pretrained(checkpoint("qwen2_5_vl")).tokenizer.save_pretrained(tmp_path)
    with pytest.raises(PolicyError, match=r"has no picture processor|its processor cannot be loaded"):
        policy.load_processor(config_of(model_name=str(tmp_path)))


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_a_text_only_policy_reads_with_its_tokenizer_alone(config_of, checkpoint, family):
    config = config_of(model_name=checkpoint(family))
    processor = policy.load_processor(config)
    assert not processors.sees(processor) and processors.tokenizer(processor) is processor
    assert processor.padding_side == "left"
    short, long = (Sample("", [{"role": "user", "content": text}], [], "") for text in ("a cat", "a cat on a red wheel"))
    encoded = policy.encode(processor, [short, long])
    rows = policy.unpadded(encoded)
    assert rows[1] == policy.encode(processor, [long])["input_ids"][0].tolist()
    assert processor.decode(rows[0]).endswith("<|im_start|>user\na cat<|im_end|>\n<|im_start|>assistant\n")
    assert policy.load_model(config)(**encoded).logits.isfinite().all()
    assert [engine_prompts.forbid_vision_tokens(processor, use_vllm) for use_vllm in (True, False)] == [{}, {}]


def test_a_text_only_policy_is_refused_where_it_would_have_to_see(config_of, checkpoint):
    config = config_of(model_name=checkpoint("qwen2"), lora={"vision": True})
    with pytest.raises(PolicyError, match=r"^lora.vision: .* is a text-only model and has no vision tower; let its language learn alone$"):
        policy.check(config)
    with pytest.raises(DataError, match=r"has a picture, and .* reads text alone; ask without it"):
        dataset.fit(Image.new("RGB", (56, 56)), policy.load_processor(config), config)


def test_a_tokenizer_without_a_chat_template_is_refused(config_of, checkpoint, tmp_path):
    shutil.copytree(checkpoint("qwen2"), tmp_path / "base")
    (tmp_path / "base/chat_template.jinja").unlink()
    with pytest.raises(PolicyError, match="has no chat template, so nothing can be asked; take an -Instruct checkpoint"):
        policy.load_processor(config_of(model_name=str(tmp_path / "base")))


@pytest.mark.parametrize("loader", [policy.load_processor, policy.load_model])
def test_a_folder_without_a_checkpoint_is_refused_in_one_sentence(config_of, tmp_path, loader):
    with pytest.raises(PolicyError) as error:
        loader(config_of(model_name=str(tmp_path)))
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_processor_that_pads_on_the_right_is_made_to_pad_on_the_left(config_of, checkpoint, tmp_path):
    processor = AutoProcessor.from_pretrained(checkpoint("qwen2_5_vl"))
    processor.tokenizer.padding_side = "right"
    processor.save_pretrained(tmp_path)
    assert AutoProcessor.from_pretrained(tmp_path).tokenizer.padding_side == "right"
    assert policy.load_processor(config_of(model_name=str(tmp_path))).tokenizer.padding_side == "left"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_pixel_limits_of_the_config_reach_the_processor(config_of, checkpoint, family):
    config = config_of(model_name=checkpoint(family), data={"min_pixels": 64 * 64, "max_pixels": 128 * 128})
    images = policy.load_processor(config).image_processor
    for size in ((16, 16), (900, 900)):
        _, high, wide = images(images=[Image.new("RGB", size)], return_tensors="pt")["image_grid_thw"][0].tolist()
        assert 64 * 64 <= high * wide * images.patch_size**2 <= 128 * 128


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="flash-attn is installed here, so it cannot be missed")
def test_an_attention_kernel_that_is_not_installed_is_refused(config_of):
    with pytest.raises(PolicyError, match="needs a GPU and the flash-attn package; take auto or sdpa"):
        policy.attention(config_of(attn_implementation="flash_attention_2"))
    assert policy.attention(config_of()) == "sdpa"


def test_a_base_in_4_bits_cannot_be_fine_tuned_whole(config_of):
    with pytest.raises(PolicyError, match=r"set lora\.enabled: true or remove the quantisation"):
        policy.quantization(config_of(lora={"enabled": False, "quantization": "4bit"}))
