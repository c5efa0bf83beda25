"""Covers that the weights counted from config.json are those of the real models, adapters and 4-bit layers."""

import json

import huggingface_hub
import peft
import pytest
import torch
from transformers import AutoConfig

from demo.tiny_qwen import FAMILIES, TEXT_FAMILIES
from qwen_vl_grpo import policy, shapes
from qwen_vl_grpo.errors import PolicyError

ROPE = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6}
SMALL = {
    "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 640,
    "vocab_size": 1000, "max_position_embeddings": 2048,
}  # fmt: skip
TOWERS = {
    "qwen2_vl": {"embed_dim": 64, "hidden_size": 256, "depth": 3, "mlp_ratio": 2, "num_heads": 4},
    "qwen2_5_vl": {"hidden_size": 64, "out_hidden_size": 256, "intermediate_size": 100, "depth": 3, "num_heads": 4, "in_channels": 1},
    "qwen3_vl": {
        "hidden_size": 64, "out_hidden_size": 256, "intermediate_size": 100, "depth": 3, "num_heads": 4, "num_position_embeddings": 49,
        "deepstack_visual_indexes": [0, 2], "patch_size": 8,
    },
}  # fmt: skip
LORA = {
    "as configured": {},
    "another rank": {"r": 5, "alpha": 3},
    "two kinds of layers": {"target_modules": ["q_proj", "down_proj"]},
    "a pattern": {"target_modules": ["self_attn\\.(?:k|v)_proj"]},
    "the tower too": {"vision": True},
}


def described(family, tied=True, **text):
    if family in TEXT_FAMILIES:
        plain = SMALL | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
        return AutoConfig.for_model(family, tie_word_embeddings=tied, **plain | text)
    return AutoConfig.for_model(
        family, text_config=SMALL | {"rope_parameters": ROPE} | text, vision_config=TOWERS[family], tie_word_embeddings=tied
    )


def built(config):
    """The real model without its memory."""
    with torch.device("meta"):
        return policy.auto_class(config).from_config(config, dtype=torch.bfloat16)


def by_part(model):
    """Part -> weights, by the names of the real model."""
    parts = dict.fromkeys(("vision", "merger", "language", "embeddings", "head"), 0)
    for name, weight in model.named_parameters():
        part = "embeddings" if "embed_tokens" in name else "head" if "lm_head" in name else policy.part(name)
        parts[part] += weight.numel()
    return parts


@pytest.mark.parametrize("name", shapes.PUBLISHED)
def test_the_kept_shapes_of_a_published_model_count_what_the_real_class_has(name):
    family, text, vision = shapes.PUBLISHED[name]
    text = dict(zip(shapes.TEXT_KEYS, text, strict=True))
    tied = text.pop("tie_word_embeddings")
    if family in TEXT_FAMILIES:
        model = built(AutoConfig.for_model(family, tie_word_embeddings=tied, **text))
        assert shapes.published(name).weights() == by_part(model)
        return
    out = {"hidden_size" if family == "qwen2_vl" else "out_hidden_size": text["hidden_size"]}
    tower = {"hidden_size": 1280} | vision if family == "qwen2_5_vl" else vision
    model = built(
        AutoConfig.for_model(family, text_config=text | {"rope_parameters": ROPE}, vision_config=tower | out, tie_word_embeddings=tied)
    )
    for suffix in ("", "-Instruct"):
        known = shapes.published(name + suffix)
        assert known.weights() == by_part(model)
        assert known.tied == tied


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 7.616),
        ("Qwen/Qwen3-4B-Instruct-2507", 4.022),
        ("Qwen/Qwen2.5-VL-3B-Instruct", 3.755),
        ("Qwen/Qwen2.5-VL-7B-Instruct", 8.292),
        ("Qwen/Qwen3-VL-8B-Thinking", 8.767),
    ],
)
def test_a_published_model_has_the_weights_that_its_page_names(name, billions):
    assert round(shapes.published(name).total() / 1e9, 3) == billions


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", [*FAMILIES, *TEXT_FAMILIES])
def test_the_count_is_that_of_the_real_class(family, tied):
    config = described(family, tied)
    known, model = shapes.read(config.to_dict(), "a test"), built(config)
    assert known.weights() == by_part(model)
    assert known.total() == sum(weight.numel() for weight in model.parameters())


def test_attention_biases_and_wide_heads_of_qwen3_are_counted():
    config = described("qwen3_vl", head_dim=96, attention_bias=True)
    assert shapes.read(config.to_dict(), "a test").weights() == by_part(built(config))


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_a_flat_config_as_published_reads_like_the_nested_one(family):
    nested = described(family, tied=False).to_dict()
    flat = {"model_type": family, **SMALL, "tie_word_embeddings": False, "vision_config": TOWERS[family]}
    assert shapes.read(flat, "a test") == shapes.read(nested, "a test")


def test_tied_embeddings_named_in_the_language_part_alone_are_tied():
    raw = described("qwen3_vl", tied=False).to_dict()
    raw["text_config"]["tie_word_embeddings"] = True
    assert shapes.read(raw, "a test").tied


