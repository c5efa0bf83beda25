"""What the runs' completions looked like: the same held-out prompts over time, run by run, and the best and worst of some steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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


@dataclass
class Strip:
    """Completions in a row, by number of the run."""

    title: str
    runs: dict[int, list[Drawn]] = field(default_factory=dict)


def held_out(runs: Sequence[Run]) -> list[Strip]:
    """A strip for each of the first held-out prompts."""
    strips: dict[str, Strip] = {}
    for index, run in enumerate(runs):
        lines = [line for line in run.drawn if line["kind"] == "held-out"]
        for original in dict.fromkeys(line["original"] for line in lines):
            if original in strips or len(strips) < PROMPTS:
                found = _spread([line for line in lines if line["original"] == original], MOMENTS)
                strips.setdefault(original, Strip(original)).runs[index] = [_drawn(run, line) for line in found]
    return list(strips.values())


def extremes(runs: Sequence[Run]) -> list[Strip]:
    """The best and the worst rewarded completion of some steps."""
    strips = []
    for kind in ("best", "worst"):
        strip = Strip(f"The {kind} of a step")
        for index, run in enumerate(runs):
            if lines := _spread([line for line in run.drawn if line["kind"] == kind], STEPS):
                strip.runs[index] = [_drawn(run, line) for line in lines]
        strips += [strip] * bool(strip.runs)
    return strips


def _spread(lines: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    if len(lines) <= most:
        return list(lines)
    return [lines[round(place * (len(lines) - 1) / (most - 1))] for place in range(most)]


def _drawn(run: Run, line: dict[str, Any]) -> Drawn:
    shown, _ = pictures_of(run.folder, [line["picture"]] if line["picture"] else [])
    return Drawn(line["moment"], line["original"], line["completion"][:LONGEST], next(iter(shown), None), rendered_gallery.verdict(line))
