"""Covers images/qwen_image.py with a tiny real pipeline: the published picture, batches, guidance, sizes, long texts, no pictures."""

import logging
import math

import numpy
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from transformers import AutoModelForImageTextToText, AutoProcessor

from demo import tiny_qwen_image
from qwen_vl_grpo.errors import RenderError
from qwen_vl_grpo.images import frozen, qwen_image
from qwen_vl_grpo.images.embeddings import PolicyEncoder, Turn
from qwen_vl_grpo.interfaces import Conditioning, RenderRequest, Source
from qwen_vl_grpo.rendered_sections import RendererSection

CPU = torch.device("cpu")
WIDTH = 128
PROMPTS = ["a red cat", "a green dog with a hat and shoes, on a long red sofa"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, checkpoint):
    made = tmp_path_factory.mktemp("qwen_image")
    tiny_qwen_image.build(made, "qwen_image", checkpoint("qwen2_5_vl"))
    return made


@pytest.fixture(scope="module")
def encode(checkpoint):
    policy = checkpoint("qwen2_5_vl")
    encoder = PolicyEncoder("qwen_image", AutoModelForImageTextToText.from_pretrained(policy), AutoProcessor.from_pretrained(policy))
    return lambda *prompts: [encoded.conditioning for encoded in encoder.encode([Turn(prompt) for prompt in prompts])]


@pytest.fixture
def renderer(folder):
    def make(negative=None, **changes):
        given = {"name": "qwen_image", "model": str(folder), "width": 32, "height": 32, "steps": 2, "guidance_scale": 1.0} | changes
        made = qwen_image.QwenImage(RendererSection(**given), CPU)
        made.negative = negative
        return made

    return make


@pytest.fixture
def values(monkeypatch):
    """Let pictures stay as the numbers that they are made of."""
    monkeypatch.setattr(frozen, "picture", lambda drawn: drawn)


def states(tokens, seed=0):
    drawn = torch.randn(tokens, WIDTH, generator=torch.Generator().manual_seed(seed))
    return Conditioning(f"{tokens}/{seed}", drawn)


def request(conditioning, seed=7, size=None, sources=()):
    return RenderRequest("a cat", "a red cat", seed, size, sources, conditioning)


def nearly(one, other):
    return numpy.abs(numpy.asarray(one, float) - numpy.asarray(other, float)).max()


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_an_empty_completion_is_drawn_as_the_published_pipeline_draws_its_prompt(folder, renderer, encode, values, scale):
    published = tiny_qwen_image.load(folder, "qwen_image")
    ours = renderer(lambda asked: encode(" ") * len(asked), guidance_scale=scale)
    drawn = ours.render([request(conditioning, seed) for seed, conditioning in enumerate(encode(*PROMPTS))])
    for seed, (prompt, picture) in enumerate(zip(PROMPTS, drawn, strict=True)):
        noise = torch.Generator().manual_seed(seed)
        theirs = published(
            prompt, " " if scale > 1 else None, scale, 32, 32, num_inference_steps=2, generator=noise, output_type="np"
        ).images[0]
        assert nearly(theirs, picture) < 1e-4
    assert nearly(*drawn) > 0.01


def test_a_picture_follows_states_and_seed_and_not_its_batch(renderer, values):
    wanted = [request(states(5)), request(states(40)), request(states(5), seed=8), request(states(5)), request(states(40))]
    together = renderer(batch_size=8).render(wanted)
    alone = [renderer().render([one])[0] for one in wanted]  # each time loaded anew
    assert all(nearly(one, other) < 1e-4 for one, other in zip(together, alone, strict=True))
    assert numpy.array_equal(together[0], together[3])
    assert nearly(together[0], together[1]) > 0.01
    assert nearly(together[0], together[2]) > 0.01


def test_guidance_takes_two_passes_a_step_and_changes_the_picture(renderer):
    asked = []

    def negative(requests):
        asked.append(len(requests))
        return [states(3, seed=index) for index in range(len(requests))]

    drawn = []
    for made in (renderer(), renderer(negative, guidance_scale=4.0)):
        passes = []
        made.pipeline.transformer.register_forward_pre_hook(lambda *_, passes=passes: passes.append(1))
        drawn.append(made.render([request(states(9)), request(states(5))]))
        assert len(passes) == 2 * len(drawn)
    assert asked == [2]
    assert drawn[0][0].tobytes() != drawn[1][0].tobytes()
    assert drawn[1][1].tobytes() != renderer(negative, guidance_scale=4.0).render([request(states(5))])[0].tobytes()  # its own negative


def test_guidance_without_a_negative_prompt_is_never_silently_off(renderer):
    guided = renderer(guidance_scale=4.0)
    with pytest.raises(RenderError, match=r"^renderer.guidance_scale 4 leads away from a negative prompt, and nobody gives its states"):
        guided.render([request(states(5))])
    guided.negative = lambda asked: [states(3)]
    with pytest.raises(RenderError, match="was encoded 1 times for 2 pictures"):
        guided.render([request(states(5)), request(states(6))])


def test_sizes_are_the_rows_and_one_that_would_be_rounded_is_a_failure(renderer):
    wide, odd, usual = renderer().render([request(states(5), size=size) for size in ((48, 32), (40, 32), None)])
    assert (wide.size, usual.size) == ((48, 32), (32, 32))
    assert "a picture of 40x32 cannot be drawn: qwen_image takes multiples of 16 pixels" in str(odd)
    with pytest.raises(ValidationError, match="width 500: qwen_image takes multiples of 16; take 496 or 512"):
        RendererSection(name="qwen_image", width=500)


