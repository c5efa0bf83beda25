"""Stretches of time in an answer, as in `2.5 to 4 and 7 to 8.25` seconds, and how much of two sets of them is the same."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

Segment = tuple[float, float]
"""Start and end, in seconds."""

LONGEST = 2000
"""Characters of an answer; what is longer is none, and not worth the time."""
_SECONDS = r"([0-9]{1,6}(?:\.[0-9]{0,6})?)\s*(?:s|sec|seconds)?"
_SEGMENT = re.compile(rf"{_SECONDS}\s*(?:to|-|\u2013)\s*{_SECONDS}", re.IGNORECASE)
_BETWEEN = re.compile(r"\s*(?:[,;]\s*(?:and\s)?|\sand\s|\n)\s*", re.IGNORECASE)


def read(text: str) -> list[Segment] | None:
    """The segments of an answer; None for a text that is not a list of them and nothing else, or has one that ends before it starts.

    A segment of no length is read, and counts for nothing in `overlap`.
    """
    if len(text) > LONGEST:
        return None
    matches = [_SEGMENT.fullmatch(part) for part in _BETWEEN.split(text.strip().rstrip("."))]
    if not all(matches):
        return None
    segments = [(float(match[1]), float(match[2])) for match in matches if match]
    return segments if all(start <= end for start, end in segments) else None


def merged(segments: Iterable[Sequence[float]]) -> list[Segment]:
    """Segments in order, those that overlap or touch joined, those of no length left out; a value that is no number raises ValueError."""
    joined: list[Segment] = []
    for start, end in sorted((float(start), float(end)) for start, end in segments):
        if not (math.isfinite(start) and math.isfinite(end) and start <= end):
            raise ValueError(f"{start} to {end} is no stretch of time")
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif start < end:
            joined.append((start, end))
    return joined


def overlap(one: Iterable[Sequence[float]], other: Iterable[Sequence[float]]) -> float:
    """Seconds that lie in both over seconds that lie in either, each second once; 0 where neither has any length.

    Nothing is cut to the clip: a segment beyond its end pays for its whole length, so that "0 to 9999" is no safe answer.
    """
    first, second = merged(one), merged(other)
    both = sum(max(0.0, min(ends) - max(starts)) for starts, ends in (zip(a, b, strict=True) for a in first for b in second))
    either = sum(end - start for start, end in (*first, *second)) - both
    return both / either if either else 0.0
