"""Write the shape prompts: what is to be drawn has to be derived ("grass, three corners" -> green triangle).

    train.jsonl        rows to reinforce on
    validation.jsonl   rows to choose settings on
    test.jsonl         rows used once, for the numbers that are shown
    warmup.jsonl       training rows with a `target` to imitate, of which most are wrong

A prompt is one clue for the colour and one for the shape. Every clue is trained on, and every pair of clues is in one split alone: a
held-out prompt puts two known clues together that were never asked together.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

COLOURS = {
    "red": "a ripe tomato, fresh blood, a fire engine, a ruby, a stop sign, a strawberry",
    "green": "grass, an emerald, a frog, spinach, a lime, a pine tree",
    "blue": "the clear sky, a sapphire, the deep sea, a blueberry, new jeans, a kingfisher",
    "yellow": "a lemon, a banana, an egg yolk, a canary, a sunflower, ripe corn",
}
"""Colour -> things that have it."""
SHAPES = {
    "circle": "a coin, a full moon, a wheel, a button, a plate, a ring",
    "square": "a chess field, a floor tile, a dice face, a stamp, a handkerchief, four equal sides",
    "triangle": "three corners, a pyramid, a slice of pizza, a tent from the front, a yield sign, a pointed roof",
}
"""Shape -> things that have it."""
RIGHT, MISTAKEN, COPIED = 0.25, 0.25, 0.25
"""Shares of the warm-up's words that are right, that repeat the one mistake which goes with a clue, and that repeat the clue's last word;
the others are drawn at random. Copies make the policy's last state tell one clue from another, and it is all that a head has to go by."""
WARMUP_ROWS = 4000

Row = dict[str, str]


def drawings() -> list[str]:
    """Everything that the DiT can draw, in words."""
    return [f"{colour} {shape}" for colour in COLOURS for shape in SHAPES]


def splits() -> dict[str, list[Row]]:
    """The prompts to train on, to choose on and to test on; always the same ones."""
    hues = [(colour, thing) for colour, things in COLOURS.items() for thing in things.split(", ")]
    outlines = [(shape, thing) for shape, things in SHAPES.items() for thing in things.split(", ")]
    rows: dict[str, list[Row]] = {"train": [], "validation": [], "test": []}
    for number, (colour, hue) in enumerate(hues):
        for place, (shape, outline) in enumerate(outlines):
            part = ("test", "test", "test", "test", "validation", "train", "train", "train")[(5 * number + place) % 8]
            question = f"{hue}, {outline}"
            rows[part].append({"id": question, "question": question, "answer": f"{colour} {shape}", "clues": f"{hue}, {outline}"})
    for part in rows.values():
        random.Random(0).shuffle(part)  # the first held-out ones are shown, and should not all be of one colour
    return rows


def write(folder: Path, seed: int = 0, warmup_rows: int = WARMUP_ROWS) -> dict[str, int]:
    """Write the four files; returns rows by split. The splits never change; what is wrong in the warm-up follows the seed."""
    rows = splits()
    noise = random.Random(seed)
    mistakes = mistaken(noise)
    several = rows["train"] * -(-warmup_rows // len(rows["train"]))
    rows["warmup"] = [row | {"target": noisy_target(row, mistakes, noise)} for row in noise.sample(several, warmup_rows)]
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    return {name: len(part) for name, part in rows.items()}


def mistaken(noise: random.Random) -> dict[str, str]:
    """Clue -> the wrong word that the warm-up repeats for it."""
    return {
        thing: noise.choice([other for other in words if other != word])
        for words in (COLOURS, SHAPES)
        for word, things in words.items()
        for thing in things.split(", ")
    }


def noisy_target(row: Row, mistakes: dict[str, str], noise: random.Random) -> str:
    """A completion to imitate, each of its two words right, mistaken, copied or any."""
    target = []
    for word, clue, words in zip(row["answer"].split(), row["clues"].split(", "), (COLOURS, SHAPES), strict=True):
        choices = [word, mistakes[clue], clue.split()[-1], noise.choice(list(words))]
        target += noise.choices(choices, [RIGHT, MISTAKEN, COPIED, 1 - RIGHT - MISTAKEN - COPIED])
    return " ".join(target)
