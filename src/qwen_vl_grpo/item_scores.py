"""From what is said of each completion to scores with intervals, tables by category, and what changed between two policies.

An item is a row of the data; the several completions of one count as their mean, since they are no independent draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qwen_vl_grpo import evaluation, resampling
from qwen_vl_grpo.evaluation import Mark
from qwen_vl_grpo.interfaces import Sample, Verdict
from qwen_vl_grpo.journal import Record

CATEGORIES = (
    "kind", "level", "discipline", "complexity", "question_type", "answer_type", "task", "category", "context", "grade", "skills", "source",
    "language",
)  # fmt: skip
"""Columns of a row, or of its `metadata`, that sort rows: those of MathVista, MMMG, Complex-Edit and our own prompts."""
MOST_VALUES = 30
"""A column of more values sorts nothing."""

Items = dict[str, float]
"""Place of an item -> its value."""


def written(mark: Mark) -> Record:
    """What is said of a completion, as a part of its record."""
    verdict = mark.verdict
    said = {"format": verdict.format, "correct": verdict.correct, "official": verdict.official, "quality": verdict.quality}
    return said | {"rewards": dict(mark.rewards), "told": dict(mark.told)}


def scores(records: Sequence[Record], groups: Sequence[str]) -> dict[str, Any]:
    """Greedy and sampled: what the evaluator of training says, and for each measure its mean over items with a 95 % interval.

    `groups` names for each place those that share a picture.
    """
    return {kind: _score(part, groups) for kind, part in by_kind(records).items()}


def categories(records: Sequence[Record], samples: Sequence[Sample], groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Category -> value -> the measures of its greedy answers; an item with several values counts under each."""
    greedy = by_kind(records)["greedy"]
    sorted_by: dict[str, dict[str, Any]] = {}
    for name in CATEGORIES:
        values = [_values(sample, name) for sample in samples]
        known = sorted({value for own in values for value in own})
        if 2 <= len(known) <= MOST_VALUES:
            sorted_by[name] = {
                value: {"rows": len(part := [one for one in greedy if value in values[one["place"]]])} | _measured(part, groups)
                for value in known
            }
    return sorted_by


def paired(base: Sequence[Record], tuned: Sequence[Record], groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Greedy and sampled -> measure -> what changed from one policy to the other on the same items."""
    named = {str(place): group for place, group in enumerate(groups)}
    changes: dict[str, dict[str, Any]] = {}
    others = by_kind(base)
    for kind, part in by_kind(tuned).items():
        before, after = measures(others[kind]), measures(part)
        found = {name: resampling.difference(before[name], after[name], named) for name in before if name in after}
        changes[kind] = {name: change.record() for name, change in found.items() if change is not None}
    return changes


def by_kind(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record["kind"], []).append(record)
    return found


def measures(records: Sequence[Record]) -> dict[str, Items]:
    """Measure -> the mean of each item that has a value; `any_correct` is whether one of several completions is right."""
    values: dict[str, dict[str, list[float]]] = {}
    for record in records:
        named = {name: record[name] for name in ("correct", "format", "official", "quality")}
        named |= {f"{kind}/{name}": value for kind in ("rewards", "told") for name, value in record[kind].items()}
        for name, value in named.items():
            if value is not None:
                values.setdefault(name, {}).setdefault(str(record["place"]), []).append(float(value))
    means = {name: {item: sum(own) / len(own) for item, own in items.items()} for name, items in values.items()}
    if any(len(own) > 1 for own in values.get("correct", {}).values()):
        means["any_correct"] = {item: max(own) for item, own in values["correct"].items()}
    return means


def _score(records: Sequence[Record], groups: Sequence[str]) -> dict[str, Any]:
    said = evaluation.summary([_mark(record) for record in records], len({record["place"] for record in records}))
    lengths = [record["completion_tokens"] for record in records]
    return said | {
        "clipped": round(sum(record["finish_reason"] == "length" for record in records) / len(records), 4),
        "tokens": round(sum(lengths) / len(lengths), 1),
        "measures": _measured(records, groups),
    }


def _measured(records: Sequence[Record], groups: Sequence[str]) -> dict[str, Any]:
    """Measure -> mean, interval, and the number of items that have a value."""
    named = {str(place): group for place, group in enumerate(groups)}
    return {
        name: {"mean": round(sum(items.values()) / len(items), 4), "interval": resampling.interval(items, named), "items": len(items)}
        for name, items in measures(records).items()
    }


def _mark(record: Record) -> Mark:
    return Mark(Verdict(*(record[name] for name in ("format", "correct", "official", "quality"))), record["rewards"], record["told"])


def _values(sample: Sample, name: str) -> list[str]:
    """What a row says under a name, in its own columns or in its metadata."""
    metadata = sample.columns.get("metadata")
    value = sample.columns.get(name, metadata.get(name) if isinstance(metadata, Mapping) else None)
    values = value if isinstance(value, list | tuple) else [value]
    return [str(one) for one in values if one not in (None, "")]
