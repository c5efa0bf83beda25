"""Which frames of a clip the policy sees: how many, and where they lie.

A clip is parted into as many stretches of equal length as frames are wanted, and each gives its middle frame, or a random one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.footage import Footage
from qwen_vl_grpo.video_sections import VideoSection


def choose(
    footage: Footage,
    section: VideoSection,
    *,
    frame_counts: Sequence[int] | None = None,
    min_frames: int | None = None,
    max_frames: int | None = None,
    dynamic: bool = False,
    jitter: random.Random | None = None,
    patch: int | None = None,
) -> tuple[int, ...]:
    """Return the chosen frames' places, in order.

    The number of frames is the sum of `frame_counts`, else `video.frames` (unless `dynamic`), else `video.fps` frames a second, an even
    number; then brought inside the bounds, a record's own (`min_frames`, `max_frames`) before the config's, and, where `patch` (pixels of a
    merged patch) is given, inside `video.max_tokens`. A clip with fewer frames gives all it has. `frame_counts` are the lengths of
    consecutive segments that make up the clip: each gives at least one frame and, as far as its length allows, the same number as the
    others, or with `dynamic` a share by its length. Raises DataError for bounds or counts that cannot be met.
    """
    where = f"video {footage.path}"
    low, high = _bounds(section, min_frames, max_frames, where)
    counts = _checked(frame_counts, footage, high, where)
    if counts:
        wanted = sum(counts)
    elif section.frames is not None and not dynamic:
        wanted = section.frames
    else:
        wanted = int(footage.seconds * section.fps + 1e-6)
        wanted -= wanted % 2  # the processors read frames in pairs: the odd one costs a pair
    wanted = min(max(wanted, low), high)
    if section.max_tokens is not None and patch is not None:
        width, height = fitted(footage.width, footage.height, section, patch, where)
        pairs = section.max_tokens * patch * patch // (width * height)
        wanted = min(wanted, max(2 * pairs, low, len(counts)))
    wanted = min(wanted, footage.frames)
    lengths = counts or [footage.frames]
    edges = [sum(lengths[:place]) * footage.frames // sum(lengths) for place in range(len(lengths) + 1)]
    segments = list(pairwise(edges))
    given = shares([end - start for start, end in segments], wanted, by_length=dynamic)
    return tuple(place for (start, end), count in zip(segments, given, strict=True) for place in _spread(start, end, count, jitter))


def size(footage: Footage, frames: int, section: VideoSection, patch: int) -> tuple[int, int]:
    """Width and height of each of so many frames, multiples of `patch` inside the pixel bounds and, together, inside `video.max_tokens`.

    Two frames make one temporal patch of width x height / patch² tokens. Raises DataError if no size will do.
    """
    most = None if section.max_tokens is None else section.max_tokens // math.ceil(frames / 2) * patch * patch
    return fitted(footage.width, footage.height, section, patch, f"video {footage.path}", most)


def fitted(width: int, height: int, section: VideoSection, patch: int, where: str, most: int | None = None) -> tuple[int, int]:
    """The size nearest to this one that is a multiple of `patch` inside the bounds; a size that is so already stays."""
    most = section.max_pixels if most is None else min(section.max_pixels, most)
    if max(width, height) > 200 * min(width, height):
        raise DataError(f"{where}: {width}x{height} is more than 200 times longer than wide; crop it")
    wide, high = (max(patch, round(side / patch) * patch) for side in (width, height))
    if wide * high > most:
        factor = math.sqrt(most / (width * height))
        wide, high = (max(patch, math.floor(side * factor / patch) * patch) for side in (width, height))
        if wide * high > most:  # a sliver cannot be thinner than a patch
            long = most // patch // patch * patch
            wide, high = (long, patch) if width > height else (patch, long)
    elif wide * high < section.min_pixels:
        factor = math.sqrt(section.min_pixels / (width * height))
        wide, high = (math.ceil(side * factor / patch) * patch for side in (width, height))
    if not wide or not high or not section.min_pixels <= wide * high <= most:
        raise DataError(
            f"{where}: no multiple of {patch} pixels near {width}x{height} lies between video.min_pixels {section.min_pixels} and the "
            f"{most} that video.max_pixels and video.max_tokens leave a frame; part them, or lower video.max_frames"
        )
    return wide, high


def shares(lengths: Sequence[int], total: int, by_length: bool) -> list[int]:
    """Share `total` among segments, at least one and at most its length each; the largest remainder gets what is left over."""
    goals = [Fraction(total * length, sum(lengths)) if by_length else Fraction(total, len(lengths)) for length in lengths]
    given = [min(max(1, int(goal)), length) for goal, length in zip(goals, lengths, strict=True)]
    while (missing := total - sum(given)) != 0:
        step = 1 if missing > 0 else -1
        open_to = [place for place, count in enumerate(given) if (count < lengths[place] if step > 0 else count > 1)]
        given[max(open_to, key=lambda place: (step * (goals[place] - given[place]), -place))] += step
    return given


def _bounds(section: VideoSection, least: int | None, most: int | None, where: str) -> tuple[int, int]:
    """A record's bound moves the config's other one out of its way; two that a record names itself must agree."""
    if least is not None and most is not None and least > most:
        raise DataError(f"{where}: min_frames {least} is above max_frames {most}; swap or change them")
    low = least if least is not None else min(section.min_frames, most or section.min_frames)
    high = most if most is not None else max(section.max_frames, least or section.max_frames)
    if low < 1 or high < 1:
        raise DataError(f"{where}: min_frames and max_frames must be 1 or more, and are {low} and {high}")
    return low, high


def _checked(counts: Sequence[int] | None, footage: Footage, high: int, where: str) -> list[int]:
    if counts is None:
        return []
    counts = list(counts)
    if not counts or min(counts) < 1:
        raise DataError(f"{where}: frame_cnts {counts} must name the length of each segment, 1 frame or more")
    if sum(counts) > footage.frames:
        raise DataError(f"{where}: frame_cnts {counts} are {sum(counts)} frames and the clip has {footage.frames}; correct them")
    if len(counts) > high:
        raise DataError(f"{where}: {len(counts)} segments of frame_cnts need a frame each and max_frames is {high}; raise it")
    return counts


def _spread(start: int, end: int, count: int, jitter: random.Random | None) -> Iterator[int]:
    """One place of each of `count` equal stretches from start to end; count is end - start at most."""
    for place in range(count):
        low, high = (start + (end - start) * edge // count for edge in (place, place + 1))
        yield jitter.randrange(low, high) if jitter else start + (end - start) * (2 * place + 1) // (2 * count)
