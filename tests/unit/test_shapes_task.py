"""Covers the task of the shapes demonstration: whose states are drawn, in a run and in its control, and which rows are refused."""

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from demo import shapes_task, tiny_qwen_image
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.images.embeddings import PolicyEncoder, Turn

PROMPT, WORDS = "grass, a coin", ["green circle", "red square"]


@pytest.fixture(scope="module")
def policy(checkpoint):
    model = AutoModelForImageTextToText.from_pretrained(checkpoint("qwen2_5_vl"), dtype=torch.float32)
    return model, AutoProcessor.from_pretrained(checkpoint("qwen2_5_vl"))


@pytest.fixture
def drawn_from(config_of, checkpoint, policy, tmp_path):
    """The states that a reward has WORDS drawn from, sampled ids given or not."""
    tiny_qwen_image.build(tmp_path / "painter", "qwen_image", checkpoint("qwen2_5_vl"))
    section = {"name": "qwen_image", "model": str(tmp_path / "painter"), "width": 16, "height": 16, "steps": 1, "guidance_scale": 1}
    judge = {"name": "demo/shapes_judge.py:build"}
    config = config_of(model_name=checkpoint("qwen2_5_vl"), renderer=section, judge=judge, output_dir=str(tmp_path))

    def states(reward, **columns):
        made = reward(config, kind="qwen_image")
        made.hold(*policy)
        return [request.conditioning for request in made._requests(WORDS, [PROMPT] * 2, columns, None)]

    return states


def test_a_completion_is_drawn_from_the_states_of_its_words_and_in_the_control_from_those_of_none(drawn_from, policy):
    ids = [tuple(policy[1].tokenizer(words)["input_ids"]) for words in WORDS]
    encoded = PolicyEncoder("qwen_image", *policy).encode([*(Turn(PROMPT, said) for said in ids), Turn(PROMPT)])
    *said, unsaid = (one.conditioning for one in encoded)
    for columns in ({}, {"completion_ids": ids}):
        assert drawn_from(shapes_task.StatesReward, **columns) == said
        assert drawn_from(shapes_task.UnsaidReward, **columns) == [unsaid, unsaid]
    assert unsaid not in said


def test_a_row_without_an_answer_is_refused():
    with pytest.raises(DataError, match="has no question or no answer; it has id, question; write it"):
        shapes_task.read_row({"id": "1", "question": PROMPT}, None, "")
