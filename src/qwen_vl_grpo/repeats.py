"""Rows that repeat each other: inside a part, where they count twice, and on both sides of the split, where scores reward memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from qwen_vl_grpo import dataset, looks, solve_rates
from qwen_vl_grpo.interfaces import Sample
from qwen_vl_grpo.looks import Looks

PAIRS = 8
"""Pairs that look alike and are written as pictures to look at."""


@dataclass(frozen=True)
class Row:
    """A prepared row without what it shows."""

    place: int
    id: str
    question: str
    """A hash of prompt and pictures."""
    answer: str
    picture_ids: Sequence[str]


def read(rows: Any) -> list[Row]:
    """The rows of a part."""
    return [
        Row(place, row["id"], solve_rates.row_key(row | {"answer": ""}), row["answer"], row["picture_ids"])
        for place, row in enumerate(rows.select_columns(["id", "prompt", "answer", "picture_ids"]))
    ]


def within(rows: Sequence[Row]) -> list[str]:
    """What is odd about rows of one part that ask the same of the same pictures."""
    first: dict[str, Row] = {}
    again = [(row, first[row.question]) for row in rows if first.setdefault(row.question, row) is not row]
    twice = [pair for pair in again if pair[0].answer == pair[1].answer]
    other = [pair for pair in again if pair[0].answer != pair[1].answer]
    return _told(twice, "rows are there more than once", "is") + _told(
        other, "rows ask what another asks and have other answers", "asks as"
    )


def on_both_sides(train: Sequence[Row], held_out: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Faults and doubts about questions, and about pictures, that are trained on and scored."""
    asked = {row.question: row for row in train}
    shown = {name: row for row in train for name in row.picture_ids}
    same = [(row, asked[row.question]) for row in held_out if row.question in asked]
    others = [row for row in held_out if row.question not in asked]
    seen = [(row, shown[name]) for row in others if (name := next(filter(shown.get, row.picture_ids), None))]
    return (
        _told(same, "held-out rows are trained on, so that their scores reward memory; leave them out of one of the two", "is"),
        _told(seen, "held-out rows show a picture that is trained on with other questions", "shows what is in"),
    )


def alike(train: Sequence[Row], held_out: Sequence[Row], seen: Looks) -> list[tuple[Row, str, Row, str]]:
    """Rows on the two sides, each with the name of its picture or clip, that look alike: one the other's scaled copy, most likely."""
    ours, theirs = ({name: row for row in rows for name in looks.names(row.picture_ids, seen)} for rows in (train, held_out))
    pairs = looks.alike(*({name: seen[name] for name in names if name in seen} for names in (ours, theirs)))
    return [(ours[one], one, theirs[other], other) for one, other in pairs if one not in theirs and other not in ours]


def told_alike(pairs: Sequence[tuple[Row, str, Row, str]], train: Any, held_out: Any, seen: Looks, folder: Path) -> list[str]:
    """Write the first pairs as pictures side by side, and say where they are."""
    ours, theirs = dataset.to_samples(train), dataset.to_samples(held_out)
    for number, (one, name, other, near) in enumerate(pairs[:PAIRS]):
        left, right = _picture(ours[one.place], name, seen), _picture(theirs[other.place], near, seen)
        both = Image.new("RGB", (left.width + right.width, max(left.height, right.height)), "white")
        both.paste(left)
        both.paste(right, (left.width, 0))
        both.save(folder / f"alike-{number}.png")
    what = f"pictures or clips that are held out look like ones that are trained on (the first in {folder}/alike-*.png)"
    return _told([(other, one) for one, _, other, _ in pairs], what, "looks like")


def _picture(sample: Sample, name: str, seen: Looks) -> Image.Image:
    place = list(looks.names(sample.columns["picture_ids"], seen)).index(name)
    if place < len(sample.images):
        return sample.images[place]
    frames = sample.videos[place - len(sample.images)].frames
    return Image.fromarray(frames[len(frames) // 2])


def _told(pairs: Sequence[tuple[Row, Row]], what: str, link: str) -> list[str]:
    if not pairs:
        return []
    named = ", ".join(f"id {one.id} {link} id {other.id}" for one, other in pairs[:3]) + ", …" * (len(pairs) > 3)
    return [f"{len(pairs)} {what} ({named})"]
