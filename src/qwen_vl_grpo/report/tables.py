"""Run cards -> the tables of a comparison: scores with intervals, what differs in the configs, what the runs cost.

A card is taken as it is: older ones lack keys, and a figure that is not there is None and never a guess.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from qwen_vl_grpo import gallery, rendered_gallery, trackers
from qwen_vl_grpo.interfaces import RunCard
from qwen_vl_grpo.report import curves

ABSENT = "not in the card"
SCORES = (
    ("greedy answers", ("before", "greedy"), ("after", "greedy")),
    ("sampled answers", ("before", "sampled"), ("after", "sampled")),
    ("greedy, shown {blank}", (), ("blind",)),
    ("greedy, adapter switched off", (), ("without_adapter", "greedy")),
    ("sampled, adapter switched off", (), ("without_adapter", "sampled")),
)
"""Name -> where a card's metrics hold the score before and after; `blank` is what the run was shown in place of pictures and clips."""


@dataclass(frozen=True)
class Run:
    """One run as a comparison sees it."""

    card: RunCard
    folder: Path
    history: curves.History
    answers: list[dict[str, Any]]
    drawn: list[dict[str, Any]]
    """What its completions looked like (rendered_gallery.py)."""
    notes: list[str]
    """What is missing or wrong, in words."""

    @property
    def id(self) -> str:
        return self.card.run_id


@dataclass(frozen=True)
class Score:
    """One share before and after, each with its 95 % interval, and the gain with its own; or the mean of a reward, without intervals."""

    run: Run
    name: str
    rows: int | None
    n: int | None
    before: float | None
    before_interval: tuple[float, float] | None
    after: float | None
    after_interval: tuple[float, float] | None
    gain: float | None
    gain_interval: tuple[float, float] | None
    form: tuple[float | None, float | None]
    """Share of well-formed completions before and after."""
    official: tuple[float | None, float | None]
    """Share that the benchmark's published rule counts, before and after."""


def gather(card: RunCard, folder: Path) -> Run:
    """Read what lies beside a card."""
    history = curves.read(folder / "metrics.jsonl")
    answers, broken = gallery.read(folder)
    drawn, broken_drawn = rendered_gallery.read(folder)
    notes = list(history.notes)
    if card.state != "finished":
        notes.append(f"state: {card.state}" + (f" ({card.error})" if card.error else ""))
    if broken:
        notes.append(f"{broken} lines of answers.jsonl could not be read and were passed over")
    if broken_drawn:
        notes.append(f"{broken_drawn} lines of {rendered_gallery.FILE} could not be read and were passed over")
    if not answers:
        notes.append("no answers to held-out questions in its folder")
    run = Run(card, folder, history, answers, drawn, notes)
    if not scores([run]):
        notes.append("has no scores in its card")
    notes += [f"alarm {alarm.get('name')}, from step {alarm.get('first_step')}: {alarm.get('text')}" for alarm in card.alarms]
    return run


def scores(runs: Sequence[Run]) -> list[Score]:
    """Every score that a card holds, each kind with all of its runs together; of a task that can tell nothing right by its words, the
    mean of each reward."""
    found = []
    for name, old, new in SCORES:
        for run in runs:
            before, after = at(run.card.metrics, *old) if old else None, at(run.card.metrics, *new)
            count, rows = (number(after, key) if number(after, key) is not None else number(before, key) for key in ("n", "rows"))
            shown = name.format(blank=run.card.blank)
            for said, path in _measures(before, after).items():
                shares = number(before, *path), number(after, *path)
                intervals = (None, None) if said else (interval(before), interval(after))
                found.append(
                    Score(
                        run, shown + said, None if rows is None else int(rows), None if count is None else int(count),
                        shares[0], intervals[0], shares[1], intervals[1], *gain(shares, intervals),
                        (number(before, "format"), number(after, "format")), (number(before, "official"), number(after, "official")),
                    )
                )  # fmt: skip
    return found


def _measures(before: Any, after: Any) -> dict[str, tuple[str, ...]]:
    """What is told of a score beside its name -> where it stands."""
    if any(number(scored, "correct") is not None for scored in (before, after)):
        return {"": ("correct",)}
    rewards = [at(scored, "rewards") for scored in (before, after)]
    named = dict.fromkeys(name for held in rewards if isinstance(held, dict) for name in held if number(held, name) is not None)
    return {f", mean of {name}": ("rewards", name) for name in named}


