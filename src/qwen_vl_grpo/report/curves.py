"""metrics.jsonl -> curves small enough for a page, with every extreme kept."""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qwen_vl_grpo import attempts

BUCKETS = 150
"""Points a drawn curve has at most; more are joined, each kept as mean, lowest and highest of its steps."""

PANELS = (
    ("reward", "Reward, mean of a step's completions"),
    ("rewards/", "Reward component "),
    ("eval/greedy/correct", "Held out, greedy: well-formed and right"),
    ("eval/sampled/correct", "Held out, sampled: well-formed and right"),
    ("completions/mean_length", "Completion length, tokens"),
    ("completions/clipped_ratio", "Completions cut off at the longest length, share"),
    ("rollouts/logp_difference/mean", "Sampling agreement: mean log-probability difference to the trainer"),
    ("rollouts/effective_sample_size", "Sampling agreement: effective sample size of the loss's weights"),
    ("groups/without_spread", "Groups without spread, share"),
    ("entropy", "Entropy, nats a token"),
    ("kl", "KL divergence from the reference"),
)
"""Metric -> title, in the order of the page; `rewards/` stands for every component."""

SHARES = ("eval/greedy/correct", "eval/sampled/correct", "rollouts/effective_sample_size", "groups/without_spread")
"""Drawn from 0 to 1 whatever their values, for a dip from 1 to 0.9999 is none."""

LARGEST = 1e100
"""Beyond it, as for NaN, a value counts as no number: sums and axes of it would not be finite."""

OLDER = {"sampling/sampling_logp_difference/mean": "rollouts/logp_difference/mean", "frac_reward_zero_std": "groups/without_spread"}
"""What older runs call the same figure."""


@dataclass(frozen=True)
class Curve:
    """One metric over steps, joined to at most BUCKETS points; `low` and `high` are the extremes of what each point joins."""

    steps: list[float]
    values: list[float]
    low: list[float]
    high: list[float]
    first: float
    last: float
    count: int
    """Values before they were joined."""


@dataclass
class History:
    """What metrics.jsonl tells of a run."""

    curves: dict[str, Curve] = field(default_factory=dict)
    tokens: float | None = None
    """Tokens of prompts and completions by the end, as TRL counts them."""
    seconds: float | None = None
    """From the first logged step of each attempt to its last, by the metrics' own clock: the pauses between attempts are left out."""
    last_step: int = 0
    notes: list[str] = field(default_factory=list)


def read(path: Path) -> History:
    """Read a run's metrics; what is missing or broken becomes a note and no error.

    A step that was logged again after a resume counts as logged the second time (`attempts.begins_anew`).
    """
    told = History()
    points: dict[str, tuple[list[float], list[float]]] = {}
    drawn: dict[tuple[str, ...], list[tuple[str, list[float], list[float]]]] = {}  # the keys of a line -> what of it is drawn
    clock: dict[Any, list[float]] = {}  # attempt -> its first and last moment
    place: tuple[int, Any] | None = None
    broken = lost = 0
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    row = json.loads(line)
                    step = int(row["step"])
                except (ValueError, KeyError, TypeError, OverflowError):
                    broken += 1
                    continue
                here = step, str(row.get("attempt"))
                if place is not None and attempts.begins_anew(here, place):
                    _forget(points, step)
                place = here
                if (keys := tuple(row)) not in drawn:
                    drawn[keys] = [(key, *points.setdefault(name, ([], []))) for key, name in _wanted(keys)]
                for key, steps, values in drawn[keys]:
                    value = row[key]
                    if not isinstance(value, (int, float)) or not abs(value) < LARGEST:
                        lost += 1
                        continue
                    steps.append(step)
                    values.append(value)
                told.last_step = step
                told.tokens = number(row.get("num_tokens")) or told.tokens
                if (moment := number(row.get("time"))) is not None:
                    clock.setdefault(here[1], [moment])[1:] = [moment]
    except OSError:
        told.notes.append("has no metrics.jsonl, so no curves and no count of tokens")
        return told
    told.curves = {name: join(*series) for name, series in points.items() if series[0]}
    told.seconds = sum(moments[-1] - moments[0] for moments in clock.values()) or None
    if broken:
        told.notes.append(f"{broken} lines of metrics.jsonl could not be read and were passed over")
    if lost:
        told.notes.append(f"{lost} values in metrics.jsonl were no number that can be drawn and were left out")
    if not told.curves:
        told.notes.append("metrics.jsonl holds none of the metrics that are drawn")
    return told


def _forget(points: dict[str, tuple[list[float], list[float]]], step: int) -> None:
    """Leave out what was logged from a step on."""
    for series in points.values():
        first = bisect.bisect_left(series[0], step)
        for column in series:
            del column[first:]


def join(steps: Sequence[float], values: Sequence[float]) -> Curve:
    """At most BUCKETS points out of equally many neighbouring values each: their mean, lowest and highest."""
    count = len(values)
    ends = [count * place // BUCKETS for place in range(BUCKETS + 1)] if count > BUCKETS else list(range(count + 1))
    parts = [slice(start, end) for start, end in itertools.pairwise(ends)]
    means = [sum(values[part]) / (part.stop - part.start) for part in parts]
    middle = [(steps[part.start] + steps[part.stop - 1]) / 2 for part in parts]
    low, high = [min(values[part]) for part in parts], [max(values[part]) for part in parts]
    return Curve(middle, means, low, high, values[0], values[-1], count)


def _wanted(keys: Sequence[str]) -> list[tuple[str, str]]:
    """Key of the file -> name of the metric, for what is drawn; an older name counts only where the newer is not there."""
    found = {}
    names = {name for name, _ in PANELS}
    for key in sorted(keys, key=lambda key: key in OLDER):
        name = OLDER.get(key, key)
        if name in names or (key.startswith("rewards/") and key.endswith("/mean")):
            found.setdefault(name, key)
    return [(key, name) for name, key in found.items()]


def number(value: Any) -> float | None:
    """The value if it is a number that can be drawn, else None."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < LARGEST else None
