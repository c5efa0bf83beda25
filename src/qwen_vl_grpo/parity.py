"""The parity gate: does the engine give the policy's own log-probabilities to what it samples?

Checked before the first step and every `parity_every` steps, on the training rows themselves and on the same rows without
their pictures. The second is the yardstick: whatever the engine's kernels round away they round away in text too, so
pictures may cost at most twice what text costs.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from qwen_vl_grpo import policy, processors, ranks
from qwen_vl_grpo.errors import RolloutError
from qwen_vl_grpo.interfaces import Sample
from qwen_vl_grpo.pictures import OncePreprocessed
from qwen_vl_grpo.rollouts import FaithfulGeneration
from qwen_vl_grpo.trainer import VisionGRPOTrainer

log = logging.getLogger("qwen_vl_grpo")

ROWS, TOKENS, SEEDED = 8, 64, 4
MEAN_BOUND = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Mean absolute log-probability difference allowed, by what the policy computes in (measured: docs/rollouts.md)."""
PICTURES_TO_TEXT = 2.0
FLOOR = {torch.float32: 2e-5, torch.bfloat16: 0.02, torch.float16: 0.01}
"""What pictures may always differ by, or two tiny numbers would fail by their ratio."""


@dataclass(frozen=True)
class Agreement:
    """Absolute differences of log-probabilities over the sampled tokens."""

    mean: float
    p99: float
    tokens: int


def check(trainer: VisionGRPOTrainer, samples: Sequence[Sample], when: str) -> dict[str, float]:
    """Measure pictures and text, and raise RolloutError with the likely cause if either is out of bounds.

    Each process of a run has an engine and weights of its own to be wrong, so each is measured and held to its own text; all raise for one.
    """
    dtype = computed_in(trainer)
    engine = trainer.vllm_generation
    assert isinstance(engine, FaithfulGeneration)
    engine.sync_weights()
    check_seed(engine, policy.encode(trainer.processing_class, [silent(samples[0])])["input_ids"][0].tolist(), when)
    everyone = ranks.gathered((measure(trainer, [silent(sample) for sample in samples]), measure(trainer, samples)))
    text, pictures = (max(found, key=lambda one: one.mean) for found in zip(*everyone, strict=True))
    log.info(
        "parity %s: log-probabilities differ by %.2g on pictures (p99 %.2g), %.2g on text, over %d tokens%s; prompts equal",
        when, pictures.mean, pictures.p99, text.mean, pictures.tokens, f", the worst of {len(everyone)} processes" if everyone[1:] else "",
    )  # fmt: skip
    for rank, measured in enumerate(everyone):
        hold(*measured, dtype, f"{when}, process {rank}" if everyone[1:] else when)
    told = {"parity/pictures": pictures.mean, "parity/pictures_p99": pictures.p99, "parity/text": text.mean}
    return told | {f"parity/pictures_{rank}": own.mean for rank, (_, own) in enumerate(everyone) if everyone[1:]}


def hold(text: Agreement, pictures: Agreement, dtype: torch.dtype, when: str) -> None:
    """Raise RolloutError where a process's text is out of its bound, or its pictures out of that of its text."""
    if text.mean > MEAN_BOUND[dtype]:
        raise RolloutError(
            f"parity {when}: the engine's log-probabilities differ from the policy's by {text.mean:.2g} on text alone (bound "
            f"{MEAN_BOUND[dtype]:.2g}); its weights are not the policy's: look at the weight sync, then at dtype and temperature"
        )
    allowed = min(MEAN_BOUND[dtype], max(PICTURES_TO_TEXT * text.mean, FLOOR[dtype]))
    if pictures.mean > allowed:
        raise RolloutError(
            f"parity {when}: log-probabilities differ by {pictures.mean:.2g} on pictures (bound {allowed:.2g}) and by {text.mean:.2g} on "
            "text; the engine sees other pictures than the policy: look at the picture tokens, the pixel limits and old picture embeddings"
        )


def computed_in(trainer: VisionGRPOTrainer) -> torch.dtype:
    """What the policy's forward pass rounds to: under mixed precision not what its weights are kept in (FSDP2 keeps float32)."""
    mixed = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return mixed.get(trainer.accelerator.mixed_precision) or policy.dtype_of(trainer.model)


