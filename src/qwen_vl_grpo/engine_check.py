"""Look before a run: does this machine's engine sample this config's own policy?

Nothing is claimed and nothing is kept; the run's own code is used, so what passes here passes there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from qwen_vl_grpo import assembly, dataset, parity, policy
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import ConfigError, RolloutError
from qwen_vl_grpo.ledger import Ledger

MOVED = 0.05
"""Standard deviation of the noise that stands for what an adapter learned: far more than a few steps, far less than nonsense."""


def rollouts(config: RunConfig) -> dict[str, dict[str, float]]:
    """Check parity as the run starts, after another sleep and wake, and with an adapter that does something.

    Returns the figures of each check; raises RolloutError with the likely cause at the first that fails, and ConfigError for a
    config that does not use vLLM.
    """
    if not config.use_vllm:
        raise ConfigError(f"run {config.run_id}: use_vllm is false, so the policy itself generates and there is no engine to check")
    with tempfile.TemporaryDirectory() as folder:
        apart = config.model_copy(update={"output_dir": folder, "run_id": "doctor", "warmup": None})
        prepared = assembly.prepare(apart)
        ledger = Ledger(Path(folder), 1)
        trainer = assembly.build_trainer(apart, prepared, assembly.load_policy(apart, prepared, Path(folder)), Path(folder), ledger)
        samples = [dataset.to_sample(row) for row in prepared.rows.select(range(min(parity.ROWS, len(prepared.rows))))]
        figures = {
            "at the start": parity.check(trainer, samples, "at the start"),
            "after a sleep and a wake": parity.check(trainer, samples, "after a sleep and a wake"),
        }
        with moved(trainer.model) as shift:
            figures["with a policy that moved"] = parity.check(trainer, samples, "with a policy that moved")
            figures["with a policy that moved"]["shift"] = visible(trainer, samples, shift)
        figures["moved back"] = parity.check(trainer, samples, "moved back")
        ledger.close()
    return figures


@contextmanager
def moved(model: Any) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Add noise to what learns in the language model, or beside it where that is frozen, and give the weights back bit by bit."""
    learning = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad and "lora_A" not in name]
    language = [pair for pair in learning if policy.part(pair[0]) == "language"]
    kept = [(weight, weight.data.clone()) for _, weight in language or learning]
    generator = torch.Generator().manual_seed(0)
    for weight, _ in kept:
        weight.data.add_((torch.randn(weight.shape, generator=generator) * MOVED).to(weight))
    try:
        yield kept
    finally:
        for weight, before in kept:
            weight.data.copy_(before)


def visible(trainer: Any, samples: list[Any], kept: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """How far the move shifts the log-probabilities of fixed tokens; raises RolloutError if parity could not have seen it.

    An engine that ignores the adapter agrees with the base: only a shift above the bound makes agreement a proof.
    """
    once, *_ = parity.read(trainer, samples)
    tokens = [trainer.processing_class.tokenizer("The answer is 7.")["input_ids"]] * len(samples)
    after = parity.score(trainer, once, tokens)
    moved_to = [weight.data.clone() for weight, _ in kept]
    for weight, before in kept:
        weight.data.copy_(before)
    before_scores = parity.score(trainer, once, tokens)
    for (weight, _), there in zip(kept, moved_to, strict=True):
        weight.data.copy_(there)
    shift = (after - before_scores).abs().mean().item()
    if shift <= parity.MEAN_BOUND[parity.computed_in(trainer)]:
        raise RolloutError(f"doctor: the move shifts log-probabilities by {shift:.2g} only, which parity cannot see; nothing was proven")
    return shift
