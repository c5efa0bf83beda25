"""Covers how often a picture is decoded and preprocessed in a step, and that the trainer's tensors are the same as before."""

import datasets
import pytest
import torch
from PIL import Image, ImageDraw
from trl.trainer.grpo_trainer import GRPOTrainer

from demo.tiny_qwen import FAMILIES
from qwen_vl_grpo import assembly, pictures, policy, tasks
from qwen_vl_grpo.ledger import Ledger
from qwen_vl_grpo.trainer import VisionGRPOTrainer

PROMPTS, GROUP, MICRO_BATCHES = 4, 4, 4
SIZES = [((56, 84), (112, 56)), ((84, 84),), (), ((56, 84), (56, 84), (140, 56))]
"""Pictures of each prompt of a step: two, one, none, three of which two are equal in size."""


def picture(size, seed):
    image = Image.new("RGB", size, (60 * seed % 255, 90, 200))
    ImageDraw.Draw(image).rectangle([5, 5, 20 + 3 * seed, 30], fill="white")
    return image


@pytest.fixture
def trainer_of(checkpoint, config_of, tmp_path):
    """A trainer of two steps, each of four prompts, four completions a prompt and four micro-batches."""
    ledgers = []

    def build(family="qwen2_5_vl", sizes=SIZES * 2, **changes):
        config = config_of(
            model_name=checkpoint(family), batch_size=PROMPTS * GROUP // MICRO_BATCHES, gradient_accumulation_steps=MICRO_BATCHES,
            num_generations=GROUP, max_completion_length=6, max_steps=2, learning_rate=1e-3, lora={"enabled": False},
            tracking={"report_to": "none", "log_completions": False}, **changes,
        )  # fmt: skip
        prompts = [[{"role": "user", "content": f"Question {i}?"}] for i in range(len(sizes))]
        images = [[picture(size, 7 * i + k) for k, size in enumerate(row)] for i, row in enumerate(sizes)]
        features = datasets.Dataset.from_dict({"prompt": prompts}).features
        features["images"] = datasets.List(datasets.Image())
        rows = datasets.Dataset.from_dict({"prompt": prompts, "images": images}, features=features)
        ledgers.append(Ledger(tmp_path, config.max_steps))
        functions = [lambda completions, **_: [float(len(completion[0]["content"])) for completion in completions]]
        prepared = assembly.Prepared(tasks.build(config.task), functions, [1.0], policy.load_processor(config), rows, [], None, 0)
        return assembly.build_trainer(config, prepared, policy.load_model(config), tmp_path, ledgers[-1])

    yield build
    for ledger in ledgers:
        ledger.close()


def counted(trainer, monkeypatch):
    """Count pictures decoded, pictures preprocessed and rows read by the trainer from here on."""
    counts = {"decoded": 0, "preprocessed": 0}
    decode, preprocess = datasets.Image.decode_example, type(trainer.processing_class.image_processor)._preprocess

    def decode_counted(self, value, **named):
        counts["decoded"] += 1
        return decode(self, value, **named)

    def preprocess_counted(self, images, *arguments, **named):
        counts["preprocessed"] += len(images)
        return preprocess(self, images, *arguments, **named)

    monkeypatch.setattr(datasets.Image, "decode_example", decode_counted)
    monkeypatch.setattr(type(trainer.processing_class.image_processor), "_preprocess", preprocess_counted)
    return counts


@pytest.mark.parametrize("family", FAMILIES)
def test_a_picture_is_decoded_and_preprocessed_once_a_step(trainer_of, monkeypatch, family):
    trainer = trainer_of(family)
    counts = counted(trainer, monkeypatch)
    trainer.train()
    held = 2 * sum(len(row) for row in SIZES)
    assert counts == {"decoded": held, "preprocessed": held}


def test_upstream_still_does_it_once_a_completion(trainer_of, monkeypatch):
    """When this fails, upstream shares pictures in a group: see what of pictures.py is still needed."""
    trainer = trainer_of(sizes=[((56, 84),)] * PROMPTS * 2)
    trainer.__class__ = GRPOTrainer
    counts = counted(trainer, monkeypatch)
    trainer.train()
    completions = 2 * PROMPTS * GROUP
    assert counts == {"decoded": completions * MICRO_BATCHES * 2, "preprocessed": completions * 2}


def micro_batches(trainer, steps=3):
    """What the loss reads in each micro-batch of some steps, over the end of an epoch, with no step taken."""
    seen, read = [], iter(trainer.get_train_dataloader())
    trainer.model.train()
    for batch in range(steps * MICRO_BATCHES):
        try:
            rows = next(read)
        except StopIteration:
            read = iter(trainer.get_train_dataloader())
            rows = next(read)
        torch.manual_seed(batch)
        seen.append(trainer._prepare_inputs(rows))
        trainer._step += 1
        if "pixel_values" in seen[-1]:
            seen[-1]["pixel_values"] = pixels(trainer, seen[-1])
    return seen


