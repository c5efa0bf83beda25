"""Covers the published checkpoints by what their files say: adapters, freezing, names for the engine, ids, ends and picture sizes.

The real classes are built from the real settings on torch's meta device, which holds names and shapes and no weights.
"""

import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from peft import get_peft_model
from transformers import AutoConfig, AutoModelForImageTextToText, GenerationConfig
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

from qwen_vl_grpo import merging, policy, shapes

FOLDER = Path(__file__).parents[1] / "fixtures/published"
CHECKPOINTS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.yaml"))}
ADAPTED = {
    # linear layers of the language model; of the tower and its mergers
    "qwen2.5-vl-3b-instruct": (36 * 7, 32 * 5 + 2),
    "qwen2.5-vl-7b-instruct": (28 * 7, 32 * 5 + 2),
    "qwen3-vl-4b-instruct": (36 * 7, 24 * 4 + 2 * 4),
    "qwen3-vl-8b-instruct": (36 * 7, 27 * 4 + 2 * 4),
}


@pytest.fixture(params=CHECKPOINTS)
def name(request):
    return request.param


@pytest.fixture
def folder(name, tmp_path):
    """A folder that holds the checkpoint's config.json and nothing else."""
    (tmp_path / "config.json").write_text(json.dumps(CHECKPOINTS[name]["config"]))
    return str(tmp_path)


@pytest.fixture
def model(folder):
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)


def patterns(model):
    """Names of the parameters with their numbers left out."""
    return {re.sub(r"\.\d+\.", ".N.", name) for name, _ in model.named_parameters()}


def test_every_checkpoint_says_where_its_facts_are_from():
    assert set(CHECKPOINTS) == set(ADAPTED)
    for facts in CHECKPOINTS.values():
        assert set(facts["sources"]) == {"config", "generation", "preprocessor"}
        assert all("https://" in source for source in facts["sources"].values())


@pytest.mark.parametrize("vision", [False, True])
def test_an_adapter_lies_on_every_linear_layer_that_is_meant_and_on_no_other(model, name, vision, config_of):
    adapted = get_peft_model(model, policy.adapter(config_of(lora={"vision": vision}).lora))
    layers = [key for key, _ in adapted.named_parameters() if key.endswith("lora_A.default.weight")]
    language, tower = ADAPTED[name]
    assert sum(".language_model." in key for key in layers) == language
    assert sum(".visual." in key for key in layers) == (tower if vision else 0)
    assert len(layers) == language + (tower if vision else 0)
    learning = {key for key, (count, _) in policy.trainable_parts(adapted).items() if count}
    assert learning == ({"language", "vision", "merger"} if vision else {"language"})


def test_full_fine_tuning_leaves_tower_and_merger_alone(model, config_of):
    policy.freeze(model, config_of(lora={"enabled": False}).lora)
    parts = policy.trainable_parts(model)
    assert {key for key, (learning, _) in parts.items() if learning} == {"language"}
    assert parts["language"][0] == parts["language"][1]


def test_the_parameters_are_named_as_those_of_the_tiny_models_that_the_engine_lane_syncs(model, checkpoint):
    tiny = AutoModelForImageTextToText.from_pretrained(checkpoint(model.config.model_type))
    assert patterns(model) - {"lm_head.weight"} == patterns(tiny) - {"lm_head.weight"}
    assert ("lm_head.weight" in patterns(model)) == (not model.config.tie_word_embeddings)
    assert model.get_output_embeddings() is not None


def test_an_out_of_place_merge_gives_the_engine_the_names_of_the_base(model, config_of):
    base = dict(model.named_parameters())
    shapes_of = {key: weight.shape for key, weight in base.items()}
    merged = merging.merged_weights(get_peft_model(model, policy.adapter(config_of().lora)))
    assert {key: weight.shape for key, weight in merged} == shapes_of


def test_the_plan_counts_its_weights_from_its_own_config_and_from_the_kept_shapes(model, folder, name, config_of):
    counted = shapes.of(config_of(model_name=folder))
    assert counted.total() == sum(weight.numel() for weight in model.parameters())
    kept = shapes.published(CHECKPOINTS[name]["name"])
    assert (kept.total(), kept.context, kept.tied) == (counted.total(), counted.context, counted.tied)


def test_its_placeholders_are_the_ids_that_the_tokenizer_numbers_and_both_ends_end_an_answer(name, folder):
    config = AutoConfig.from_pretrained(folder)
    assert (config.image_token_id, config.video_token_id) == (151655, 151656)
    assert GenerationConfig(**CHECKPOINTS[name]["generation"]).eos_token_id == [151645, 151643]
    assert config.get_text_config().eos_token_id == 151645


def test_its_patches_are_those_of_the_plan(folder, name, config_of):
    images = Qwen2VLImageProcessor(**CHECKPOINTS[name]["preprocessor"])
    known = shapes.of(config_of(model_name=folder))
    assert (images.patch_size, images.merge_size) == (known.patch, known.merge)
    lowest = 3136 if known.family == "qwen2_5_vl" else 65536
    assert images.size["shortest_edge"] == lowest
    assert images.size["longest_edge"] == (12845056 if known.family == "qwen2_5_vl" else 16777216)