@pytest.mark.parametrize("settings", LORA)
@pytest.mark.parametrize("family", [*FAMILIES, *TEXT_FAMILIES])
def test_the_adapter_has_the_weights_that_peft_makes(family, settings, config_of):
    lora = config_of(lora=LORA[settings]).lora
    config = described(family)
    tuned = peft.get_peft_model(built(config), policy.adapter(lora))
    learning = [weight for weight in tuned.parameters() if weight.requires_grad]
    assert shapes.read(config.to_dict(), "a test").learning(lora) == sum(weight.numel() for weight in learning) > 0
    assert {weight.dtype for weight in learning} == {torch.float32}


@pytest.mark.parametrize("vision", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_full_fine_tuning_trains_what_the_policy_leaves_free(family, vision, config_of):
    lora = config_of(lora={"enabled": False, "vision": vision}).lora
    config = described(family, tied=False)
    model = built(config)
    policy.freeze(model, lora)
    expected = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    assert shapes.read(config.to_dict(), "a test").learning(lora) == expected


def test_four_bits_are_counted_as_bitsandbytes_stores_them(config_of):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    for rows, columns in ((384, 256), (60, 100)):
        stored = bitsandbytes.nn.Params4bit(torch.randn(rows, columns), requires_grad=False, quant_type="nf4", compress_statistics=True).to(
            "cpu"
        )
        state = stored.quant_state
        tensors = [stored.data, state.absmax, state.code, state.state2.absmax, state.state2.code, state.offset]
        assert shapes._nf4_bytes(rows * columns) == sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("family", [*FAMILIES, *TEXT_FAMILIES])
def test_four_bits_hold_the_language_layers_and_nothing_else(family, config_of):
    config = described(family, tied=False)
    known, lora = shapes.read(config.to_dict(), "a test"), config_of(lora={"quantization": "4bit"}).lora
    matrices, others = [], 0
    for name, weight in built(config).named_parameters():
        if ".layers." in name and weight.ndim == 2:
            matrices.append(weight.numel())
        else:
            others += weight.numel()
    nested = sum(weights // 2 + weights // 64 + 4 * -(-weights // 64 // 256) + 4 * 273 for weights in matrices)
    assert known.base_bytes(lora, 2) == 2 * others + nested
    assert known.base_bytes(config_of().lora, 2) == 2 * known.total()


@pytest.mark.parametrize("family", [*FAMILIES, *TEXT_FAMILIES])
def test_the_config_of_a_local_checkpoint_is_read(family, checkpoint, config_of):
    known = shapes.of(config_of(model_name=checkpoint(family)))
    model = policy.load_model(config_of(model_name=checkpoint(family)))
    assert known.total() == sum(weight.numel() for weight in model.parameters())
    assert known.source.startswith("config.json of ")


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A Hub cache that holds one model's config.json, where the Hub's own client finds it."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "hub/models--Qwen--Qwen2.5-VL-7B-Instruct"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("c0ffee")
    (folder / "snapshots/c0ffee").mkdir(parents=True)
    file = folder / "snapshots/c0ffee/config.json"
    file.write_text(json.dumps(described("qwen2_5_vl").to_dict()))
    found = huggingface_hub.try_to_load_from_cache("Qwen/Qwen2.5-VL-7B-Instruct", "config.json", cache_dir=tmp_path / "hub")
    assert str(found) == str(file)


def test_a_config_in_the_hub_cache_goes_before_the_kept_shapes(cached, config_of):
    known = shapes.of(config_of(model_name="Qwen/Qwen2.5-VL-7B-Instruct"))
    assert (known.layers, known.source) == (3, "config.json of Qwen/Qwen2.5-VL-7B-Instruct")


def test_a_revision_that_is_not_cached_falls_back_to_the_kept_shapes(cached, config_of):
    known = shapes.of(config_of(model_name="Qwen/Qwen2.5-VL-7B-Instruct", model_revision="v2"))
    assert (known.layers, known.source) == (28, "the kept shapes of Qwen/Qwen2.5-VL-7B")


REFUSED = {
    "unknown and not cached": ("someone/else", None, "its config.json is neither in a local folder nor in the HF cache"),
    "of another family": (None, '{"model_type": "llama"}', "is of the family llama; the families that learn here are"),
    "without a width": (None, '{"model_type": "qwen2_vl", "text_config": {"vocab_size": 3}}', "has no 'hidden_size'"),
    "broken": (None, "{", "cannot be read as a model's config.json"),
    "a list": (None, "[]", "cannot be read as a model's config.json"),
    "not there": (None, None, "cannot be read as a model's config.json"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_model_that_cannot_be_counted_is_refused_in_one_sentence(fault, tmp_path, monkeypatch, config_of):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    name, text, said = REFUSED[fault]
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(PolicyError) as error:
        shapes.of(config_of(model_name=name or str(tmp_path)))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "tokens"), [("Qwen/Qwen2.5-VL-7B", 256), ("Qwen/Qwen3-VL-8B", 196)])
def test_a_picture_has_a_token_for_each_square_of_merged_patches(name, tokens):
    assert shapes.published(name).picture_tokens(448 * 448) == tokens
