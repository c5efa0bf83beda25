"""Write clips of a square that makes two motions, with the question which of four motions it makes first.

    train.jsonl        rows to reinforce on
    validation.jsonl   rows to choose settings on
    test.jsonl         rows for the numbers that are shown: every clip and, as a row of its own, the clip played backwards
    warmup.jsonl       the training rows, each twice, with a `target` to imitate, noisy on purpose

Only time tells the answer. The square jumps to a place of its own between the motions, of which one is along the rows and the other along
the columns, so that the frames without their order show one line of each kind: each of the four motions may come first, with the same
chance. Played backwards, a clip begins with its second motion turned round, which is along the other axis and so another answer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy

from demo import clips

MOTIONS = ("right", "left", "up", "down")
QUESTION = "Which motion is first? " + " ".join(f"({place}) {motion}" for place, motion in enumerate(MOTIONS, 1))
SYSTEM_PROMPT = "Think, then answer."
SIZE, SHAPE, STEP, EACH = 56, 20, 8, 4
"""Pixels of a frame's side, of the square's and of its way from one frame to the next; frames of a motion."""
FPS = 4.0
LABEL_NOISE = 0.5
"""Share of the warm-up's targets that name a motion drawn at random."""
ROWS = {"train": 800, "validation": 100, "test": 200}
"""Rows of each split, half as many clips with the same ones played backwards."""


def write(folder: Path, seed: int = 0) -> dict[str, int]:
    """Write the four files and their clips; returns rows by split. Held-out rows are the same for every seed."""
    splits = {}
    for split, count in ROWS.items():
        draw = random.Random(f"{split} {seed if split == 'train' else 0}")
        shown = [clip for _ in range(count // 2) for clip in pair(draw)]
        splits[split] = [row(folder, f"{split}-{place:04}", motions, frames) for place, (motions, frames) in enumerate(shown)]
    noise = random.Random(seed)
    splits["warmup"] = [entry | {"target": noisy_target(entry["motions"].split()[0], noise)} for entry in splits["train"] * 2]
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in rows), encoding="utf-8")
    return {split: len(rows) for split, rows in splits.items()}


def pair(draw: random.Random) -> list[tuple[tuple[str, str], list[numpy.ndarray]]]:
    """Two motions and their frames, and the same played backwards."""
    axes = [("right", "left"), ("up", "down")]
    draw.shuffle(axes)
    motions = (draw.choice(axes[0]), draw.choice(axes[1]))
    frames = [frame for motion in motions for frame in moving(motion, draw)]
    return [(motions, frames), ((opposite(motions[1]), opposite(motions[0])), frames[::-1])]


def moving(motion: str, draw: random.Random) -> Iterable[numpy.ndarray]:
    """A bright square in one motion, from a place drawn so that it never leaves the frame: the places are those of the way back, too."""
    way = STEP * (EACH - 1)
    down, right = clips.STEPS[motion]
    row, column = (draw.randint(0, SIZE - SHAPE - way * abs(by)) + way * (by < 0) for by in (down, right))
    for moment in range(EACH):
        frame = numpy.zeros((SIZE, SIZE, 3), numpy.uint8)
        top, start = row + STEP * moment * down, column + STEP * moment * right
        frame[top : top + SHAPE, start : start + SHAPE] = 255
        yield frame


def opposite(motion: str) -> str:
    return MOTIONS[MOTIONS.index(motion) ^ 1]


def row(folder: Path, name: str, motions: Sequence[str], frames: Sequence[numpy.ndarray]) -> dict[str, Any]:
    path = f"clips/{name}.mp4"
    clips.write(folder / path, frames, FPS)
    return {"id": name, "question": QUESTION, "answer": answer(motions[0]), "video": path, "motions": " ".join(motions)}


def answer(motion: str) -> str:
    return f"({MOTIONS.index(motion) + 1})"


def target(motion: str) -> str:
    return f"<think>{motion}</think> <answer>{answer(motion)}</answer>"


def noisy_target(motion: str, noise: random.Random) -> str:
    """A completion to imitate, of any motion as often as LABEL_NOISE says."""
    return target(noise.choice(MOTIONS) if noise.random() < LABEL_NOISE else motion)


PHRASES = ["system", "user", "assistant", SYSTEM_PROMPT, QUESTION, *map(target, MOTIONS)]
"""What the tokenizer of the tiny policy is made from."""
