"""What the kept completions earned, in figures: by component over time, with their length, beside other measures, and by habit."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from qwen_vl_grpo import rewards, tasks
from qwen_vl_grpo.audit.kept import Completions, Kept
from qwen_vl_grpo.interfaces import Mode
from qwen_vl_grpo.sections import TaskSection

THIRDS = ("first third", "middle third", "last third")
BINS = 12
LEAST = 8
"""Pairs below which no correlation is told."""

Reading = Callable[[Kept], float | None]


@dataclass(frozen=True)
class Distribution:
    """One component's scores in each third of the run's steps."""

    name: str
    edges: tuple[float, float]
    counts: list[list[int]]
    """By third and bin."""
    rows: list[tuple[int, float, float, float, float]]
    """By third: n, mean, standard deviation, share at the lowest and at the highest score of all."""


@dataclass(frozen=True)
class Together:
    """How two measures of the same completions go together."""

    ours: str
    other: str
    n: int
    rho: float | None
    """Spearman's; None where one of them is always the same, or there are too few."""
    inside: float | None = None
    """The same of the differences to the mean of their group."""
    grouped: int = 0
    table: tuple[int, int, int, int] | None = None
    """Completions that both pay, ours alone, the other alone, and neither."""


@dataclass(frozen=True)
class Habit:
    """How common something is among the kept completions, and what it earned."""

    name: str
    n: int
    thirds: tuple[float, float, float]
    mean: float | None
    others: float | None


def totals(kept: Completions) -> dict[str, Reading]:
    """The components of a run that its rows hold, and their sum where there are several."""
    names = [name for name in kept.weights if any(name in one.scores for one in kept.rows)]
    readings: dict[str, Reading] = {name: (lambda one, name=name: one.scores.get(name)) for name in names}
    return readings if len(names) < 2 else readings | {"reward": lambda one: one.total}


def thirds(rows: Sequence[Kept]) -> list[list[Kept]]:
    """The rows of the first, the middle and the last third of the steps."""
    last = max((one.step for one in rows), default=0)
    parts: list[list[Kept]] = [[], [], []]
    for one in rows:
        parts[min(2, 3 * max(0, one.step - 1) // max(1, last))].append(one)
    return parts


def distributions(kept: Completions) -> list[Distribution]:
    found = []
    for name, reading in totals(kept).items():
        parts = [[value for one in part if (value := reading(one)) is not None] for part in thirds(kept.rows)]
        low, high = min(map(min, filter(None, parts))), max(map(max, filter(None, parts)))
        size = (high - low) / BINS or 1.0
        counts = [[0] * BINS for _ in parts]
        rows = []
        for place, values in enumerate(parts):
            for value in values:
                counts[place][min(BINS - 1, int((value - low) / size))] += 1
            count = len(values)
            spread = statistics.pstdev(values) if values else 0.0
            ends = [values.count(end) / max(1, count) for end in (low, high)]
            rows.append((count, statistics.fmean(values) if values else 0.0, spread, *ends))
        found.append(Distribution(name, (low, high), counts, rows))
    return found


def with_length(kept: Completions) -> list[Together]:
    """Each component beside the number of characters: over all rows, and inside groups, where GRPO compares."""
    return [together(kept.rows, name, reading, "characters", length) for name, reading in totals(kept).items()]


def length(one: Kept) -> float:
    return float(len(one.completion))


def beside_others(kept: Completions) -> list[Together]:
    """The reward beside what else there is to judge the same completions by."""
    half = kept.most() / 2
    found = [together(kept.rows, "reward", total, name, reading, half, least) for name, reading, least in _others(kept)]
    details = list(dict.fromkeys(name for one in kept.rows for name in one.details if name not in ("votes", "noise")))
    found += [together(kept.rows, "reward", total, f"the judge's {name}", _detail(name)) for name in details]
    return [one for one in found if one.n]


def total(one: Kept) -> float | None:
    return one.total


def habits(kept: Completions, names: Sequence[str], why: Sequence[Mapping[str, str]]) -> list[Habit]:
    """Each rule over the rows: how many meet it, their share by third, and the mean reward with and without it."""
    place = {id(one): number for number, one in enumerate(kept.rows)}
    parts = [[place[id(one)] for one in part] for part in thirds(kept.rows)]
    found = []
    for name in names:
        those = {number for number in place.values() if name in why[number]}
        paid = [(number in those, one.total) for number, one in enumerate(kept.rows) if one.total is not None]
        earned = [[value for has, value in paid if has is wanted] for wanted in (True, False)]
        shares = [sum(number in those for number in part) / max(1, len(part)) for part in parts]
        means = [statistics.fmean(values) if values else None for values in earned]
        found.append(Habit(name, len(those), (shares[0], shares[1], shares[2]), means[0], means[1]))
    return found


def together(
    rows: Sequence[Kept], ours: str, one: Reading, theirs: str, other: Reading, half: float | None = None, least: float | None = None
) -> Together:
    """Spearman's correlation of two readings, and how often each pays: ours from `half` on, theirs from `least` on."""
    pairs = [(row, a, b) for row in rows if (a := one(row)) is not None and (b := other(row)) is not None]
    groups: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for row, a, b in pairs:
        groups.setdefault((row.step, row.group), []).append((a, b))
    centred = []
    for group in groups.values():
        means = [statistics.fmean(column) for column in zip(*group, strict=True)]
        if len({a for a, _ in group}) > 1:
            centred += [(a - means[0], b - means[1]) for a, b in group]
    table = None
    if half is not None and least is not None:
        kinds = [(a >= half, b >= least) for _, a, b in pairs]
        table = (kinds.count((True, True)), kinds.count((True, False)), kinds.count((False, True)), kinds.count((False, False)))
    return Together(ours, theirs, len(pairs), spearman([(a, b) for _, a, b in pairs]), spearman(centred), len(centred), table)


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None for fewer than LEAST pairs or a column without spread."""
    ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    if len(pairs) < LEAST or min(len(set(ours)), len(set(theirs))) < 2:
        return None
    found: Any = stats.spearmanr(ours, theirs)
    return float(found.statistic)


def _others(kept: Completions) -> list[tuple[str, Reading, float | None]]:
    """Name, reading and the least that counts as paid of each measure that needs nothing but the words and the gold answer."""

    def strict(one: Kept) -> float | None:
        verdict = kept.verdict(one) if "answer" in one.gold else None
        return None if verdict is None or verdict.correct is None else float(verdict.correct)

    def official(one: Kept) -> float | None:
        verdict = kept.verdict(one)
        return None if verdict is None or verdict.official is None else float(verdict.official)

    def quality(one: Kept) -> float | None:
        verdict = kept.verdict(one)
        return None if verdict is None else verdict.quality

    found: list[tuple[str, Reading, float | None]] = [
        ("the strict rule of evaluations", strict, 1.0),
        ("the benchmark's published rule", official, 1.0),
        ("the five points of a rewritten prompt", quality, None),
    ]
    for mode in ("documented", "strict"):
        weights = _published(kept, mode)
        if weights and weights.keys() != kept.weights.keys():
            half = rewards.most(weights) / 2
            found.append((f"the {mode} rewards of its task", lambda one, weights=weights: kept.earned(one, weights), half))
    return found


def _published(kept: Completions, mode: Mode) -> dict[str, float]:
    if kept.task is None or kept.task.name not in tasks.PUBLISHED:
        return {}
    return dict(tasks.build(TaskSection(name=kept.task.name, mode=mode)).rewards)


def _detail(name: str) -> Reading:
    return lambda one: one.details.get(name)