def check_seed(engine: FaithfulGeneration, prompt: list[int], when: str) -> None:
    """Raise RolloutError unless one seed draws the same completions twice and another seed draws others."""
    first, again, other = (engine.drawn([prompt] * SEEDED, seed) for seed in (1, 1, 2))
    alike = operator.eq if engine.batches_alike else begin_alike
    if not alike(first, again) or alike(first, other):
        what = "two seeds draw the same" if alike(first, other) else "one seed draws differently each time"
        raise RolloutError(
            f"parity {when}: the sampler does not follow the seed ({what}), so no run can be repeated; look at the generators that this "
            "version of vLLM draws from"
        )


def begin_alike(one: list[list[int]], other: list[list[int]]) -> bool:
    """Whether most completions begin with the same token; where the batches differ, rounding turns a near tie later on."""
    return 2 * sum(first[:1] == second[:1] for first, second in zip(one, other, strict=True)) > len(one)


def measure(trainer: VisionGRPOTrainer, samples: Sequence[Sample]) -> Agreement:
    """Sample from the engine, score the same tokens with the trainer's own forward, and compare."""
    engine = trainer.vllm_generation
    assert isinstance(engine, FaithfulGeneration)
    once, prompts, shown = read(trainer, samples)
    longest, engine.max_completion_length = engine.max_completion_length, min(TOKENS, engine.max_completion_length)
    try:
        _, completions, sampled, _ = engine.generate(prompts, shown, 1)
    finally:
        engine.max_completion_length = longest
    scored = score(trainer, once, completions)
    gaps = torch.cat(
        [
            (own[: len(tokens)].float().cpu() - torch.tensor([token[0] for token in tokens])).abs()
            for own, tokens in zip(scored, sampled, strict=True)
        ]
    )
    return Agreement(gaps.mean().item(), gaps.quantile(0.99).item(), len(gaps))


def read(trainer: VisionGRPOTrainer, samples: Sequence[Sample]) -> tuple[OncePreprocessed, list[list[int]], list[list[Any]] | None]:
    """The samples as the trainer reads its rows; their ids, and the pictures and clips of each."""
    once, prompts = OncePreprocessed(trainer.processing_class), [sample.prompt for sample in samples]
    if processors.sees(trainer.processing_class):
        prompts = [processors.placed(sample.prompt, sample.images, sample.videos) for sample in samples]
    return once, *once.read(prompts)


def score(trainer: VisionGRPOTrainer, once: OncePreprocessed, completions: Sequence[Sequence[int]]) -> torch.Tensor:
    """Log-probabilities of the completions by the path that the loss takes, shape (rows, longest completion)."""
    device = trainer.accelerator.device
    longest = max(len(tokens) for tokens in completions)
    pad = trainer._tokenizer.pad_token_id
    ids = torch.tensor([[*tokens, *[pad] * (longest - len(tokens))] for tokens in completions])
    mask = torch.tensor([[1] * len(tokens) + [0] * (longest - len(tokens)) for tokens in completions])
    asked, vision = once(), {}
    if "pixel_values" in asked:
        vision = {key: asked[key].to(device) for key in ("pixel_values", "image_grid_thw")} | {"num_images": once.counts()}
        vision["mm_token_type_ids"] = torch.cat([asked["mm_token_type_ids"], torch.zeros_like(ids)], 1).to(device)
    with torch.no_grad():
        scores, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, torch.cat([asked["input_ids"], ids], 1).to(device), torch.cat([asked["attention_mask"], mask], 1).to(device),
            longest, batch_size=trainer.args.per_device_train_batch_size, once=once, **vision,
        )  # fmt: skip
    return scores


def silent(sample: Sample) -> Sample:
    """The sample without what it shows: its words alone."""
    prompt = [
        message
        if isinstance(message["content"], str)
        else message | {"content": [part for part in message["content"] if part["type"] not in ("image", "video")]}
        for message in sample.prompt
    ]
    return replace(sample, prompt=prompt, images=[], videos=[])
