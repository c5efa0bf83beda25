"""What the gate must catch on a real size too: each fault is injected, and what the gate said of it is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from PIL import Image, ImageDraw

from qwen_vl_grpo import dataset, engine_check, parity, rollouts
from qwen_vl_grpo.errors import RolloutError
from qwen_vl_grpo.interfaces import Sample
from qwen_vl_grpo.rollouts import FaithfulGeneration


def mixed(prepared: Any, sizes: Sequence[tuple[int, int]]) -> list[Sample]:
    """Eight samples with one to as many pictures as there are sizes, all of them different."""
    made = []
    for row in range(parity.ROWS):
        sample = dataset.to_sample(prepared.rows[row])
        pictures = [_picture(size, row) for size in sizes[: row % len(sizes) + 1]]
        made.append(replace(sample, images=pictures))
    return made


def fingerprint(model: Any) -> dict[str, torch.Tensor]:
    """A copy of the frozen base on the host."""
    return {name: weight.detach().cpu().clone() for name, weight in model.named_parameters() if "lora_" not in name}


def changed(model: Any, before: dict[str, torch.Tensor]) -> float:
    """The share of the base's adapted entries that are no longer bit-equal."""
    adapted = [(weight, before[name]) for name, weight in model.named_parameters() if ".base_layer." in name]
    return sum(int((weight.detach() != kept.to(weight.device)).sum()) for weight, kept in adapted) / sum(
        kept.numel() for _, kept in adapted
    )


def inject(trainer: Any, samples: list[Sample], few: list[Sample]) -> dict[str, str]:
    """Each fault -> what the gate said; `few` have so few picture tokens that the engine could remember them all."""
    engine = trainer.vllm_generation
    published = FaithfulGeneration._iter_named_params

    def without_adapter(self: Any) -> Any:
        with self.model.disable_adapter():
            yield from published(self)

    said = {}
    with engine_check.moved(trainer.model):
        said["nothing, the policy moved"] = _verdict(trainer, samples)
        with patch.object(FaithfulGeneration, "_iter_named_params", without_adapter):
            said["an engine without the adapter"] = _verdict(trainer, samples)
        with _merged(trainer.model):
            said["an adapter merged and not restored"] = _verdict(trainer, samples)
    with patch.object(rollouts, "collapse", lambda ids, *_: list(ids)):
        said["pictures expanded twice"] = _verdict(trainer, samples)
    with patch.object(rollouts, "seeded", lambda parts: torch.no_grad()):
        said["a sampler that ignores the seed"] = _verdict(trainer, samples)
    core = type(engine.llm.llm_engine.engine_core.engine_core)
    with _moved_tower(trainer.model):
        said["nothing, the vision tower moved"] = _verdict(trainer, few)
    with patch.object(core, "reset_encoder_cache", lambda self: None):  # an engine that falls asleep drops them by itself, too
        said["nothing, one picture each"] = _verdict(trainer, few)  # the engine has seen the pictures
        with _moved_tower(trainer.model):
            said["old picture embeddings"] = _verdict(trainer, few)
    said["nothing"] = _verdict(trainer, samples)
    return said


@contextmanager
def _merged(model: Any) -> Iterator[None]:
    kept = {name: weight.data.clone() for name, weight in model.named_parameters() if ".base_layer.weight" in name}
    model.merge_adapter()
    try:
        yield
    finally:
        model.unmerge_adapter()
        for name, weight in model.named_parameters():
            if name in kept:
                weight.data.copy_(kept[name])


@contextmanager
def _moved_tower(model: Any) -> Iterator[None]:
    """Noise of the weights' own size in the vision tower and its merger: what they see is another picture."""
    kept = [(weight, weight.data.clone()) for name, weight in model.named_parameters() if ".visual." in name and weight.dim() > 1]
    torch.manual_seed(1)
    for weight, before in kept:
        weight.data.add_(torch.randn_like(before) * before.std())
    try:
        yield
    finally:
        for weight, before in kept:
            weight.data.copy_(before)


def _verdict(trainer: Any, samples: list[Sample]) -> str:
    try:
        return "passes: " + ", ".join(f"{name} {value:.3g}" for name, value in parity.check(trainer, samples, "now").items())
    except RolloutError as error:
        return f"caught: {error}"
    except Exception as error:  # an engine that refuses a prompt has caught it too, and the row goes on
        return f"stopped by {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _picture(size: tuple[int, int], seed: int) -> Image.Image:
    image = Image.new("RGB", size, (40 * seed % 255, 90, 200))
    ImageDraw.Draw(image).rectangle([5, 5, 60 + 9 * seed, 90], fill="white")
    return image
