"""Write the sign prompts: the words of a sign have to be derived ("the opposite of open" -> closed), and no held-out prompt is trained on.

    train.jsonl        rows to reinforce on
    validation.jsonl   rows to choose settings on
    test.jsonl         rows used once, for the numbers that are shown
    warmup.jsonl       training rows with a `target` to imitate, wrong on purpose in two of five

Every fact is asked in six ways. One of them is tested, for every third fact another is validated, and the policy is trained on the rest:
a held-out prompt asks for a known fact in a way in which that fact was never asked.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

NUMBERS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen",
]  # fmt: skip
DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
MONTHS = ["january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december"]
OPPOSITES = (
    "open closed, hot cold, up down, left right, in out, push pull, start stop, day night, wet dry, full empty, fast slow, high low, "
    "big small, loud quiet, near far, old new, early late, clean dirty, heavy light, long short, hard soft, rich poor, sweet sour, on off"
)
ASKED = {
    "opposite": "the opposite of {0}, the reverse of {0}, the contrary of {0}, {0} turned around, the other side of {0}, what {0} is not",
    "sum": "{0} plus {1} in words, the sum of {0} and {1}, {0} and {1} together, {0} more than {1}, {0} added to {1}, add {0} to {1}",
    "after": "right after {0}, what comes after {0}, after {0} there is, what follows {0}, following {0}, {0} is followed by",
    "before": "right before {0}, what comes before {0}, before {0} there is, what precedes {0}, preceding {0}, {0} is preceded by",
}
"""Ways to ask for a fact, by its kind."""
RIGHT, COPIED = 0.6, 0.3
"""Shares of the warm-up's targets that are right, and that repeat a word of the prompt; the others are words drawn at random."""
WARMUP_ROWS = 4000

Row = dict[str, str]


def facts() -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Each fact: its kind, the words that it is asked with, and the words of the sign."""
    for pair in OPPOSITES.split(", "):
        first, second = pair.split()
        yield "opposite", (first,), second
        yield "opposite", (second,), first
    for first in range(1, 8):
        for second in range(1, 8):
            yield "sum", (NUMBERS[first], NUMBERS[second]), NUMBERS[first + second]
    for names in (NUMBERS, DAYS, MONTHS):
        for earlier, later in pairwise(names):
            yield "after", (earlier,), later
            yield "before", (later,), earlier


def splits() -> dict[str, list[Row]]:
    """The prompts to train on, to choose on and to test on; always the same ones."""
    draw = random.Random(0)
    rows: dict[str, list[Row]] = {"train": [], "validation": [], "test": []}
    for number, (kind, words, answer) in enumerate(facts()):
        ways = [way.format(*words) for way in ASKED[kind].split(", ")]
        draw.shuffle(ways)
        parts = ["test", "train" if number % 3 else "validation", *["train"] * (len(ways) - 2)]
        for part, way in zip(parts, ways, strict=True):
            rows[part].append({"id": way, "kind": kind, "question": way, "answer": answer, "asked_with": " ".join(words)})
    return rows


def write(folder: Path, seed: int = 0, warmup_rows: int = WARMUP_ROWS) -> dict[str, int]:
    """Write the four files; returns rows by split. The splits never change; what is wrong in the warm-up follows the seed."""
    rows = splits()
    noise = random.Random(seed)
    words = sorted({row["answer"] for row in rows["train"]})
    several = rows["train"] * -(-warmup_rows // len(rows["train"]))
    rows["warmup"] = [row | {"target": noisy_target(row, words, noise)} for row in noise.sample(several, warmup_rows)]
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    return {name: len(part) for name, part in rows.items()}


def noisy_target(row: Row, words: list[str], noise: random.Random) -> str:
    """A completion to imitate: the right words, a word of the prompt, or any word."""
    draw = noise.random()
    if draw < RIGHT:
        return row["answer"]
    return noise.choice(row["asked_with"].split() if draw < RIGHT + COPIED else words)
