"""How far the sampler's probabilities are from the trainer's, and what the loss does about it.

vLLM and the trainer give the same tokens slightly different log-probabilities (other kernels, other rounding). The ratio
of a whole sequence is the exponential of the SUM of those gaps, so its variance grows with length: at 512 tokens in bf16
half of the effective sample size is gone before anything was learned. docs/rollouts.md holds what was measured and why
`sequence_mean` is the default.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

KEPT = 3.0
"""A sequence counts as kept where its raw ratio lies within a factor of this (TRL's default clip)."""


def importance_weights(kind: str, gaps: torch.Tensor, mask: torch.Tensor, clip: float = KEPT) -> torch.Tensor:
    """The weight of each token's loss from the gaps log p(trainer) - log p(sampler), both of shape (sequences, tokens).

    - `sequence_mean`: exp(mean gap of the sequence), shape (sequences, 1): the length-normalised ratio of GSPO
      (arXiv 2507.18071). Biased: it shrinks a real off-policy gap by the length. Right where the gap is rounding noise, which
      the parity gate checks.
    - `token_truncate`: exp(gap) of each token, at most `clip`, shape (sequences, tokens). Biased in what came before the token.
    - `sequence_mask`: exp(sum of gaps), 0 above `clip`, shape (sequences, 1): TRL's default. Unbiased below the clip, and
      noise dominates it at length.
    - `none`: ones.
    """
    gaps = torch.nan_to_num(gaps * mask)
    if kind == "none":
        return torch.ones_like(gaps[:, :1])
    if kind == "sequence_mean":
        return mean_gap(gaps, mask).exp().clamp(1 / clip, clip)
    if kind == "token_truncate":
        return gaps.exp().clamp(max=clip)
    ratio = gaps.sum(1, keepdim=True).exp()
    return ratio.masked_fill(ratio > clip, 0.0)


def statistics(kind: str, gaps: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """What the raw gaps look like before any clip: never only the mean after masking (trl#5231).

    `effective_sample_size` is that of the weights which this kind gives, each to a sequence, or to a token in `token_truncate`.
    """
    gaps = torch.nan_to_num(gaps * mask)
    sizes = gaps.abs()[mask.bool()]
    if not len(sizes):
        return {}
    total = gaps.sum(1)
    weighed = {"sequence_mean": mean_gap(gaps, mask)[:, 0], "token_truncate": gaps[mask.bool()], "sequence_mask": total, "none": total * 0}
    return {
        "rollouts/logp_difference/mean": sizes.mean().item(),
        "rollouts/logp_difference/p99": sizes.quantile(0.99).item() if len(sizes) < 2**24 else sizes.max().item(),
        "rollouts/masked_share": masked_share(kind, weighed[kind]),
        "rollouts/raw_share_kept": (total.abs() <= torch.log(torch.tensor(KEPT))).float().mean().item(),
        "rollouts/raw_effective_sample_size": effective_sample_size(total),
        "rollouts/effective_sample_size": effective_sample_size(weighed[kind]),
    }


def masked_share(kind: str, log_weights: torch.Tensor) -> float:
    """The share of a kind's weights that its clip cuts off, or masks: `sequence_mean` is clipped on both sides, the others above."""
    bound = math.log(KEPT)
    return ((log_weights.abs() if kind == "sequence_mean" else log_weights) > bound).float().mean().item()


def joined(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Gaps and masks of a step's micro-batches as one batch, padded on the right to the longest."""
    longest = max(mask.shape[1] for _, mask in parts)
    gaps, masks = ([torch.nn.functional.pad(part, (0, longest - part.shape[1])) for part in kind] for kind in zip(*parts, strict=True))
    return torch.cat(gaps), torch.cat(masks)


def mean_gap(gaps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean gap of each sequence over its own tokens, shape (sequences, 1)."""
    return gaps.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def effective_sample_size(log_weights: torch.Tensor) -> float:
    """(sum of weights)^2 / sum of squared weights / count, between 1/count and 1 (Kish)."""
    weights = (log_weights.double() - log_weights.max()).exp()
    return (weights.sum() ** 2 / (weights**2).sum() / len(weights)).item()
