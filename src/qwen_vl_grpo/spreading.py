"""What one process of several holds of the trainer, for each way to start them (configs/launch).

ddp: everything, and the buckets in which gradients travel. zero2: optimizer and gradients are split over the processes; zero3: weights,
too (ZeRO, arXiv 1910.02054, with DeepSpeed's own sizes of buckets). fsdp2: as zero3, split when the trainer is ready, so that each
card holds all weights while its engine starts. Counted, and each was held against a run on two cards (docs/scaling.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from qwen_vl_grpo import footprint, strategies
from qwen_vl_grpo.config import RunConfig, launched
from qwen_vl_grpo.footprint import Footprint, has_engine
from qwen_vl_grpo.shapes import Shapes

STRATEGIES = ("single", "ddp", "zero2", "zero3", "fsdp2")
"""From the least that is sent between cards to the most."""
BUCKET = 500_000_000
"""Numbers in one of DeepSpeed's buckets (its reduce_bucket_size and allgather_bucket_size)."""
LIVE = 1_000_000_000
"""Numbers that ZeRO-3 keeps gathered at once (stage3_max_live_parameters)."""
FLOAT32, COMPUTED = 4, 2
"""Bytes, under FSDP2 on cards, of a weight that learns, of its gradient and of each of Adam's states; and of a weight in a pass."""
MASTER = 12
"""Bytes of a weight that learns under DeepSpeed with bfloat16: a float32 copy and Adam's two states."""


@dataclass(frozen=True)
class Spread:
    """How a run is started: `ranks` processes, one a card."""

    strategy: str = "single"
    ranks: int = 1


ALONE = Spread()


def launched_as() -> Spread:
    """How this process was started."""
    return Spread(strategies.named(), launched())


def split(held: Footprint, config: RunConfig, shapes: Shapes, spread: Spread) -> Footprint:
    """The footprint of one of the processes."""
    learning, total, ranks = shapes.learning(config.lora), shapes.total(), spread.ranks
    if spread.strategy == "single" or ranks == 1:
        return held
    if spread.strategy == "ddp":
        return replace(held, gradients=2 * held.gradients)
    if spread.strategy == "fsdp2":
        return _by_fsdp2(held, config, shapes, ranks)
    buckets = 2 * 2 * min(BUCKET, learning)
    held = replace(
        held, adapter=2 * learning if config.lora.enabled else 0, optimizer=MASTER * learning // ranks,
        gradients=2 * learning // ranks + buckets,
    )  # fmt: skip
    if spread.strategy == "zero2":
        return held
    live, whole = 2 * min(LIVE, total), config.lora.enabled and has_engine(config)
    weights = held.weights // ranks
    # with an adapter TRL gathers the whole model to hand it to the engine (trl#5766)
    return replace(
        held, loaded=weights, weights=weights + live, reference=held.reference // ranks, adapter=held.adapter // ranks,
        generation=held.generation + held.weights * whole,
    )  # fmt: skip


def written(held: Footprint, config: RunConfig, shapes: Shapes, spread: Spread) -> Footprint:
    """What all processes together write into a checkpoint, of a footprint that is not split: the states that fsdp2 gathers are float32."""
    if spread.strategy != "fsdp2":
        return held
    return replace(held, optimizer=footprint.states(config, shapes.learning(config.lora), FLOAT32))


def _by_fsdp2(held: Footprint, config: RunConfig, shapes: Shapes, ranks: int) -> Footprint:
    """accelerate makes what learns float32 before it splits it, so that its gradients and Adam's states are, too (accelerate 1.15). A card
    holds the whole policy beside its first parts until all are split. What FSDP2 gathers is bfloat16, so that autocast copies nothing."""
    learning, total = shapes.learning(config.lora), shapes.total()
    width = footprint.learning_width(config)
    whole = held.weights + held.adapter + (FLOAT32 - width) * learning * (not config.lora.enabled)
    gathered = COMPUTED * _together(shapes)
    # TRL splits a reference as one piece: what arrives of it is whole, and copied once more into its weights (trl 1.16)
    reference = COMPUTED * total if held.reference else 0
    return replace(
        held, weights=whole // ranks - held.adapter // ranks, reference=held.reference // ranks, adapter=held.adapter // ranks,
        optimizer=footprint.states(config, learning, FLOAT32) // ranks, gradients=FLOAT32 * learning // ranks,
        score=max(gathered + held.score, reference + max(reference, held.score)),
        backward=gathered + held.backward - footprint.casts(config, shapes), splitting=whole + whole // ranks,
    )  # fmt: skip


def _together(shapes: Shapes) -> int:
    """Weights that FSDP2 holds gathered: two layers, the one at work and the next, and what is in no layer."""
    parts = shapes.weights()
    return parts["embeddings"] + parts["head"] + parts["merger"] + 2 * parts["language"] // shapes.layers
