"""Covers images/qwen_image_edit.py with tiny real pipelines: the published picture, sources of any shape, and sources that are none."""

import io

import numpy
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from demo import tiny_qwen_image
from qwen_vl_grpo.errors import RenderError
from qwen_vl_grpo.images import frozen, qwen_image_edit
from qwen_vl_grpo.images.embeddings import PolicyEncoder, Turn
from qwen_vl_grpo.interfaces import Conditioning, RenderRequest, Source
from qwen_vl_grpo.rendered_sections import RendererSection

KINDS = {"qwen_image_edit": qwen_image_edit.QwenImageEdit, "qwen_image_edit_plus": qwen_image_edit.QwenImageEditPlus}
NOISE = Image.fromarray((numpy.random.default_rng(0).random((96, 128, 3)) * 255).astype("uint8"))
WIDE, TALL, OTHER = Source("wide", NOISE), Source("tall", NOISE.resize((64, 128))), Source("other", NOISE.rotate(180))
both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, checkpoint):
    made = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    for kind, folder in made.items():
        tiny_qwen_image.build(folder, kind, checkpoint("qwen2_5_vl"))
    return made


@pytest.fixture
def renderer(folders):
    def make(kind="qwen_image_edit", negative=None, **changes):
        given = {"model": str(folders[kind]), "width": 32, "height": 32, "steps": 2, "guidance_scale": 1.0} | changes
        made = KINDS[kind](RendererSection(name=kind, **given), torch.device("cpu"))
        made.negative = negative
        return made

    with tiny_qwen_image.small_sources():
        yield make


@pytest.fixture
def values(monkeypatch):
    """Let pictures stay as the numbers that they are made of."""
    monkeypatch.setattr(frozen, "picture", lambda drawn: drawn)


def request(*sources, tokens=30, seed=7, size=None):
    states = torch.randn(tokens, 128, generator=torch.Generator().manual_seed(tokens))
    return RenderRequest("make it blue", "I paint it blue.", seed, size, sources, Conditioning(str(tokens), states))


def nearly(one, other):
    return numpy.abs(numpy.asarray(one, float) - numpy.asarray(other, float)).max()


@both
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_an_empty_completion_is_drawn_as_the_published_pipeline_draws_its_instruction(folders, checkpoint, renderer, values, kind, scale):
    sources = (WIDE,) if kind == "qwen_image_edit" else (WIDE, TALL)
    policy = checkpoint("qwen2_5_vl")
    encoder = PolicyEncoder(kind, AutoModelForImageTextToText.from_pretrained(policy), AutoProcessor.from_pretrained(policy))

    def encode(text, sources):
        return encoder.encode([Turn(text, (), sources)])[0].conditioning

    published = tiny_qwen_image.load(folders[kind], kind)
    pictures = [source.image for source in sources]
    with tiny_qwen_image.picture_types(published):
        theirs = published(
            # Edit resizes one picture for its encoder, and a list of one it does not
            image=pictures if len(pictures) > 1 else pictures[0], prompt="make it blue", negative_prompt=" " if scale > 1 else None,
            true_cfg_scale=scale, width=48, height=32, num_inference_steps=2, generator=torch.Generator().manual_seed(7), output_type="np",
        ).images[0]  # fmt: skip
    ours = renderer(kind, lambda asked: [encode(" ", one.sources) for one in asked], guidance_scale=scale)
    asked = RenderRequest("make it blue", "", 7, (48, 32), sources, encode("make it blue", sources))
    assert nearly(ours.render([asked])[0], theirs) < 1e-4


@both
def test_a_picture_follows_its_own_source_whatever_shape_stands_beside_it(renderer, values, kind):
    wanted = [request(WIDE), request(TALL, tokens=12), request(OTHER, tokens=20), request(WIDE, seed=8), request(WIDE)]
    together = renderer(kind, batch_size=8).render(wanted)
    alone = [renderer(kind).render([one])[0] for one in wanted]
    assert all(nearly(one, other) < 1e-4 for one, other in zip(together, alone, strict=True))
    assert numpy.array_equal(together[0], together[4])
    assert nearly(together[0], together[3]) > 0.01
    assert nearly(*renderer(kind).render([request(WIDE), request(OTHER)])) > 1e-3


def test_sources_of_one_shape_are_drawn_at_once_and_edit_plus_draws_one_by_one(renderer):
    for kind, expected in (("qwen_image_edit", [2, 1]), ("qwen_image_edit_plus", [1, 1, 1])):
        made, rows = renderer(kind, batch_size=8, steps=1), []
        watch = made.pipeline.transformer.register_forward_pre_hook
        watch(lambda _, __, named, rows=rows: rows.append(len(named["hidden_states"])), with_kwargs=True)
        assert all(isinstance(picture, Image.Image) for picture in made.render([request(WIDE), request(TALL), request(OTHER)]))
        assert rows == expected
    assert renderer("qwen_image_edit_plus").batch_size == 1


