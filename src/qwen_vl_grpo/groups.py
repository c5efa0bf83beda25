"""What a step's groups looked like: GRPO learns only from what differs inside one."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def statistics(rewards: torch.Tensor, weights: torch.Tensor, size: int) -> dict[str, float]:
    """Figures of the weighted rewards by group, from scores of shape (completions, functions); NaN was not judged.

    `without_spread` is the share of groups whose rewards are all equal, `reward_std` the mean over groups of the standard
    deviation inside one (n - 1), `best` and `worst` the mean of each group's highest and lowest. TRL's frac_reward_zero_std
    is that of the whole batch where scale_rewards is not `group` or `none`. Completions that nothing judged are left out,
    and so are groups of them alone.
    """
    groups = [judged for group in totals(rewards, weights).view(-1, size) if len(judged := group[~group.isnan()])]
    if not groups:
        return {}
    spread = [group.std().item() if group.max() > group.min() else 0.0 for group in groups]  # that of equal numbers is not quite 0
    return {
        "groups/without_spread": spread.count(0.0) / len(groups),
        "groups/reward_std": sum(spread) / len(groups),
        "groups/best": sum(group.max().item() for group in groups) / len(groups),
        "groups/worst": sum(group.min().item() for group in groups) / len(groups),
    }


def totals(rewards: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted reward of each completion, as TRL adds it up; NaN where no function judged."""
    return (rewards * weights.to(rewards.device)).nansum(1).masked_fill(rewards.isnan().all(1), torch.nan)


def level(rewards: torch.Tensor, weights: torch.Tensor, size: int) -> torch.Tensor:
    """Whether the judged completions of its group all earn the same, for each completion."""
    total = totals(rewards, weights).view(-1, size)
    return (total.nan_to_num(nan=-torch.inf).amax(1) <= total.nan_to_num(nan=torch.inf).amin(1)).repeat_interleave(size)


def noise_gate(scores: torch.Tensor, noises: torch.Tensor, size: int, times: float) -> tuple[torch.Tensor, float]:
    """Scores of shape (completions,), with its mean for each group that a judge's noise explains, and the share of such groups.

    `noises` are the standard errors of the scores. They explain scores that differ by a standard deviation (n - 1) of at most `times` the
    root mean square of the noises: the square of that ratio is the F of a one-way analysis of variance, with the judge's votes as
    observations and the completions as classes. NaN is no score, or an unknown noise; a group without a known noise stays as it is. The
    share is of the groups with a score.
    """
    gated, judged, count = scores.clone().view(-1, size), 0, 0
    for group, errors in zip(gated, noises.view(-1, size), strict=True):
        known = ~group.isnan()
        if not known.any():
            continue
        judged += 1
        noise = errors[known].square().nanmean().sqrt()
        if group[known].max() > group[known].min() and group[known].std() <= times * noise:
            group[known] = group[known].mean()
            count += 1
    return gated.view(-1), count / max(1, judged)


def unique(completions: Sequence[Sequence[int]], size: int) -> dict[str, float]:
    """Mean number of different completions in a group of `size`, over this process's whole groups."""
    starts = range(0, len(completions) - size + 1, size)
    counts = [len({tuple(ids) for ids in completions[start : start + size]}) for start in starts]
    return {"groups/unique_completions": sum(counts) / len(counts)} if counts and not len(completions) % size else {}
