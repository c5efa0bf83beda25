"""Covers images/sd3.py with a tiny real pipeline: determinism, frozen weights, memory that runs out, and pictures that are none."""

import logging
import math

import numpy
import pytest
import torch

from demo import tiny_pictures
from qwen_vl_grpo.errors import RenderError
from qwen_vl_grpo.images import frozen, sd3
from qwen_vl_grpo.interfaces import RenderRequest
from qwen_vl_grpo.rendered_sections import RendererSection

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("sd3")
    tiny_pictures.sd3(made)
    return made


@pytest.fixture
def renderer(folder):
    def make(**changes):
        given = {"model": str(folder), "t5": False, "width": 32, "height": 32, "steps": 2, "guidance_scale": 3.0} | changes
        return sd3.StableDiffusion3(RendererSection(**given), CPU)

    return make


def requests(*completions, seed=7, size=None):
    return [RenderRequest("a cat", completion, seed, size) for completion in completions]


def test_a_picture_follows_words_and_seed_and_not_its_batch(renderer):
    generator = renderer()
    generator.check()
    red, blue, again, other = generator.render(requests("a red cat", "a blue cat", "a red cat") + requests("a red cat", seed=8))
    alone = renderer().render(requests("a red cat"))[0]
    assert red.size == (32, 32)
    assert numpy.abs(numpy.asarray(red, int) - numpy.asarray(alone, int)).max() <= 1  # a batch may round the last digit otherwise
    assert red.tobytes() == again.tobytes()
    assert len({picture.tobytes() for picture in (red, blue, other)}) == 3


def test_size_and_settings_are_the_configs(renderer):
    assert renderer().render(requests("a cat", size=(48, 32)))[0].size == (48, 32)
    plain = renderer().render(requests("a cat"))[0]
    for changes in ({"steps": 3}, {"guidance_scale": 6.0}, {"negative_prompt": "a dog"}):
        assert renderer(**changes).render(requests("a cat"))[0].tobytes() != plain.tobytes(), changes
        assert renderer(**changes).identity != renderer().identity
    assert renderer(batch_size=1, offload="asleep", compile=True).identity == renderer().identity
    assert renderer(dtype="bfloat16").pipeline.transformer.dtype == torch.bfloat16
    compiled = [renderer(compile=wanted).pipeline.transformer._compiled_call_impl is not None for wanted in (True, False)]
    assert compiled == [True, False]


def test_words_beyond_77_tokens_are_read_by_nobody_without_t5(renderer):
    one, other = renderer().render(requests("word " * 30 + "cat", "word " * 3000))
    assert one.tobytes() == other.tobytes()


def test_a_size_that_the_model_cannot_draw_is_said(renderer):
    with pytest.raises(RenderError, match=r"refuses to draw .*divisible"):
        renderer().render(requests("a cat", size=(33, 32)))


def too_much(kind):
    if kind == "CPU":
        torch.empty(1 << 60, dtype=torch.uint8)
    raise torch.OutOfMemoryError("CUDA out of memory") if kind == "CUDA" else RuntimeError("MPS backend out of memory (MPS allocated …)")


@pytest.mark.parametrize("kind", ["CUDA", "MPS", "CPU"])
def test_memory_that_runs_out_in_the_middle_halves_the_batch_and_is_said_once(renderer, caplog, kind):
    generator, sizes = renderer(batch_size=8), []
    drawn = generator._draw

    def crowded(part):
        sizes.append(len(part))
        if len(part) > 2:
            too_much(kind)
        return drawn(part)

    generator._draw = crowded
    wanted = requests(*(f"cat {number}" for number in range(6)))
    with caplog.at_level(logging.WARNING, "qwen_vl_grpo"):
        pictures = generator.render(wanted)
        generator.render(wanted[:4])
    assert sizes == [6, 3] + [1] * 10
    assert [picture.tobytes() for picture in pictures] == [renderer().render([one])[0].tobytes() for one in wanted]
    assert caplog.text.count("do not fit into memory") == 2  # 6, and then 3: never again


def test_a_picture_that_does_not_fit_alone_is_a_failure_and_no_score(renderer):
    generator = renderer()

    def full(part):
        raise torch.OutOfMemoryError("CUDA out of memory")

    generator._draw = full
    assert all(isinstance(outcome, RenderError) for outcome in generator.render(requests("a", "b", "c")))


def test_what_else_breaks_down_is_no_lack_of_memory(renderer):
    generator = renderer(batch_size=8)

    def broken(part):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    generator._draw = broken
    with pytest.raises(RuntimeError, match="illegal memory access"):
        generator.render(requests("a", "b"))
    assert generator.batch_size == 8


def test_numbers_that_are_none_and_blank_pictures_are_failures():
    noise = numpy.random.default_rng(0).random((32, 32, 3))
    assert frozen.picture(noise).size == (32, 32)
    broken = noise.copy()
    broken[3, 4, 1] = math.nan
    assert "no numbers" in str(frozen.picture(broken))
    assert "blank" in str(frozen.picture(numpy.full((32, 32, 3), 0.7)))


def test_weights_that_are_no_numbers_come_out_as_failures(renderer):
    generator = renderer()
    with torch.no_grad():
        next(generator.pipeline.vae.decoder.parameters()).fill_(math.nan)
    outcomes = generator.render(requests("a cat", "a dog"))
    assert ["no numbers" in str(outcome) for outcome in outcomes] == [True, True]


def test_it_is_frozen_and_asleep_between_steps(renderer):
    generator = renderer(offload="asleep")
    generator.rest()  # before the first picture there is nothing to put to sleep
    first = generator.render(requests("a cat"))[0]
    parts = [part for part in generator.pipeline.components.values() if isinstance(part, torch.nn.Module)]
    assert not any(weight.requires_grad for part in parts for weight in part.parameters())
    assert not any(part.training for part in parts)
    moves = []
    to = generator.pipeline.to
    generator.pipeline.to = lambda device: moves.append(str(device)) or to(device)
    generator.rest()
    assert generator.render(requests("a cat"))[0].tobytes() == first.tobytes()
    assert moves[:2] == ["cpu", "cpu"]  # to the host, and back to its device, which is the host here


@pytest.mark.parametrize(
    ("model", "said"),
    [("nowhere/at/all", "there is no such folder here"), (".", "the folder holds no model_index.json")],
)
def test_weights_that_are_not_there_are_refused_before_anything_is_read(renderer, model, said):
    with pytest.raises(RenderError, match=said):
        renderer(model=model).check()


def test_a_broken_folder_is_one_sentence(renderer, tmp_path):
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusion3Pipeline", "vae": ["diffusers", "AutoencoderKL"]}')
    with pytest.raises(RenderError, match=r"^renderer.model .*: cannot be loaded \("):
        renderer(model=str(tmp_path)).render(requests("a cat"))
