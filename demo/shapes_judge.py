"""The pixels of a shape, both ways: what a shape looks like, and an exact judge that reads colour and shape off a picture.

No network takes part in the judgement: the colour is the one that most of the ink is nearest to, and the shape the one that covers the
ink's own bounding box as the ink does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from PIL import Image

from qwen_vl_grpo.errors import JudgeError
from qwen_vl_grpo.interfaces import Judgement, RenderRequest

SIDE = 16
"""Pixels of a picture's side."""
PALETTE = {"red": (220, 30, 30), "green": (30, 160, 50), "blue": (40, 70, 220), "yellow": (245, 205, 20)}
LEAST_INK, MOST_INK, LEAST_OF_ONE_COLOUR, LEAST_OVERLAP = 16, 180, 0.8, 0.75
"""Pixels of ink that a drawing has, of 256; the share of them that its colour has; intersection over union of ink and shape."""


class PixelJudge:
    """Scores half a point for the colour and half for the shape that `RenderRequest.rubric` names, such as "green triangle"."""

    identity = f"pixels of {SIDE}x{SIDE}: colour of {LEAST_OF_ONE_COLOUR:.0%}, overlap of {LEAST_OVERLAP}, halves"
    batch_size = 64
    concurrency = 1

    def judge(self, pictures: Sequence[tuple[RenderRequest, Image.Image]]) -> list[Judgement | JudgeError]:
        """Score each picture by what `read` sees on it; a rubric that names no colour and shape is a JudgeError in its place."""
        return [self._scored(request, image) for request, image in pictures]

    def _scored(self, request: RenderRequest, image: Image.Image) -> Judgement | JudgeError:
        colour, _, shape = request.rubric.partition(" ")
        if colour not in PALETTE or shape not in OUTLINES:
            return JudgeError(f"the rubric {request.rubric!r} of {request.original!r} names no colour and shape, as in 'green triangle'")
        seen = read(image)
        right = {"colour": float(seen[0] == colour), "shape": float(seen[1] == shape)}
        return Judgement((right["colour"] + right["shape"]) / 2, right, f"it shows {' '.join(filter(None, seen)) or 'nothing'}")


def build(section: Any) -> PixelJudge:
    """The judge as a run's config names it."""
    return PixelJudge()


def read(image: Image.Image) -> tuple[str, str]:
    """Colour and shape of what is drawn on white paper, each "" where no rule is met.

    A pixel that is half paint and half paper takes away half of the light that the paint takes away: it has the paint's colour, too.
    """
    dark = 255 - numpy.asarray(image.convert("RGB"), numpy.float64)
    paints = 255 - numpy.array(list(PALETTE.values()), numpy.float64)
    cover = dark @ (paints / (paints**2).sum(1, keepdims=True)).T
    nearest = (dark @ (paints / numpy.linalg.norm(paints, axis=1, keepdims=True)).T).argmax(-1)
    ink = numpy.take_along_axis(cover, nearest[:, :, None], -1)[:, :, 0] >= 0.5
    if not LEAST_INK <= ink.sum() <= MOST_INK:
        return "", ""
    counts = numpy.bincount(nearest[ink], minlength=len(paints))
    colour = list(PALETTE)[counts.argmax()] if counts.max() >= LEAST_OF_ONE_COLOUR * ink.sum() else ""
    rows, columns = numpy.flatnonzero(ink.any(1)), numpy.flatnonzero(ink.any(0))
    box = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    overlaps = {shape: overlap(box, outline(shape, *box.shape)) for shape in OUTLINES}
    shape = max(overlaps, key=overlaps.__getitem__)
    return colour, shape if overlaps[shape] >= LEAST_OVERLAP else ""


def overlap(one: numpy.ndarray, other: numpy.ndarray) -> float:
    """Intersection over union of two masks."""
    return float((one & other).sum() / (one | other).sum())


OUTLINES = {
    "circle": lambda down, across: down**2 + across**2 <= 1,
    "square": lambda down, across: (abs(down) <= 1) & (abs(across) <= 1),
    "triangle": lambda down, across: abs(across) <= (down + 1) / 2,
}
"""Shape -> whether a point is inside of it, each coordinate from -1 to 1: top to bottom, left to right."""


def outline(shape: str, height: int, width: int) -> numpy.ndarray:
    """The mask of a shape that fills so many pixels: bool, (height, width), true where the middle of a pixel is inside."""
    down, across = (2 * (numpy.arange(length) + 0.5) / length - 1 for length in (height, width))
    return OUTLINES[shape](down[:, None], across[None, :])


FINE = 4
"""A pixel is painted as the mean of so many times so many."""


def paint(drawing: str, side: float, left: float, top: float) -> Image.Image:
    """A drawing such as "green triangle" of `side` pixels with its corner at (left, top), smooth at its edges."""
    colour, shape = drawing.split()
    length = round(side * FINE)
    mask = numpy.zeros((SIDE * FINE, SIDE * FINE))
    y, x = round(top * FINE), round(left * FINE)
    mask[y : y + length, x : x + length] = outline(shape, length, length)
    cover = mask.reshape(SIDE, FINE, SIDE, FINE).mean((1, 3))[:, :, None]
    values = cover * numpy.array(PALETTE[colour]) + (1 - cover) * 255
    return Image.fromarray(values.round().astype(numpy.uint8))


def painted(drawing: str, draw: numpy.random.Generator) -> Image.Image:
    """A drawing at a random place, as the DiT learns it."""
    side = 12
    left, top = draw.integers(1, SIDE - side, 2)
    return paint(drawing, side, left, top)