def pixels(trainer, batch):
    """What the numbers of a batch stand for."""
    numbers, patches = batch["pixel_values"], batch["image_grid_thw"].prod(1)
    if numbers.is_floating_point():
        return numbers
    return torch.cat([trainer._once[True]._shown[item].pixels for item in numbers[patches.cumsum(0) - patches].tolist()])


class EachTime(VisionGRPOTrainer):
    """Ours with TRL's own preparation, which does everything each time; trl#5139 alone is mended."""

    _get_dataloader = GRPOTrainer._get_dataloader
    _get_per_token_logps_and_entropies = GRPOTrainer._get_per_token_logps_and_entropies

    def _tokenize_prompts(self, prompts):
        ids, images, fields = GRPOTrainer._tokenize_prompts(self, prompts)
        return ids, images and [row or [] for row in images], fields

    def _generate_and_score_completions(self, inputs):
        self._given = inputs
        return GRPOTrainer._generate_and_score_completions(self, inputs)


def each_time(trainer):
    trainer.__class__ = EachTime
    return trainer


def same(one, other):
    return torch.equal(one, other) and one.dtype == other.dtype if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tensors_of_the_loss_are_bit_equal_to_those_of_a_trainer_that_does_everything_each_time(trainer_of, family):
    ours = micro_batches(trainer_of(family))
    published = micro_batches(each_time(trainer_of(family)))
    assert len(ours) == len(published) == 3 * MICRO_BATCHES
    assert sum(len(batch["pixel_values"]) for batch in ours) > 0
    for one, other in zip(ours, published, strict=True):
        assert one.keys() == other.keys()
        assert [key for key in one if not same(one[key], other[key])] == []


def all_differ(names):
    """As if no prompt and no picture were another's equal."""
    return list(range(len(names))), list(range(len(names)))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tower_reads_a_picture_once_a_micro_batch_and_learns_the_same(trainer_of, monkeypatch, family):
    def learned():
        trainer = trainer_of(family)
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = MICRO_BATCHES
        trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
        rows = []
        trainer.model.model.visual.patch_embed.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
        for batch in trainer._buffered_inputs:
            trainer._compute_loss(trainer.model, batch).backward()
        given = sum(len(batch.get("pixel_values", [])) for batch in trainer._buffered_inputs)
        return sum(rows), given, {name: weight.grad for name, weight in trainer.model.named_parameters()}

    torch.manual_seed(0)
    once, _, ours = learned()
    monkeypatch.setattr(pictures, "differing", all_differ)
    torch.manual_seed(0)
    each, given, published = learned()
    assert once < each == given
    assert ours["model.visual.patch_embed.proj.weight"].abs().sum() > 0
    for name, gradient in published.items():
        if gradient is not None:
            torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_teaches_the_same_bit_for_bit(trainer_of, monkeypatch, family):
    def trained(trainer):
        torch.manual_seed(0)
        trainer.train()
        return dict(trainer.model.named_parameters())

    monkeypatch.setattr(pictures, "differing", all_differ)
    ours = trained(trainer_of(family))
    published = trained(each_time(trainer_of(family)))
    assert [name for name in ours if not torch.equal(ours[name], published[name])] == []


def test_evaluation_leaves_the_samples_of_a_step_alone(trainer_of):
    trainer = trainer_of()
    first = micro_batches(trainer, 1)
    kept = [batch["pixel_values"].clone() for batch in first if "pixel_values" in batch]
    buffered = trainer._buffered_inputs
    trainer.model.eval()
    trainer.num_generations_eval = GROUP
    assert trainer._generate_and_score_completions([trainer.train_dataset[0]] * GROUP)["num_images"] == [2] * GROUP
    again = [pixels(trainer, batch) for batch in buffered if "pixel_values" in batch]
    assert all(torch.equal(one, other) for one, other in zip(kept, again, strict=True))


def test_rows_of_a_batch_share_their_picture_and_nothing_that_is_written_to():
    rows = datasets.Dataset.from_dict({"images": [[picture((56, 56), 1)], [picture((56, 84), 2)]]})
    shared = pictures.SharedRows(rows.cast_column("images", datasets.List(datasets.Image())))
    one, again, other = shared.__getitems__([0, 0, 1])
    assert one["images"][0] is again["images"][0]
    assert one["images"][0].tobytes() == rows[0]["images"][0].tobytes()
    one["more"] = 1
    assert "more" not in again
    assert shared.__getitems__([1])[0]["images"][0] is other["images"][0]
    assert shared[0]["images"][0] is not one["images"][0]
