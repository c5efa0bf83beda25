"""Covers the shapes demonstration: what the pixel judge sees and refuses to score, its prompts, and a painter that reads states alone."""

import json
import random
from typing import Any

import numpy
import pytest
from PIL import Image, ImageDraw

from demo import shapes_words
from demo.shapes_judge import PALETTE, SIDE, PixelJudge, outline, overlap, paint, painted, read
from qwen_vl_grpo.errors import JudgeError
from qwen_vl_grpo.interfaces import Judgement, RenderRequest


def judged(asked: str, image: Image.Image) -> Any:
    (outcome,) = PixelJudge().judge([(RenderRequest("a prompt", "?", seed=0, rubric=asked), image)])
    return outcome


def test_every_drawing_is_read_as_it_was_painted_wherever_it_stands():
    draw = numpy.random.default_rng(0)
    for drawing in shapes_words.drawings():
        assert {" ".join(read(painted(drawing, draw))) for _ in range(20)} == {drawing}


def test_half_a_point_is_for_the_colour_and_half_for_the_shape():
    picture = paint("green triangle", 12, 2, 2)
    scores = {asked: judged(asked, picture).score for asked in ("green triangle", "green square", "red triangle", "blue circle")}
    assert list(scores.values()) == [1.0, 0.5, 0.5, 0.0]
    assert judged("green square", picture).details == {"colour": 1.0, "shape": 0.0}
    assert judged("green square", picture).reason == "it shows green triangle"


@pytest.mark.parametrize("colour", ["white", "black", PALETTE["red"]])
def test_a_picture_of_one_colour_shows_nothing(colour):
    outcome = judged("red square", Image.new("RGB", (SIDE, SIDE), colour))
    assert isinstance(outcome, Judgement) and (outcome.score, outcome.reason) == (0.0, "it shows nothing")


def test_noise_shows_no_shape_and_no_colour():
    noise = Image.fromarray(numpy.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), numpy.uint8))
    assert [judged(drawing, noise).score for drawing in shapes_words.drawings()] == [0.0] * 12


def test_two_drawings_at_once_are_no_drawing():
    both = Image.new("RGB", (SIDE, SIDE), "white")
    pen = ImageDraw.Draw(both)
    pen.rectangle((0, 0, 5, 5), PALETTE["red"])
    pen.rectangle((10, 10, 15, 15), PALETTE["blue"])
    assert read(both) == ("", "")


def test_a_paler_picture_has_the_same_colour():
    for colour in PALETTE:
        pale = Image.blend(paint(f"{colour} square", 12, 2, 2), Image.new("RGB", (SIDE, SIDE), "white"), 0.4)
        assert read(pale) == (colour, "square")


def test_a_rubric_that_names_no_drawing_is_no_score():
    for asked in ("", "green", "pink square", "green star"):
        assert isinstance(judged(asked, paint("green square", 12, 2, 2)), JudgeError)


def test_the_shapes_are_told_apart_at_every_size():
    for side in range(9, 15):
        masks = {shape: outline(shape, side, side) for shape in shapes_words.SHAPES}
        assert max(overlap(masks[one], masks[other]) for one in masks for other in masks if one != other) < 0.9


def test_a_held_out_prompt_puts_known_clues_together_for_the_first_time():
    rows = shapes_words.splits()
    prompts = [row["question"] for part in rows.values() for row in part]
    assert len(set(prompts)) == len(prompts) == 24 * 18
    trained = {clue for row in rows["train"] for clue in row["clues"].split(", ")}
    assert {clue for part in rows.values() for row in part for clue in row["clues"].split(", ")} == trained
    answers = {word for drawing in shapes_words.drawings() for word in drawing.split()}
    assert not [prompt for prompt in prompts if answers & set(prompt.replace(",", "").split())]


def test_the_warm_up_repeats_one_mistake_as_often_as_the_truth_and_copies_the_clue(tmp_path):
    shapes_words.write(tmp_path, seed=1)
    rows = [json.loads(line) for line in (tmp_path / "warmup.jsonl").read_text(encoding="utf-8").splitlines()]
    mistakes = shapes_words.mistaken(random.Random(1))
    said = [(row["clues"].split(", ")[0], row["answer"].split()[0], row["target"].split()[0]) for row in rows]
    any_word = 1 - shapes_words.RIGHT - shapes_words.MISTAKEN - shapes_words.COPIED
    by_chance = any_word / len(shapes_words.COLOURS)
    for share, words in (
        (shapes_words.RIGHT + by_chance, [word == right for _, right, word in said]),
        (shapes_words.MISTAKEN + by_chance, [word == mistakes[clue] for clue, _, word in said]),
        (shapes_words.COPIED, [word == clue.split()[-1] for clue, _, word in said]),
    ):
        assert sum(words) / len(words) == pytest.approx(share, abs=0.03)


def test_the_painter_is_a_qwen_image_pipeline_that_draws_from_states_and_not_from_text(tmp_path, monkeypatch):
    import torch
    from diffusers.pipelines.qwenimage.pipeline_qwenimage import QwenImagePipeline
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from demo import tiny_painter, tiny_qwen
    from qwen_vl_grpo.images.embeddings import PolicyEncoder, Turn

    for name, less in {"LESSONS": 48, "AUTOENCODER_STEPS": 30, "TRANSFORMER_STEPS": 30}.items():
        monkeypatch.setattr(tiny_painter, name, less)
    tiny_qwen.build(tmp_path / "policy", phrases=[*shapes_words.drawings(), "grass", "coin"])
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "policy", dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(tmp_path / "policy")
    tiny_painter.teach(tmp_path / "painter", model, processor, ["grass, coin"], seed=0)
    pipeline: Any = QwenImagePipeline.from_pretrained(tmp_path / "painter", text_encoder=None, tokenizer=None)
    said = [tuple(processor.tokenizer(words)["input_ids"]) for words in ("green circle", "red square")]
    encoder = PolicyEncoder("qwen_image", model, processor)
    drawn = []
    for encoded in encoder.encode([Turn("grass, coin", ids) for ids in (*said, said[0])]):
        noise = torch.Generator().manual_seed(0)
        states = encoded.conditioning.states[None]
        given = {"width": SIDE, "height": SIDE, "num_inference_steps": 2, "true_cfg_scale": 1.0, "output_type": "np"}
        drawn.append(pipeline(prompt_embeds=states, generator=noise, **given).images)
    assert drawn[0].shape == (1, SIDE, SIDE, 3)
    assert (drawn[0] != drawn[1]).any() and (drawn[0] == drawn[2]).all()