def gain(
    shares: tuple[float | None, float | None], intervals: tuple[tuple[float, float] | None, tuple[float, float] | None]
) -> tuple[float | None, tuple[float, float] | None]:
    """The difference of two shares with its 95 % interval from theirs (R. G. Newcombe, 1998, method 10).

    It takes the two for independent; they are answers to the same rows, so the interval is wider than it need be as a rule.
    """
    before, after = shares
    if before is None or after is None:
        return None, None
    old, new = intervals
    if old is None or new is None:
        return after - before, None
    (low0, high0), (low1, high1) = old, new
    down, up = math.hypot(after - low1, high0 - before), math.hypot(high1 - after, before - low0)
    return after - before, (after - before - down, after - before + up)


def held_out(run: Run) -> str:
    """The rows that a run was scored on, as far as its card tells."""
    rows = [f"{score.rows} rows" for score in scores([run])][:1]
    return ", ".join([*(text(run.card.dataset.get(key)) for key in ("name", "held_out")), *rows])


def differences(runs: Sequence[Run]) -> tuple[list[tuple[str, list[str]]], int]:
    """Config keys and circumstances in which the runs differ, each with every run's value; and how many are the same in all."""
    flats = [_flat(_circumstances(run.card)) for run in runs]
    keys = list(dict.fromkeys(key for flat in flats for key in flat))
    rows = [(key, [flat.get(key, ABSENT) for flat in flats]) for key in keys]
    different = [row for row in rows if len(set(row[1])) > 1]
    return different, len(rows) - len(different)


def _circumstances(card: RunCard) -> dict[str, Any]:
    config = {key: value for key, value in trackers.scrub(card.config).items() if key not in ("run_id", "output_dir")}
    around = card.model_dump(include={"base_revision", "dataset", "system_prompt", "preprocessing", "git", "versions", "hardware"})
    return config | {f"card.{key}": value for key, value in around.items()}


def _flat(value: Any, key: str = "") -> dict[str, str]:
    if isinstance(value, dict) and (value or not key):
        return {name: inner for child in value for name, inner in _flat(value[child], f"{key}.{child}".lstrip(".")).items()}
    return {key: text(value)}


def cost(run: Run) -> dict[str, float | str | None]:
    """Steps, hours and tokens of a run; GPU-hours are devices x hours, and None on a machine without a GPU.

    Of a run that was resumed the hours of all its attempts count, and the pauses between them do not.
    """
    card = run.card
    trained = number(card.metrics, "train_seconds") if len(card.attempts) < 2 else None  # the card has the last attempt's
    clock = "the card" if trained is not None else "the metrics' clock" if run.history.seconds else None
    seconds = trained if trained is not None else run.history.seconds
    devices = _cards(card)
    whole = _whole(card)
    tokens = run.history.tokens
    return {
        "steps": run.history.last_step or None,
        "GRPO, hours": seconds / 3600 if seconds else None,
        "measured by": clock,
        "whole run, hours": whole / 3600 if whole else None,
        "GPU-hours of GRPO": devices * seconds / 3600 if devices and seconds else None,
        "GPU-hours, whole run": devices * whole / 3600 if devices and whole else None,
        "tokens": tokens,
        "tokens/s": tokens / seconds if tokens and seconds else None,
        "peak memory, GiB": number(card.metrics, "peak_gib"),
        "hardware": hardware(card),
    }


def hardware(card: RunCard) -> str:
    if (devices := _cards(card)) is not None:
        return f"{devices:g} x {card.hardware.get('name')}"
    return f"{card.hardware['cores']} cores, no GPU" if "cores" in card.hardware else ABSENT


def _cards(card: RunCard) -> float | None:
    """How many cards a run had: `devices` are of one machine, and on several there are as many as processes. None without any."""
    devices, processes = (number(card.hardware, key) for key in ("devices", "processes"))
    return None if devices is None or card.hardware.get("kind") not in ("cuda", "rocm") else max(devices, processes or 0)


def at(tree: Any, *path: str) -> Any:
    """The value at a path of keys, or None where an older card has no such path."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def number(tree: Any, *path: str) -> float | None:
    return curves.number(at(tree, *path))


def interval(scored: Any) -> tuple[float, float] | None:
    ends = at(scored, "interval")
    low, high = map(curves.number, ends) if isinstance(ends, list | tuple) and len(ends) == 2 else (None, None)
    return None if low is None or high is None else (low, high)


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _whole(card: RunCard) -> float | None:
    """Seconds from the run's beginning to its end, or those of its attempts where it had several."""
    if len(card.attempts) < 2:
        return _seconds(card.created, card.finished)
    spans = [_seconds(attempt.get("start"), attempt.get("end")) for attempt in card.attempts]
    return None if None in spans else sum(filter(None, spans))


def _seconds(start: str | None, end: str | None) -> float | None:
    try:
        return (datetime.fromisoformat(end or "") - datetime.fromisoformat(start or "")).total_seconds()
    except (ValueError, TypeError):
        return None
