"""What the runs' completions looked like: the same held-out prompts over time, run by run, and the best and worst of some steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qwen_vl_grpo import rendered_gallery
from qwen_vl_grpo.report.answered import LONGEST, pictures_of
from qwen_vl_grpo.report.tables import Run

PROMPTS = 8
"""Held-out prompts on a page at most."""
MOMENTS = 4
"""Evaluations of a prompt and run on a page at most: the first, the last, and others evenly between."""
STEPS = 6
"""Steps of a run whose best and worst are on a page at most, likewise."""


@dataclass(frozen=True)
class Drawn:
    """One completion: when, what it says, its picture as a data URI (None where none was drawn), and the judge's verdict."""

    moment: str
    original: str
    completion: str
    picture: str | None
    verdict: str
    sources: list[str | None] = field(default_factory=list)
    """The pictures that it begins from, where the strip does not show them; None for one that is not there any more."""


@dataclass
class Strip:
    """Completions in a row, by number of the run, and the pictures that all of them begin from."""

    title: str
    sources: list[str | None] = field(default_factory=list)
    runs: dict[int, list[Drawn]] = field(default_factory=dict)


def held_out(runs: Sequence[Run]) -> list[Strip]:
    """A strip for each of the first held-out prompts; one prompt for two pictures is two."""
    strips: dict[tuple[str, ...], Strip] = {}
    for index, run in enumerate(runs):
        asked: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for line in run.drawn:
            if line["kind"] == "held-out":
                asked.setdefault((line["original"], *line["sources"]), []).append(line)
        for key, lines in asked.items():
            if key in strips or len(strips) < PROMPTS:
                strip = strips.setdefault(key, Strip(key[0]))
                if not any(strip.sources):
                    strip.sources = _sources(run, key[1:])
                strip.runs[index] = [_drawn(run, line) for line in _spread(lines, MOMENTS)]
    return list(strips.values())


def extremes(runs: Sequence[Run]) -> list[Strip]:
    """The best and the worst rewarded completion of some steps."""
    strips = []
    for kind in ("best", "worst"):
        strip = Strip(f"The {kind} of a step")
        for index, run in enumerate(runs):
            if lines := _spread([line for line in run.drawn if line["kind"] == kind], STEPS):
                strip.runs[index] = [replace(_drawn(run, line), sources=_sources(run, line["sources"])) for line in lines]
        strips += [strip] * bool(strip.runs)
    return strips


def _spread(lines: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    if len(lines) <= most:
        return list(lines)
    return [lines[round(place * (len(lines) - 1) / (most - 1))] for place in range(most)]


def _drawn(run: Run, line: dict[str, Any]) -> Drawn:
    picture = _picture(run, line["picture"])
    return Drawn(line["moment"], line["original"], line["completion"][:LONGEST], picture, rendered_gallery.verdict(line))


def _sources(run: Run, names: Sequence[str]) -> list[str | None]:
    return [_picture(run, name) for name in names]


def _picture(run: Run, name: str | None) -> str | None:
    return next(iter(pictures_of(run.folder, [name])[0]), None)
