"""Write drawn pictures with editing instructions of our own, in Complex-Edit's columns: 24 rows of test_real and 12 of test_syn.

    data/test_real-00000-of-00001.parquet     image, edit (original_sequence, sequence, compound with the complexities 1 to 8)
    data/test_syn-00000-of-00001.parquet

Each picture is a shape on a floor before a wall; the same rows every time. They are for demonstrations and tests of the whole path: what
is learned on them says nothing of photographs.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import datasets
from PIL import Image, ImageDraw

SIDE = 112
"""Pixels of a picture: 16 tokens of a Qwen-VL whose patches are merged to 28 pixels."""
ROWS = {"test_real": 24, "test_syn": 12}
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "black", "white")
SHAPES = ("circle", "square", "triangle")
TEXT = datasets.Value("string")
STEPS = datasets.List({"name": TEXT, "instruction": TEXT})
FEATURES = datasets.Features(
    {
        "image": datasets.Image(),
        "edit": {
            "reasoning": TEXT,
            "original_sequence": STEPS,
            "sequence": STEPS,
            "compound": datasets.List({"reasoning": TEXT, "compound_instruction": TEXT}),
        },
    }
)
"""Columns of UCSC-VLAA/Complex-Edit, as its eval.py and build_dataset/generate_edits.py name them (commit 3502eaa)."""


def write(folder: Path) -> dict[str, int]:
    """Write both splits as the data set's repository keeps them; returns rows by split."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for split in ROWS:
        datasets.Dataset.from_list(rows(split), features=FEATURES).to_parquet(folder / f"data/{split}-00000-of-00001.parquet")
    return dict(ROWS)


def rows(split: str) -> list[dict[str, Any]]:
    """The rows of a split, their pictures as PIL pictures; no two splits share one."""
    scenes = [(shape, colour, wall) for shape in SHAPES for colour in COLOURS for wall in COLOURS if colour != wall]
    random.Random(0).shuffle(scenes)
    taken = scenes[: ROWS["test_real"]] if split == "test_real" else scenes[ROWS["test_real"] :][: ROWS["test_syn"]]
    return [{"image": draw(*scene), "edit": edit(scene)} for scene in taken]


def draw(shape: str, colour: str, wall: str) -> Image.Image:
    """A shape in the middle of a room."""
    image = Image.new("RGB", (SIDE, SIDE), wall)
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 84, SIDE, SIDE), fill="grey")
    if shape == "circle":
        pen.ellipse((36, 40, 76, 80), fill=colour)
    elif shape == "square":
        pen.rectangle((36, 40, 76, 80), fill=colour)
    else:
        pen.polygon(((36, 80), (76, 80), (56, 40)), fill=colour)
    return image


def edit(scene: tuple[str, str, str]) -> dict[str, Any]:
    """Eight atomic edits of a scene, and the compound of the first 1, 2, … 8 of them."""
    shape, colour, wall = scene
    chance = random.Random(" ".join(scene))
    other, added, room = chance.sample([name for name in COLOURS if name not in (colour, wall)], 3)
    small = chance.choice([name for name in SHAPES if name != shape])
    side, word = chance.choice(("left", "right")), chance.choice(("OPEN", "HELLO", "STOP", "EXIT"))
    sequence = [
        {"name": "Change Color", "instruction": f"Make the {shape} {other}."},
        {"name": "Add an Object", "instruction": f"Add a small {added} {small} in the top left corner."},
        {"name": "Change Background", "instruction": f"Paint the wall {room}."},
        {"name": "Resize an Object", "instruction": f"Make the {shape} half as large."},
        {"name": "Move an Object", "instruction": f"Move the {shape} to the {side} edge."},
        {"name": "Duplicate an Object", "instruction": f"Put a second {small} beside the first."},
        {"name": "Add Text", "instruction": f"Write {word} on the floor."},
        {"name": "Adjust Lighting", "instruction": f"Light the scene from the {side}."},
    ]
    longer = [step | {"instruction": step["instruction"].removesuffix(".") + ", and leave the rest as it is."} for step in sequence]
    compound = [{"reasoning": "none", "compound_instruction": sequence[0]["instruction"]}]
    compound += [
        {
            "reasoning": f"The {count} steps in one sentence.",
            "compound_instruction": in_one([step["instruction"] for step in sequence[:count]]),
        }
        for count in range(2, len(sequence) + 1)
    ]
    reasoning = f"The picture shows a {colour} {shape} before a {wall} wall."
    return {"reasoning": reasoning, "original_sequence": longer, "sequence": sequence, "compound": compound}


def in_one(sentences: list[str]) -> str:
    """Several instructions in one sentence."""
    first, *others = [sentence.removesuffix(".") for sentence in sentences]
    rest = [other[0].lower() + other[1:] for other in others]
    return ", ".join([first, *rest[:-1]]) + f" and {rest[-1]}."