def test_edit_plus_sees_all_sources_in_their_order(renderer, values):
    one, two, swapped = renderer("qwen_image_edit_plus").render([request(WIDE), request(WIDE, TALL), request(TALL, WIDE, size=(32, 32))])
    assert nearly(one, two[:32, :32]) > 1e-3
    assert nearly(swapped, one) > 1e-3


def test_the_shape_is_the_sources_unless_the_row_says_a_size(renderer):
    made = renderer(width=64, height=64)
    sizes = [picture.size for picture in made.render([request(WIDE), request(TALL), request(TALL, size=(48, 32))])]
    assert sizes == [(64, 64), (32, 96), (48, 32)]
    plus = renderer("qwen_image_edit_plus", width=64, height=64)
    assert [picture.size for picture in plus.render([request(WIDE, TALL), request(TALL, WIDE)])] == [(32, 96), (64, 64)]  # the last one's
    assert "multiples of 16" in str(made.render([request(WIDE, size=(40, 32))])[0])
    assert qwen_image_edit.shaped(1024 * 1024, NOISE) == (1184, 896)


@both
def test_each_negative_prompt_is_asked_for_with_the_sources_of_its_picture(renderer, kind):
    asked = []

    def negative(requests):
        asked.extend(one.sources for one in requests)
        return [request(tokens=3).conditioning] * len(requests)

    guided = renderer(kind, negative, guidance_scale=4.0)
    passes = []
    guided.pipeline.transformer.register_forward_pre_hook(lambda *_: passes.append(1))
    assert guided.render([request(WIDE)])[0].tobytes() != renderer(kind).render([request(WIDE)])[0].tobytes()
    guided.render([request(TALL)])
    assert len(passes) == 8
    assert asked == [(WIDE,), (TALL,)]


@both
def test_a_source_that_is_missing_broken_or_too_narrow_is_a_failure_of_its_own_row(renderer, kind):
    file = io.BytesIO()
    NOISE.save(file, "png")
    cut = Image.open(io.BytesIO(file.getvalue()[: len(file.getvalue()) // 2]))
    narrow = Source("narrow", Image.new("RGB", (1, 5000)))
    none, broken, thin, good = renderer(kind).render([request(), request(Source("cut", cut)), request(narrow), request(WIDE)])
    assert ("edits at least one picture" if "plus" in kind else "edits one picture") in str(none)
    assert "this row has 0" in str(none)
    assert "cannot be read (image file is truncated" in str(broken)
    assert "a picture of 1x5000 is too narrow" in str(thin)
    assert good.size == (32, 32)


def test_edit_takes_one_picture(renderer):
    assert "edits one picture, and this row has 2" in str(renderer().render([request(WIDE, TALL)])[0])


def test_more_text_than_there_are_positions_is_a_failure_and_a_long_one_is_read_whole(renderer, values):
    made = renderer()
    short, long, more = made.render([request(WIDE, tokens=tokens) for tokens in (1500, 2000, 4090)])
    assert "4090 tokens of text and pictures are more than the transformer has positions for (4059)" in str(more)
    assert short.shape == long.shape
    last = request(WIDE, tokens=2000)
    last.conditioning.states[-1] *= -9
    assert nearly(made.render([last])[0], long) > 1e-5


@both
def test_grey_and_transparent_sources_are_read_as_colours(renderer, kind):
    grey = NOISE.convert("L")
    made = renderer(kind)
    drawn = [made.render([request(Source(mode, grey.convert(mode)))])[0].tobytes() for mode in ("L", "RGB", "RGBA", "LA")]
    assert len(set(drawn)) == 1


@both
def test_no_weight_moves_and_neither_encoder_nor_processor_is_loaded(renderer, kind):
    made = renderer(kind)
    parts = {name: part for name, part in made.pipeline.components.items() if part is not None}
    assert set(parts) == {"transformer", "vae", "scheduler"}
    weights = [weight for name in ("transformer", "vae") for weight in parts[name].parameters()]
    before = [weight.clone() for weight in weights]
    with torch.enable_grad():
        made.render([request(WIDE), request(OTHER)])
    assert all(torch.equal(weight, old) and not weight.requires_grad for weight, old in zip(weights, before, strict=True))


def test_weights_of_another_pipeline_are_refused_before_any_is_read(renderer, folders):
    for kind in KINDS:
        renderer(kind).check()
    said = r"holds the weights of QwenImageEditPlusPipeline, and renderer.name qwen_image_edit draws with QwenImageEditPipeline"
    with pytest.raises(RenderError, match=said):
        renderer(model=str(folders["qwen_image_edit_plus"])).check()
