"""Covers the parts of the vLLM engine that need no vLLM: one picture token a picture, and the swap of TRL's class."""

import random

import numpy
import pytest
import torch
from PIL import Image
from trl.data_utils import prepare_multimodal_messages
from trl.trainer import grpo_trainer

from demo.tiny_qwen import FAMILIES
from qwen_vl_grpo import engine_prompts, policy, processors, rollouts
from qwen_vl_grpo.errors import RolloutError

START, END, IMAGE, VIDEO = 3, 4, 5, 6


def test_one_picture_keeps_one_token():
    assert engine_prompts.collapse([1, START, IMAGE, IMAGE, IMAGE, END, 2], [IMAGE, VIDEO]) == [1, START, IMAGE, END, 2]


def test_two_adjacent_pictures_keep_one_token_each():
    expanded = [START, IMAGE, IMAGE, END, START, IMAGE, IMAGE, IMAGE, END]
    assert engine_prompts.collapse(expanded, [IMAGE, VIDEO]) == [START, IMAGE, END, START, IMAGE, END]


def test_a_repeated_word_is_no_picture():
    assert engine_prompts.collapse([7, 7, 7, IMAGE], [IMAGE, VIDEO]) == [7, 7, 7, IMAGE]


def test_a_picture_beside_a_clip_keeps_both():
    assert engine_prompts.collapse([IMAGE, IMAGE, VIDEO, VIDEO], [IMAGE, VIDEO]) == [IMAGE, VIDEO]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pictures", [0, 1, 2])
def test_collapsing_undoes_what_the_real_processor_expanded(checkpoint, config_of, family, pictures):
    processor = policy.load_processor(config_of(model_name=checkpoint(family)))
    images = [Image.new("RGB", (128, 64 * (i + 1)), "red") for i in range(pictures)]
    chat = prepare_multimodal_messages([{"role": "user", "content": "Same?"}], images=images)
    text = processor.apply_chat_template([chat], tokenize=False, add_generation_prompt=True)
    expanded = processor(text=text, images=[images] if images else None)["input_ids"][0]
    collapsed = engine_prompts.collapse(expanded, processors.vision_token_ids(processor))
    assert collapsed == processor.tokenizer(text)["input_ids"][0]
    assert (len(expanded) > len(collapsed)) == bool(pictures)
    assert collapsed.count(processor.image_token_id) == pictures


def test_a_trainer_that_is_built_inside_gets_the_faithful_engine():
    published = grpo_trainer.VLLMGeneration
    with rollouts.injected():
        assert grpo_trainer.VLLMGeneration.func is rollouts.FaithfulGeneration
    assert grpo_trainer.VLLMGeneration is published


def test_the_published_engine_comes_back_after_an_error():
    published = grpo_trainer.VLLMGeneration
    with pytest.raises(ZeroDivisionError), rollouts.injected():
        raise ZeroDivisionError
    assert grpo_trainer.VLLMGeneration is published is not rollouts.FaithfulGeneration


def test_whole_groups_of_equal_prompts_become_one_request_each():
    assert engine_prompts.group_size([[1, 2], [1, 2], [3], [3]], 2) == 2


@pytest.mark.parametrize("prompts", [[[1], [2]], [[1], [1], [2]]], ids=str)
def test_a_group_that_ranks_share_is_asked_row_by_row(prompts):
    assert engine_prompts.group_size(prompts, 2) == 1


def test_another_prompt_than_the_trainers_stops_the_run():
    engine_prompts.check_prompts([[1, 2], [3]], [[1, 2], [3]])
    with pytest.raises(RolloutError, match="row 1 vLLM read a prompt of 2 tokens and the trainer scores one of 1"):
        engine_prompts.check_prompts([[1, 2], [3, 3]], [[1, 2], [3]])


def test_a_seed_decides_what_is_drawn_and_the_trainers_generators_are_left_alone():
    def draw():
        return torch.rand(3).tolist(), numpy.random.rand(3).tolist(), random.random()

    torch.manual_seed(5)
    numpy.random.seed(5)
    random.seed(5)
    untouched = draw()
    torch.manual_seed(5)
    numpy.random.seed(5)
    random.seed(5)
    with rollouts.seeded((0, 1)):
        first = draw()
    assert draw() == untouched
    with rollouts.seeded((0, 1)):
        assert draw() == first
    with rollouts.seeded((0, 2)):
        assert draw() != first


@pytest.mark.parametrize("family", FAMILIES)
def test_both_placeholders_are_forbidden_by_their_integer_ids(checkpoint, config_of, family):
    processor = policy.load_processor(config_of(model_name=checkpoint(family)))
    ids = [processor.tokenizer.convert_tokens_to_ids(token) for token in ("<|image_pad|>", "<|video_pad|>")]
    assert engine_prompts.forbid_vision_tokens(processor, use_vllm=True) == {"logit_bias": {ids[0]: -100.0, ids[1]: -100.0}}
    assert engine_prompts.forbid_vision_tokens(processor, use_vllm=False) == {"suppress_tokens": ids}
    assert all(type(key) is int for key in engine_prompts.forbid_vision_tokens(processor, use_vllm=True)["logit_bias"])
