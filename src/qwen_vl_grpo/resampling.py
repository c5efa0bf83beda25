"""How sure a mean over items is, and the difference of two policies on the same items.

Items that show the same picture are no independent draws, so whole groups of items are drawn and flipped; an item without company is a
group of its own. Everything is seeded: the same values give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy

DRAWS = 10_000
SEED = 0
AT_ONCE = 500
"""Draws that are in memory together."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Difference:
    """What changed from one policy to another, over the items that both have a value for."""

    change: float
    interval: Interval
    p: float
    """How likely so large a difference is if the two policies are equally good; two-sided."""
    test: str
    n: int
    up: int
    down: int
    """Items that got better, and worse."""

    def record(self) -> dict[str, Any]:
        return asdict(self)


def interval(values: Mapping[str, float], groups: Mapping[str, str]) -> Interval:
    """The 95 % percentile interval of the mean over items, by the bootstrap (B. Efron, 1979) over groups of items."""
    sums, counts = _by_group(values, groups)
    draw = numpy.random.default_rng(SEED)
    means = []
    for start in range(0, DRAWS, AT_ONCE):
        chosen = draw.integers(0, len(sums), (min(AT_ONCE, DRAWS - start), len(sums)))
        means.append(sums[chosen].sum(1) / counts[chosen].sum(1))
    low, high = numpy.percentile(numpy.concatenate(means), [2.5, 97.5])
    return round(float(low), 4), round(float(high), 4)


def difference(base: Mapping[str, float], tuned: Mapping[str, float], groups: Mapping[str, str]) -> Difference | None:
    """The mean of tuned - base over the items of both, None if there are none.

    Right-or-wrong values of items that share no group are tested exactly (McNemar), all others by flipping signs.
    """
    both = {item: (base[item], tuned[item]) for item in base if item in tuned}
    if not both:
        return None
    changes = {item: after - before for item, (before, after) in both.items()}
    up, down = (sum(change * sign > 0 for change in changes.values()) for sign in (1, -1))
    alone = len({groups[item] for item in changes}) == len(changes)
    if alone and all(value in (0.0, 1.0) for pair in both.values() for value in pair):
        p, test = mcnemar(up, down), "McNemar, exact"
    else:
        p, test = sign_flips(changes, groups), f"{DRAWS} sign flips"
    mean = sum(changes.values()) / len(changes)
    return Difference(round(mean, 4), interval(changes, groups), p, test, len(changes), up, down)


def mcnemar(up: int, down: int) -> float:
    """Two-sided exact p-value of so uneven a split of the items that changed, each way equally likely (Q. McNemar, 1947)."""
    changed = up + down
    tail = sum(math.comb(changed, count) for count in range(min(up, down) + 1))
    return min(1.0, 2 * tail / 2**changed)


def sign_flips(changes: Mapping[str, float], groups: Mapping[str, str]) -> float:
    """Two-sided p-value of a mean change, had each group's changes as well come with the other sign (R. A. Fisher, 1935).

    Of DRAWS random flips, the observed one counted among them (B. Phipson and G. K. Smyth, 2010), so that it is never 0.
    """
    sums, _ = _by_group(changes, groups)
    draw = numpy.random.default_rng(SEED)
    observed = abs(sums.sum())
    beyond = 0
    for start in range(0, DRAWS, AT_ONCE):
        signs = draw.integers(0, 2, (min(AT_ONCE, DRAWS - start), len(sums))) * 2 - 1
        beyond += int((abs((signs * sums).sum(1)) >= observed - 1e-9).sum())
    return (1 + beyond) / (1 + DRAWS)


def _by_group(values: Mapping[str, float], groups: Mapping[str, str]) -> tuple[Any, Any]:
    """The sum and the number of the values of each group, in the order of the items."""
    found: dict[str, list[float]] = {}
    for item, value in values.items():
        found.setdefault(groups[item], []).append(value)
    sums: Sequence[float] = [sum(group) for group in found.values()]
    return numpy.array(sums, float), numpy.array([len(group) for group in found.values()], float)
