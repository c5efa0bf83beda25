"""Covers which parts of the policy learn: language model, merger and tower, whole or by adapters, told by a gradient."""

import itertools

import datasets
import peft
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from demo import tiny_qwen
from qwen_vl_grpo import assembly, policy, shapes
from qwen_vl_grpo.errors import ConfigError, DataError
from qwen_vl_grpo.interfaces import Sample

FAMILIES = ("qwen2_5_vl", "qwen3_vl")
PARTS = ("vision", "merger", "language")
CHOICES = [dict(zip(PARTS, chosen, strict=True)) for chosen in itertools.product([False, True], repeat=3) if any(chosen)]
QUESTION = Sample("1", [{"role": "user", "content": "Which colour?"}], [Image.new("RGB", (112, 112), "red")], "red")


def tiny(family, tied):
    """A tiny model of the family, and its config."""
    described = tiny_qwen.config(family, tiny_qwen.processor(family))
    described.tie_word_embeddings = described.text_config.tie_word_embeddings = tied
    torch.manual_seed(0)
    return AutoModelForImageTextToText.from_config(described, dtype=torch.float32), described


def prepared(model, lora):
    """The model as a run trains it."""
    policy.freeze(model, lora)
    return peft.get_peft_model(model, policy.adapter(lora)) if lora.enabled else model


def moved(model, family):
    """Parts of which at least one weight gets a gradient that is not 0, and the names of all weights that do."""
    model(**policy.encode(tiny_qwen.processor(family), [QUESTION])).logits.log_softmax(-1)[:, -4:, 3].mean().backward()
    names = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.abs().sum() > 0}
    return {policy.part(name) for name in names}, names


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("enabled", [False, True], ids=["whole", "adapters"])
@pytest.mark.parametrize("chosen", CHOICES, ids=lambda chosen: "+".join(name for name in PARTS if chosen[name]))
@pytest.mark.parametrize("family", FAMILIES)
def test_exactly_the_chosen_parts_get_a_gradient_and_the_plan_counts_them(config_of, family, chosen, enabled, tied):
    lora = config_of(lora={"enabled": enabled, **chosen}).lora
    model, described = tiny(family, tied)
    tuned = prepared(model, lora)
    wanted = {name for name in PARTS if chosen[name]}
    parts = policy.trainable_parts(tuned)
    assert {name for name, (learning, _) in parts.items() if learning} == wanted
    learning = sum(count for count, _ in parts.values())
    assert shapes.read(described.to_dict(), "a test").learning(lora) == learning > 0
    if not enabled:
        assert all(count in (0, total) for count, total in parts.values())
    assert moved(tuned, family)[0] == wanted


def test_an_untied_head_learns_with_the_language_model_and_is_frozen_with_it(config_of):
    for language in (True, False):
        model, _ = tiny("qwen2_5_vl", tied=False)
        policy.freeze(model, config_of(lora={"enabled": False, "language": language, "merger": True}).lora)
        _, names = moved(model, "qwen2_5_vl")
        assert ("lm_head.weight" in names) == ("model.language_model.embed_tokens.weight" in names) == language


def test_an_attribute_of_a_module_freezes_no_weight():
    """Why policy.freeze goes by weights; the documented pipeline sets this on the head."""
    model, _ = tiny("qwen2_5_vl", tied=False)
    model.lm_head.requires_grad = False
    assert "lm_head.weight" in moved(model, "qwen2_5_vl")[1]


@pytest.mark.parametrize("enabled", [False, True], ids=["whole", "adapters"])
def test_deepstack_mergers_learn_with_the_merger(config_of, enabled):
    model, _ = tiny("qwen3_vl", tied=True)
    lora = config_of(lora={"enabled": enabled, "language": False, "merger": True}).lora
    _, names = moved(prepared(model, lora), "qwen3_vl")
    assert {bool("deepstack_merger_list" in name) for name in names} == {True, False}
    assert all("merger" in name for name in names)


@pytest.mark.parametrize("vision", [False, True])
def test_a_merger_that_is_not_named_does_as_the_tower(config_of, vision):
    assert config_of(lora={"vision": vision}).lora.parts == (("vision", "merger", "language") if vision else ("language",))


def test_a_config_under_which_nothing_learns_is_refused(config_of):
    with pytest.raises(ConfigError, match="nothing would learn; set language, merger or vision to true"):
        config_of(lora={"language": False})


def test_the_table_of_what_learns_sums_up_its_parts():
    lines = policy.table({"vision": (0, 1000), "merger": (50, 50), "language": (2950, 2950)}).splitlines()
    assert [line.split() for line in lines] == [
        ["part", "weights", "learn", "of", "share"], ["vision", "0", "1,000", "0.0%"], ["merger", "50", "50", "100.0%"],
        ["language", "2,950", "2,950", "100.0%"], ["all", "3,000", "4,000", "75.0%"],
    ]  # fmt: skip


def test_rows_that_show_nothing_are_refused_where_only_what_sees_learns(config_of):
    rows = datasets.Dataset.from_dict({"id": ["a", "b", "c"], "picture_ids": [["1"], [], []], "videos": [[], ["2"], []]})
    with pytest.raises(DataError, match=r"1 rows show nothing \(first id: c\), and lora\.language: false trains what sees alone"):
        assembly.refuse_blind_rows(config_of(lora={"language": False, "merger": True}), rows)
    assembly.refuse_blind_rows(config_of(lora={"language": False, "merger": True}), rows.select([0, 1]))
    assembly.refuse_blind_rows(config_of(), rows)
