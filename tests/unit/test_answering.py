"""Covers answering with a real tiny policy: greedy is repeatable, batches do not change it, and no placeholder is answered."""

from dataclasses import replace

import numpy
import pytest
from PIL import Image

from demo.tiny_qwen import FAMILIES
from qwen_vl_grpo import answering, loading, policy, processors
from qwen_vl_grpo.interfaces import Clip, Sample

COLOURS = ("red", "blue", "green")


@pytest.fixture
def ready(checkpoint, config_of):
    def load(family="qwen2_5_vl"):
        config = config_of(model_name=checkpoint(family))
        return policy.load_model(config), policy.load_processor(config)

    return load


def question(text, *colours):
    images = [Image.new("RGB", (64, 64), colour) for colour in colours]
    return Sample(text, [{"role": "user", "content": text}], images, "")


def watching(*lengths):
    """A question about clips of so many frames of noise, in a size that every family keeps."""
    noise = numpy.random.default_rng(0).integers(0, 255, (max(lengths), 224, 224, 3), dtype=numpy.uint8)
    return replace(question("What happens?"), videos=[Clip(noise[:n], tuple(range(n)), 4.0, n, str(n)) for n in lengths])


MIXED = [
    question("Which colour is this?", "red"), question("6 times 7?"), question("Are these the same colour?", "red", "blue"),
    replace(watching(5, 1), images=[Image.new("RGB", (64, 64), "blue")]), watching(4),
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_clips_and_text_are_answered_in_one_batch(ready, family):
    model, processor = ready(family)
    generate = answering.with_transformers(model, processor, 4, batch_size=8, seed=0, show=False)
    assert [len(texts) for texts in generate(MIXED, 2, 1.0)] == [2, 2, 2, 2, 2]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_greedy_answer_is_the_same_alone_and_in_a_batch(ready, family):
    model, processor = ready(family)
    alone = answering.with_transformers(model, processor, 6, batch_size=1, seed=0, show=False)(MIXED, 1, 0.0)
    together = answering.with_transformers(model, processor, 6, batch_size=8, seed=1, show=False)(MIXED, 1, 0.0)
    assert alone == together


@pytest.mark.parametrize("family", FAMILIES)
def test_the_length_of_a_prompt_is_known_before_it_is_answered(ready, family):
    _, processor = ready(family)
    for one in (sized(sample, processors.merged_patch(processor)) for sample in MIXED):
        assert loading.prompt_ids(processor, one) == policy.encode(processor, [one])["input_ids"][0].tolist()


def sized(sample, patch):
    """The sample with pictures of sizes that the processor leaves as they are, as `dataset.fit` makes them."""
    return replace(sample, images=[image.resize(((2 + place) * patch, 3 * patch)) for place, image in enumerate(sample.images)])


def test_sampled_answers_follow_the_seed(ready):
    model, processor = ready()
    first, again, other = (answering.with_transformers(model, processor, 8, 8, seed, show=False)(MIXED, 2, 1.0) for seed in (0, 0, 1))
    assert first == again != other


def test_answering_leaves_the_mode_of_the_model_and_the_random_numbers_as_they_were(ready):
    import torch

    model, processor = ready()
    model.train()
    before = torch.get_rng_state()
    answering.with_transformers(model, processor, 2, 8, 0, show=False)(MIXED, 1, 1.0)
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)


def test_a_placeholder_is_never_answered_even_by_a_policy_that_wants_to(ready):
    import torch

    model, processor = ready()
    wanted = [processor.image_token_id, processor.video_token_id]
    drawn = []

    def want(_, __, logits):
        logits[..., wanted] += 1000.0
        return logits

    def note(_, inputs):
        drawn.append(inputs[0])

    model.lm_head.register_forward_hook(want)
    encoded = policy.encode(processor, MIXED[:1])
    free = model.generate(**encoded, max_new_tokens=4, do_sample=False)
    assert set(free[0, encoded["input_ids"].shape[1] :].tolist()) <= set(wanted)
    model.get_input_embeddings().register_forward_pre_hook(note)
    answering.with_transformers(model, processor, 4, 8, 0, show=False)(MIXED[:1], 1, 0.0)
    answered = torch.cat([ids.flatten() for ids in drawn[1:]]).tolist()
    assert answered
    assert not set(answered) & set(wanted)