def test_1024_tokens_are_read_and_what_is_cut_is_the_end_and_counted(renderer, values, caplog):
    long = states(1100)
    start = {length: Conditioning(str(length), long.states[:length]) for length in (77, 512, 700, 1024)}
    drawn = renderer().render([request(start[512]), request(start[700])])
    assert nearly(*drawn) > 1e-3  # the pipeline reads 512 unless it is asked for more
    for most, made in ((1024, renderer()), (77, renderer(text_tokens=77))):
        with caplog.at_level(logging.WARNING, "qwen_vl_grpo"):
            caplog.clear()
            whole, again, cut = made.render([request(long), request(start[700]), request(start[most])])
        assert nearly(whole, cut) < 1e-4
        assert (nearly(again, cut) < 1e-4) == (most == 77)
        assert len(made.cut) == (2 if most == 77 else 1)
        assert caplog.text.count("is cut at renderer.text_tokens") == 1


def test_no_weight_moves_and_the_encoder_is_not_loaded(renderer):
    made = renderer(lambda asked: [states(3)] * len(asked), guidance_scale=4.0)
    parts = {name: part for name, part in made.pipeline.components.items() if isinstance(part, torch.nn.Module)}
    assert set(parts) == {"transformer", "vae"}
    before = {name: [weight.clone() for weight in part.parameters()] for name, part in parts.items()}
    with torch.enable_grad():
        made.render([request(states(5)), request(states(9))])
    for name, part in parts.items():
        assert not part.training
        for weight, old in zip(part.parameters(), before[name], strict=True):
            assert not weight.requires_grad
            assert torch.equal(weight, old)


def test_memory_that_runs_out_in_the_transformer_halves_the_batch_once(renderer, caplog):
    made, sizes = renderer(batch_size=4), []

    def full(_, __, named):
        sizes.append(len(named["hidden_states"]))
        if sizes[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    made.pipeline.transformer.register_forward_pre_hook(full, with_kwargs=True)
    wanted = [request(states(5 + number)) for number in range(4)]
    with caplog.at_level(logging.WARNING, "qwen_vl_grpo"):
        drawn = made.render(wanted) + made.render(wanted)
    assert sizes == [4] + [2] * 2 * 4
    assert caplog.text.count("do not fit into memory") == 1
    assert [picture.size for picture in drawn] == [(32, 32)] * 8


def test_pictures_that_are_none_are_failures(renderer):
    made = renderer()
    good, broken = made.render([request(states(5)), request(Conditioning("nan", torch.full((5, WIDTH), math.nan)))])
    assert isinstance(good, Image.Image)
    assert "no numbers" in str(broken)
    with torch.no_grad():
        made.pipeline.vae.decoder.conv_out.weight.zero_()
    assert "blank" in str(made.render([request(states(5))])[0])


def test_a_request_that_cannot_be_drawn_leaves_the_others_alone(renderer):
    picture = Source("a", Image.new("RGB", (32, 32)))
    text, edit, good = renderer().render([request(None), request(states(5), sources=(picture,)), request(states(5))])
    assert "this request has none; take a task that encodes its completions" in str(text)
    assert "draws from words alone, and this row has pictures; take qwen_image_edit" in str(edit)
    assert good.size == (32, 32)


def test_states_of_another_width_are_refused(renderer):
    with pytest.raises(RenderError, match=r"states are 64 wide, and renderer.model .* takes 128"):
        renderer().render([request(Conditioning("narrow", torch.zeros(5, 64)))])


def test_states_take_the_transformers_dtype(renderer):
    made = renderer(dtype="bfloat16")
    assert made.render([request(states(5))])[0].size == (32, 32)
    assert made.pipeline.transformer.dtype == torch.bfloat16


def test_it_is_asleep_between_steps(renderer):
    made = renderer(offload="asleep")
    first = made.render([request(states(5))])[0]
    moves, to = [], made.pipeline.to
    made.pipeline.to = lambda device: moves.append(str(device)) or to(device)
    made.rest()
    assert made.render([request(states(5))])[0].tobytes() == first.tobytes()
    assert moves == ["cpu", "cpu"]  # to the host, and back to its device, which is the host here


def test_defaults_follow_the_name_and_what_is_written_stays():
    made = RendererSection(name="qwen_image")
    assert (made.model, made.steps, made.width, made.height) == ("Qwen/Qwen-Image", 50, 1024, 1024)
    assert (made.guidance_scale, made.negative_prompt, made.text_tokens) == (4.0, " ", 1024)
    assert RendererSection(name="qwen_image_edit").model == "Qwen/Qwen-Image-Edit"
    assert RendererSection(name="qwen_image_edit_plus").model == "Qwen/Qwen-Image-Edit-2509"
    assert RendererSection(name="qwen_image", steps=8, model="mine").model_dump() == made.model_dump() | {"steps": 8, "model": "mine"}
    assert RendererSection(**made.model_dump()) == made
    assert (RendererSection().steps, RendererSection(name="mine.py:painter").steps) == (28, 28)
    with pytest.raises(ValidationError, match="text_tokens 600: sd3's T5 reads at most 512"):
        RendererSection(text_tokens=600)
