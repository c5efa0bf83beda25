"""Write scikit-learn's 1,797 scanned digits as a data set with a picture, a question and an answer in each row.

    train.jsonl       1,257 rows to reinforce on
    validation.jsonl    180 rows to choose settings on
    test.jsonl          360 rows, used once, for the numbers that are shown
    warmup.jsonl        800 of the training rows with a `target` to imitate, noisy on purpose

The targets are noisy so that something is left for reinforcement to improve: 30 % name a digit drawn at random, and 80 %
break the format (two thirds of them only lack the line breaks).
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

QUESTION = "Which digit is this?"
SYSTEM_PROMPT = "Reply in this form: reasoning, then answer."
LABEL_NOISE, FORMAT_NOISE, ONLY_LINE_BREAKS = 0.3, 0.8, 0.65
WARMUP_ROWS = 800


def write(folder: Path, seed: int = 0, warmup_rows: int = WARMUP_ROWS) -> dict[str, int]:
    """Write the four files and the pictures; returns rows by split. The splits never change; the noise follows the seed.

    More warm-up rows than there are scans to train on show a scan several times, each with noise of its own.
    """
    bunch: Any = load_digits()
    scans, digits = bunch.images, bunch.target
    everything = numpy.arange(len(digits))
    rest, test = train_test_split(everything, test_size=360, stratify=digits, random_state=0)
    train, validation = train_test_split(rest, test_size=180, stratify=digits[rest], random_state=0)
    pictures = folder / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    for index, scan in enumerate(scans):
        grey = (scan * 255 / 16).astype(numpy.uint8)
        Image.fromarray(grey).save(pictures / f"{index:04}.png")
    noise = random.Random(seed)
    warmup = noise.sample(list(train) * -(-warmup_rows // len(train)), warmup_rows)
    splits = {
        "train": [row(i, digits) for i in train],
        "validation": [row(i, digits) for i in validation],
        "test": [row(i, digits) for i in test],
        "warmup": [row(i, digits) | {"target": noisy_target(int(digits[i]), noise)} for i in warmup],
    }
    for name, rows in splits.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in rows), encoding="utf-8")
    return {name: len(rows) for name, rows in splits.items()}


def row(index: int, digits: numpy.ndarray) -> dict[str, str]:
    return {"id": f"{index:04}", "image": f"pictures/{index:04}.png", "question": QUESTION, "answer": str(digits[index])}


def noisy_target(digit: int, noise: random.Random) -> str:
    """A completion to imitate, with the label redrawn and the format broken as often as the constants say."""
    if noise.random() < LABEL_NOISE:
        digit = noise.randrange(10)
    thought = f"The digit in the picture is {digit}"
    if noise.random() >= FORMAT_NOISE:
        return f"<reasoning>\n{thought}\n</reasoning>\n<answer>\n{digit}\n</answer>\n"
    if noise.random() < ONLY_LINE_BREAKS:
        return f"<reasoning>{thought}</reasoning><answer>{digit}</answer>"
    return noise.choice([f"{thought}", f"<answer>\n{digit}\n</answer>\n", f"<reasoning>\n{thought}\n</reasoning>\n{digit}"])
