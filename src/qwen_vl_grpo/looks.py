"""What a picture or clip looks like, in 256 bits that stay nearly the same when it is scaled or compressed again.

The difference hash of N. Krawetz ("Kind of Like That", hackerfactor.com, 2013) on a grid of 16 by 16, with a margin that noise in a flat
area does not reach; of a clip, on 8 by 8 of four of its frames.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from PIL import Image

from qwen_vl_grpo import dataset, index, processes
from qwen_vl_grpo.interfaces import Sample

MARGIN = 2
"""Grey levels by which one place must be brighter than its neighbour."""
ALIKE = 8
"""Bits in which one picture may differ from itself, scaled or compressed: at most 8 for 95 of 100 of made-up charts, pages of numbers and
scans at JPEG quality 60 or three quarters of the size, and 10 or more for 99 of 100 pairs of different ones."""
PLAIN = 2 * ALIKE
"""With fewer bits than this a picture looks like any other plain one, and nothing is said of it."""
AT_ONCE = 2_000_000
"""Pairs that are compared in one piece of memory (64 MB)."""

Looks = dict[str, str]
"""Name of what is shown -> its look as hexadecimal digits."""


def of(rows: Any, folder: Path, workers: int | None) -> Looks:
    """The looks of all that prepared rows show; kept in `folder`, their entry of the cache, and taken from there the next time."""
    kept = folder / f"looks-{MARGIN}.json"
    if kept.is_file():
        return json.loads(kept.read_text(encoding="utf-8"))
    samples = dataset.to_samples(rows)
    made = processes.each(lambda number: _looks(samples[number]), len(samples), workers)
    looks = {name: look for row in processes.progress(made, len(samples), "looking") for name, look in row}
    index.replace(kept, json.dumps(looks))
    return looks


def names(picture_ids: Sequence[str], looks: Looks) -> Sequence[str]:
    """The names of what a prepared row shows: its pictures and clips, or all of it where clips were written as pictures."""
    return picture_ids if all(name in looks for name in picture_ids) else [_joined(picture_ids)]


def _joined(picture_ids: Sequence[str]) -> str:
    return "+".join(picture_ids)


def _looks(sample: Sample) -> list[tuple[str, str]]:
    own, pictures = sample.columns["picture_ids"], list(sample.images)
    if len(own) != len(pictures) + len(sample.videos):
        return [(_joined(own), of_frames(pictures))]
    frames = [[Image.fromarray(frame) for frame in clip.frames] for clip in sample.videos]
    return list(zip(own, [*map(of_picture, pictures), *map(of_frames, frames)], strict=True))


def of_picture(picture: Image.Image, size: int = 16) -> str:
    """Whether each place of a grid is brighter than its right neighbour, as bits."""
    grey = numpy.asarray(picture.convert("L").resize((size + 1, size), Image.Resampling.BOX), dtype=int)
    return numpy.packbits(grey[:, :-1] > grey[:, 1:] + MARGIN).tobytes().hex()


def of_frames(frames: Sequence[Image.Image]) -> str:
    places = numpy.linspace(0, len(frames) - 1, 4).round().astype(int)
    return "".join(of_picture(frames[place], 8) for place in places)


def alike(ours: Looks, theirs: Looks) -> list[tuple[str, str]]:
    """The pairs of names of the two that look alike and are not the same, the most alike first."""
    (one, first), (other, second) = _telling(ours), _telling(theirs)
    if not one or not other:
        return []
    pairs: list[tuple[int, str, str]] = []
    step = max(1, AT_ONCE // len(other))
    for start in range(0, len(one), step):
        apart = numpy.bitwise_count(first[start : start + step, None] ^ second[None]).sum(2)
        pairs += [
            (int(apart[row, column]), one[start + row], other[column])
            for row, column in zip(*numpy.nonzero(apart <= ALIKE), strict=True)
            if one[start + row] != other[column]
        ]
    return [(name, near) for _, name, near in sorted(pairs)]


def _telling(looks: Looks) -> tuple[list[str], numpy.ndarray]:
    """Names, and looks as rows of four numbers of 64 bits, of what is not plain."""
    kept = [name for name, look in looks.items() if int(look, 16).bit_count() >= PLAIN]
    return kept, numpy.frombuffer(bytes.fromhex("".join(looks[name] for name in kept)), dtype=numpy.uint64).reshape(-1, 4)
