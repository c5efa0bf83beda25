"""Curves and intervals as SVG: a few kilobytes each, drawn without a script, printed sharp.

A page of 20 runs of 5,000 steps is a megabyte this way; a plotting library alone would be more, and would have to start first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from qwen_vl_grpo.report.curves import Curve

WIDTH, HEIGHT, LEFT, TOP = 744, 360, 100, 16
"""The plot inside a picture of 880 x 420 units, shown at about half that many pixels."""
MARKED = 24
"""A curve of at most so many points shows each."""


def chart(curves: Sequence[tuple[int, Curve]], last: float, label: str, share: bool = False) -> Markup:
    """Curves of one metric over steps 0 to `last`, each with the number of its run; `label` is what a screen reader says.

    The axis of a `share` goes from 0 to 1 at least.
    """
    ends = [0.0, 1.0] if share else []
    lowest = min([*ends, *(min(curve.low) for _, curve in curves)])
    highest = max([*ends, *(max(curve.high) for _, curve in curves)])
    bottom, top, ticks = axis(lowest, highest)
    across = axis(0, last or 1, whole=True)[2]

    def x(step: float) -> int:
        return round(LEFT + step / (last or 1) * WIDTH)

    def y(value: float) -> int:
        return round(TOP + (top - value) / (top - bottom) * HEIGHT)

    parts = [
        Markup('<svg class="chart" viewBox="0 0 880 420" role="img" tabindex="0" aria-label="{}" data-frame="{}">').format(
            label, f"{LEFT} {WIDTH} {last or 1:g} {TOP} {HEIGHT} {bottom:g} {top:g}"
        )
    ]
    for value in ticks:
        parts.append(_line("grid", LEFT, y(value), LEFT + WIDTH, y(value)) + _text(LEFT - 10, y(value) + 8, f"{value:g}", "end"))
    parts += [_text(x(step), TOP + HEIGHT + 32, f"{step:g}", "middle") for step in across if step <= last]
    for run, curve in curves:
        line = [(x(step), y(value)) for step, value in zip(curve.steps, curve.values, strict=True)]
        drawn = Markup()
        if curve.count > len(curve.values):
            edge = [*zip(curve.steps, curve.high, strict=True), *zip(curve.steps[::-1], curve.low[::-1], strict=True)]
            drawn += Markup('<path class="band" d="{}Z"/>').format(_path([(x(step), y(value)) for step, value in edge]))
        drawn += Markup('<path class="line" d="{}"/>').format(_path(line))
        if len(line) <= MARKED:
            drawn += Markup("").join(Markup('<circle class="point" cx="{}" cy="{}" r="5"/>').format(*point) for point in line)
        parts.append(Markup('<g class="of-{}">{}</g>').format(run, drawn))
    parts.append(_line("cursor", LEFT, TOP, LEFT, TOP + HEIGHT) + Markup("</svg>"))
    return Markup("\n").join(parts)


def histogram(counts: Sequence[Sequence[int]], low: float, high: float, label: str) -> Markup:
    """Shares of values in equal bins from `low` to `high`, a bar beside the other for each row of counts, in the colours of the runs."""
    shown = [[count / max(1, sum(row)) for count in row] for row in counts]
    top = max(map(max, shown)) or 1.0
    wide, bins = WIDTH / len(counts[0]), len(counts)
    parts = [Markup('<svg class="bars" viewBox="0 0 880 260" role="img" aria-label="{}">').format(label)]
    parts += [_line("grid", LEFT, 216 - height, LEFT + WIDTH, 216 - height) for height in (0, 100, 200)]
    parts += [_text(LEFT - 10, 224 - 200 * part, f"{top * part:.0%}", "end") for part in (0, 0.5, 1)]
    for place, row in enumerate(shown):
        bars = Markup("").join(
            Markup('<rect class="point" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
                LEFT + number * wide + (place + 0.5) * wide / (bins + 1), 216 - share / top * 200, wide / (bins + 1), share / top * 200
            )
            for number, share in enumerate(row)
            if share
        )
        parts.append(Markup('<g class="of-{}">{}</g>').format(place, bars))
    ends = ((LEFT, low, "start"), (LEFT + WIDTH, high, "end"))
    return Markup("").join([*parts, *(_text(x, 250, f"{value:.4g}", anchor) for x, value, anchor in ends), Markup("</svg>")])


def shares(before: tuple[float, float, float] | None, after: tuple[float, float, float] | None) -> Markup:
    """One score on an axis from 0 to 1: hollow before, filled after, each (share, low, high) with its interval as a bar."""
    parts = [Markup('<svg class="shares" viewBox="0 0 216 26" aria-hidden="true">')]
    parts += [_line("grid", 8 + 200 * share, 1, 8 + 200 * share, 25) for share in (0, 0.25, 0.5, 0.75, 1)]
    for name, height, score in (("before", 8, before), ("after", 18, after)):
        if score is not None:
            share, low, high = (round(8 + 200 * min(1.0, max(0.0, value)), 1) for value in score)
            parts.append(_line(name, low, height, high, height))
            parts.append(Markup('<circle class="{}" cx="{}" cy="{}" r="4"/>').format(name, share, height))
    return Markup("").join([*parts, Markup("</svg>")])


def axis(low: float, high: float, whole: bool = False) -> tuple[float, float, list[float]]:
    """The ends of an axis that holds both values and ends on round numbers, and the round numbers on it.

    It starts at 0 where the values come near it, so that a small change does not look like a large one.
    """
    if low >= 0 and low < 0.5 * high:
        low = 0.0
    size = max(abs(low), abs(high), 1e-12)
    span = high - low if high - low > 1e-6 * size else max(size, 1.0)  # a constant is a line and no noise
    step = 10 ** math.floor(math.log10(span / 4))
    step *= next(times for times in (1, 2, 5, 10) if span / (step * times) <= 5)
    step = max(1.0, step) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    ticks = [float(f"{place * step:.12g}") for place in range(first, last + 1)]
    return ticks[0], ticks[-1], ticks


def _path(points: Sequence[tuple[int, int]]) -> str:
    return "M" + " ".join(f"{x},{y}" for x, y in points)


def _line(name: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<line class="{}" x1="{:g}" y1="{:g}" x2="{:g}" y2="{:g}"/>').format(name, x1, y1, x2, y2)


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{:g}" y="{:g}" text-anchor="{}">{}</text>').format(x, y, anchor, text)
