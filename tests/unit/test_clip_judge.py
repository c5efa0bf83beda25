"""Covers judges/clip.py with a tiny real CLIP: the original prompt, 77 tokens, the fixed mapping, and the documented calls."""

import math

import numpy
import pytest
import torch
from PIL import Image

from demo import tiny_pictures
from qwen_vl_grpo.errors import HardwareError, JudgeError
from qwen_vl_grpo.interfaces import RenderRequest
from qwen_vl_grpo.judges.clip import ClipJudge, CLIPRewardCalculator
from qwen_vl_grpo.rendered_sections import JudgeSection


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("clip")
    tiny_pictures.clip(made)
    return str(made)


@pytest.fixture
def judge(folder):
    return lambda **changes: ClipJudge(JudgeSection(model=folder, **changes), torch.device("cpu"))


def image(seed=0, size=(40, 32)):
    return Image.fromarray((numpy.random.default_rng(seed).random((size[1], size[0], 3)) * 255).astype("uint8"))


def test_the_cosine_is_that_of_the_published_model(judge, folder):
    from transformers import CLIPModel, CLIPProcessor

    processor, model = CLIPProcessor.from_pretrained(folder), CLIPModel.from_pretrained(folder).eval()
    inputs = processor(text=["a cat"], images=[image()], return_tensors="pt")
    with torch.no_grad():
        expected = float(model(**inputs).logits_per_image / model.logit_scale.exp())
    said = judge().judge([(RenderRequest("a cat", "whatever", 0), image())])[0]
    assert said.details["cosine"] == pytest.approx(expected, abs=1e-6)


def test_the_original_is_judged_and_not_the_completion(judge):
    clip = judge()
    one, other, asked = clip.judge(
        [
            (RenderRequest("a cat", "a cat", 0), image()),
            (RenderRequest("a cat", "clip loves this", 0), image()),
            (RenderRequest("a dog", "a cat", 0), image()),
        ]
    )
    assert one.details["cosine"] == pytest.approx(other.details["cosine"], abs=1e-6)
    assert one.details["cosine"] != pytest.approx(asked.details["cosine"], abs=1e-4)


def test_fixed_bounds_make_the_score_and_the_raw_cosine_is_kept(judge):
    pair = [(RenderRequest("a cat", "a cat", 0), image())]
    cosine = judge().judge(pair)[0].details["cosine"]
    for low, high, score in (
        (cosine - 0.1, cosine + 0.1, 0.5),
        (cosine, cosine + 1, 0.0),
        (cosine + 0.1, cosine + 1, 0.0),
        (cosine - 1, cosine - 0.1, 1.0),
    ):
        said = judge(low=low, high=high).judge(pair)[0]
        assert said.score == pytest.approx(score, abs=1e-5)
        assert said.details["cosine"] == pytest.approx(cosine)


def test_a_long_prompt_is_cut_at_77_tokens_and_counted(judge):
    clip = judge()
    words = "cat " * 30  # a token a letter: 77 are reached within them
    short, long, longer = clip.judge([(RenderRequest(prompt, "", 0), image()) for prompt in ("cat", words + "dog", words + "a bird")])
    assert [said.details["truncated"] for said in (short, long, longer)] == [0.0, 1.0, 1.0]
    assert long.details["cosine"] == pytest.approx(longer.details["cosine"], abs=1e-6)


def test_a_batch_scores_as_one_by_one(judge):
    clip = judge()
    pairs = [(RenderRequest(prompt, "", 0), image(seed)) for seed, prompt in enumerate(("a cat", "a very long dog on a hill", "x"))]
    for said, pair in zip(clip.judge(pairs), pairs, strict=True):
        assert said.details["cosine"] == pytest.approx(clip.judge([pair])[0].details["cosine"], abs=1e-5)


def test_a_model_that_gives_no_number_gives_no_score(judge):
    clip = judge()
    with torch.no_grad():
        clip.model[0].visual_projection.weight.fill_(math.nan)
    said = clip.judge([(RenderRequest("a cat", "", 0), image())])
    assert isinstance(said[0], JudgeError)


def test_the_identity_holds_what_decides_a_score(judge):
    same = judge(concurrency=2, attempts=1).identity
    assert same == judge().identity
    assert len({same, judge(low=0.1).identity, judge(revision="abc").identity}) == 3


def test_the_documented_calls(folder):
    calculator = CLIPRewardCalculator(model_name=folder, low=-1, high=1)
    assert 0 <= calculator.calculate_reward("a cat", image()) <= 1
    both = calculator.calculate_rewards_batch(["a cat", "a dog"], [image(), image(1)])
    assert both[0] == pytest.approx(calculator.calculate_reward("a cat", image()), abs=1e-5)
    many = calculator.calculate_rewards_batch(["a cat"] * 70, [image(seed) for seed in range(70)])
    assert many[69] == pytest.approx(calculator.calculate_reward("a cat", image(69)), abs=1e-5)
    with pytest.raises(JudgeError, match="2 prompts and 1 pictures"):
        calculator.calculate_rewards_batch(["a", "b"], [image()])
    with pytest.raises(HardwareError, match="there is no cuda:7 here"):
        CLIPRewardCalculator(model_name=folder, device="cuda:7")
