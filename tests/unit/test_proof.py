"""Covers the proof of a run: its files answer as the policy did, and whatever answers like the base model, or not at all, fails."""

from dataclasses import replace

import numpy
import pytest
import torch
from peft import get_peft_model
from PIL import Image
from safetensors.torch import load_file, save_file

from qwen_vl_grpo import policy, proof, registry
from qwen_vl_grpo.errors import RegistryError
from qwen_vl_grpo.interfaces import Clip, RunCard, Sample

QUESTIONS = [
    Sample("0", [{"role": "user", "content": "Which digit is this?"}], [Image.effect_noise((64, 64), 90).convert("RGB")], "1"),
    Sample("1", [{"role": "system", "content": "Reply."}, {"role": "user", "content": "6 times 7?"}], [], "42"),
]


@pytest.fixture
def run(checkpoint, config_of, tmp_path):
    """A run whose adapter was pushed this far from nothing, kept as training keeps it; returns its card and folder."""

    def make(push, family="qwen2_5_vl"):
        config = config_of(run_id="v1", model_name=checkpoint(family), output_dir=str(tmp_path / "outputs"), max_completion_length=12)
        folder = registry.claim(config)
        processor = policy.load_processor(config)
        torch.manual_seed(0)
        model = get_peft_model(policy.load_model(config), policy.adapter(config.lora))
        exam = proof.Exam(model, processor, QUESTIONS, folder, config.max_completion_length)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=push)
        model.save_pretrained(folder / "checkpoint-1")
        processor.save_pretrained(folder / "checkpoint-1")
        return close(folder, RunCard(run_id="v1", task="t", base_model="b", config=config.model_dump(mode="json"), proof=exam.record()))

    return make


def close(folder, card):
    """Write a card that vouches for the files as they are."""
    files = registry.hash_files(folder, "checkpoint-1") | registry.hash_files(folder, "proof")
    card = card.model_copy(update={"checkpoint": "checkpoint-1", "checkpoint_files": files, "state": "finished"})
    registry.write(card, folder)
    return card, folder


def asked(card, folder):
    """The verdict on the run's files, as the process of its own asks them."""
    return proof.judge(card, proof.answer_again("v1", folder))["state"]


def spoil(card, folder, change):
    """Change the adapter, and let the card vouch for it."""
    path = folder / "checkpoint-1/adapter_model.safetensors"
    save_file({name: change(name, weight).contiguous() for name, weight in load_file(path).items()}, path, {"format": "pt"})
    return close(folder, card)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_the_files_of_a_run_answer_as_the_policy_did(run, family):
    card, folder = run(0.5, family)
    assert card.proof["changed"]
    assert [answer["ids"] for answer in card.proof["outputs"]] != card.proof["base_outputs"]
    assert asked(card, folder) == "proved"


def test_an_adapter_of_zeros_does_not_answer(run):
    _, folder = spoil(*run(0.5), lambda _, weight: weight * 0)
    with pytest.raises(RegistryError, match="its adapter is all zeros"):
        proof.answer_again("v1", folder)


def test_an_adapter_without_effect_fails_and_is_said_to_answer_as_the_base(run):
    card, folder = spoil(*run(0.5), lambda name, weight: weight * (0 if "lora_A" in name else 1))
    answers = proof.answer_again("v1", folder)
    assert answers == card.proof["base_outputs"]
    verdict = proof.judge(card, answers)
    assert verdict["state"] == "failed"
    assert "they answer as the base model does" in verdict["text"]


def test_another_adapter_fails(run):
    card, folder = spoil(*run(0.5), lambda _, weight: weight.flip(0))
    assert asked(card, folder) == "failed"


def test_a_run_that_changed_no_answer_is_named_as_such(run):
    card, folder = run(1e-9)
    assert not card.proof["changed"]
    assert asked(card, folder) == "unchanged"


def test_items_that_were_changed_are_not_asked(run):
    _, folder = run(0.5)
    proof.write_items(QUESTIONS[:1], folder)
    with pytest.raises(RegistryError, match=r"items\.json is missing or has changed"):
        proof.answer_again("v1", folder)


def test_items_are_kept_as_they_were_asked(tmp_path):
    proof.write_items(QUESTIONS, tmp_path)
    kept = proof.read_items(tmp_path)
    assert [sample.prompt for sample in kept] == [sample.prompt for sample in QUESTIONS]
    assert kept[0].images[0].tobytes() == QUESTIONS[0].images[0].tobytes()


def test_clips_are_kept_with_their_frames_and_times(tmp_path):
    frames = numpy.random.default_rng(0).integers(0, 255, (3, 28, 56, 3), dtype=numpy.uint8)
    clip = Clip(frames, (0, 4, 9), 29.97, 10, "abc")
    proof.write_items([replace(QUESTIONS[0], images=[], videos=[clip])], tmp_path)
    (kept,) = proof.read_items(tmp_path)[0].videos
    assert kept == clip
    assert (kept.frames == frames).all()


def test_a_card_without_answers_says_so(tmp_path):
    with pytest.raises(RegistryError, match="run_id v1: its card holds no answers to compare with"):
        proof.verify(RunCard(run_id="v1", task="t", base_model="b"), tmp_path)


def test_a_verdict_goes_into_the_card(tmp_path):
    registry.write(RunCard(run_id="v1", task="t", base_model="b", proof={"changed": True}), tmp_path)
    proof.keep({"state": "proved"}, tmp_path)
    assert registry.read(tmp_path).proof == {"changed": True, "verdict": {"state": "proved"}}


@pytest.mark.parametrize(
    ("ids", "ties", "alike"),
    [
        ([1, 2, 3], [], True),
        ([1, 9, 3], [], False),
        ([1, 9, 9], [1], True),
        ([1, 9, 9], [2], False),
        ([1, 2], [], False),
        ([1, 2], [2], False),
    ],
)
def test_answers_may_part_only_where_two_tokens_were_equally_likely(ids, ties, alike):
    assert proof.agrees(ids, {"ids": [1, 2, 3], "ties": ties}) is alike
