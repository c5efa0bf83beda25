"""Draw 2 x 2 matrices of numbers, with questions that take several steps: the matrix puzzles of docs/results_comparison.md.

    train.jsonl        585 matrices to reinforce on, each with every question
    test.jsonl         40 other matrices, for the numbers that are shown
    warmup.jsonl       the training rows, each several times, with a `target` to imitate, noisy on purpose

No matrix of the test is in the training part, so its answers have to be read and worked out. The targets are noisy so that something is
left for reinforcement to improve: some read one number wrongly and go on correctly from there, and most break the format.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

SYSTEM_PROMPT = "Reply in this form: reasoning, then answer."
NUMBERS = range(5)
COLOURS = ("#444444", "#c00000", "#008000", "#0000d0", "#d08000")
CELL = 28
"""Pixels of a number's square: what one token of the policy sees."""
THICK = 3
"""Pixels of a bracket's line."""
TEST_MATRICES = 40
READING_NOISE, FORMAT_NOISE, ONLY_LINE_BREAKS = 0.3, 0.8, 0.65
"""Shares of the targets that read any number in place of one of the four, and that break the format; of these, how many only lack the line
breaks."""
WARMUP_EACH = 3
"""Times that a row is in the warm-up, each with noise of its own."""

Matrix = tuple[int, int, int, int]
"""a, b, c, d: the first row, then the second."""
Steps = tuple[list[str], int]
"""The lines of a calculation, and what it comes to."""


def trace(matrix: Matrix) -> Steps:
    a, _, _, d = matrix
    return [f"{a} + {d} = {a + d}"], a + d


def determinant(matrix: Matrix) -> Steps:
    a, b, c, d = matrix
    return [f"{a} x {d} = {a * d}", f"{b} x {c} = {b * c}", f"{a * d} - {b * c} = {a * d - b * c}"], a * d - b * c


def rows(matrix: Matrix) -> Steps:
    a, b, c, d = matrix
    return [f"{a} + {b} = {a + b}", f"{c} + {d} = {c + d}", f"{a + b} x {c + d} = {(a + b) * (c + d)}"], (a + b) * (c + d)


PUZZLES: dict[str, tuple[str, Callable[[Matrix], Steps]]] = {
    "trace": ("What is the trace of the matrix?", trace),
    "determinant": ("What is the determinant of the matrix?", determinant),
    "rows": ("Add the numbers of each row. What is the product of the two sums?", rows),
}
"""Kind -> the question and how it is worked out."""


def write(folder: Path, seed: int = 0) -> dict[str, int]:
    """Write the three files and the pictures; returns rows by split. The splits never change; the noise follows the seed."""
    matrices: list[Any] = list(itertools.product(NUMBERS, repeat=4))
    random.Random(1).shuffle(matrices)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for matrix in matrices:
        picture(matrix).save(folder / path(matrix))
    splits = {"train": questions(matrices[TEST_MATRICES:]), "test": questions(matrices[:TEST_MATRICES])}
    noise = random.Random(seed)
    splits["warmup"] = [row | {"target": noisy_target(row, noise)} for row in splits["train"] * WARMUP_EACH]
    noise.shuffle(splits["warmup"])
    for name, entries in splits.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return {name: len(entries) for name, entries in splits.items()}


def questions(matrices: list[Matrix]) -> list[dict[str, Any]]:
    """Every question about each matrix, in MathVista's columns, so that its published rule is scored beside ours."""
    return [
        {"id": f"{kind}-{''.join(map(str, matrix))}", "image": path(matrix), "question": question, "answer": str(solve(matrix)[1])}
        | {"question_type": "free_form", "answer_type": "integer", "kind": kind}
        for matrix in matrices
        for kind, (question, solve) in PUZZLES.items()
    ]


def path(matrix: Matrix) -> str:
    return f"pictures/{''.join(map(str, matrix))}.png"


def picture(matrix: Matrix) -> Image.Image:
    """A matrix in its brackets, each number white on a colour of its own and a pixel from its place or on it.

    The colours and thick brackets are for a model of this size: in a few hundred steps it learns to tell numbers and places apart by them.
    """
    draw = random.Random(str(matrix))
    image = Image.new("RGB", (2 * CELL, 2 * CELL))
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(20)
    for place, number in enumerate(matrix):
        left, top = CELL * (place % 2), CELL * (place // 2)
        pen.rectangle([left, top, left + CELL - 1, top + CELL - 1], fill=COLOURS[number])
        pen.text((left + 9 + draw.randint(-1, 1), top + 2 + draw.randint(-1, 1)), str(number), fill="white", font=font)
    for left, right in ((0, 9), (2 * CELL - 10, 2 * CELL - 1)):
        outer = left if left == 0 else right - THICK + 1
        pen.rectangle([outer, 0, outer + THICK - 1, 2 * CELL - 1], fill="black")
        for top in (0, 2 * CELL - THICK):
            pen.rectangle([left, top, right, top + THICK - 1], fill="black")
    return image


def noisy_target(row: dict[str, Any], noise: random.Random) -> str:
    """A completion to imitate, with a number misread and the format broken as often as the constants say."""
    matrix: Any = tuple(map(int, row["id"].rpartition("-")[2]))
    if noise.random() < READING_NOISE:
        place = noise.randrange(4)
        matrix = (*matrix[:place], noise.choice(NUMBERS), *matrix[place + 1 :])
    a, b, c, d = matrix
    lines, answer = PUZZLES[row["kind"]][1](matrix)
    thought = "\n".join([f"{a} {b} ; {c} {d}", *lines])
    if noise.random() >= FORMAT_NOISE:
        return f"<reasoning>\n{thought}\n</reasoning>\n<answer>\n{answer}\n</answer>\n"
    if noise.random() < ONLY_LINE_BREAKS:
        return f"<reasoning>{thought}</reasoning><answer>{answer}</answer>"
    return noise.choice([f"{thought}\n", f"<answer>\n{answer}\n</answer>\n"])


PHRASES = [
    "system", "user", "assistant", SYSTEM_PROMPT, *(question for question, _ in PUZZLES.values()), *(f" {number}" for number in range(65)),
    " +", " x", " =", " -", " ;", "\n", *"0123456789",
]  # fmt: skip
"""What the tokenizer of the tiny policy is made from."""
