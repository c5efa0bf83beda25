"""A comparison as one HTML page that needs no network: style, curves and pictures are in it.

Jinja2 escapes every value, and a content policy lets no script run but the page's own: completions and data are strangers' text.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from qwen_vl_grpo.report import curves, drawing, wording
from qwen_vl_grpo.report.comparison import Comparison
from qwen_vl_grpo.report.tables import Score

HERE = Path(__file__).parent
COLOURS = 8
DASHES = ("none", "9 5", "2 5")
"""Runs beyond the eighth take the same colours again with another dash."""


def page(told: Comparison) -> str:
    """The whole page as text."""
    panels = [_panel(metric, title, told) for metric, title in told.panels]
    columns = list(told.costs[0])
    return filled(
        HERE,
        "page.html",
        len(told.runs),
        title=told.title,
        written=told.written,
        command=told.command,
        runs=told.runs,
        warning=told.warning,
        scores=[
            (name, [_score(score, told) for score in told.scores if score.name == name])
            for name in dict.fromkeys(score.name for score in told.scores)
        ],
        official=any(score.official != (None, None) for score in told.scores),
        panels=panels,
        joined=told.joined,
        bands=any(curve.count > len(curve.values) for run in told.runs for curve in run.history.curves.values()),
        cost_columns=columns,
        costs=[[wording.figure(cost[name]) for name in columns] for cost in told.costs],
        numeric=[place for place, name in enumerate(columns) if name not in ("measured by", "hardware")],
        items=told.items,
        unshown=told.unshown,
        since=told.since,
        pictures=told.pictures,
        extremes=told.extremes,
        edited=any(
            strip.sources or any(one.sources for drawn in strip.runs.values() for one in drawn) for strip in told.pictures + told.extremes
        ),
        differences=told.differences,
        same=told.same,
        notes=told.notes,
    )


def filled(folder: Path, name: str, lines: int, **told: Any) -> str:
    """A template of a folder with the style and script of a comparison in it, and colours for so many lines."""
    script, style = _part("page.js"), _part("page.css") + _styles(lines)
    environment = Environment(loader=FileSystemLoader([folder, HERE]), autoescape=True, undefined=StrictUndefined)
    return environment.get_template(name).render(
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}",
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        swatch=_swatch,
        **told,
    )


def _panel(metric: str, title: str, told: Comparison) -> dict[str, Any]:
    drawn = [(index, run.history.curves[metric]) for index, run in enumerate(told.runs) if metric in run.history.curves]
    rows = [_curve_row(index, told.runs[index].id, curve) for index, curve in drawn]
    said = "; ".join(f"{row['run']} from {row['first']} to {row['last']}" for row in rows)
    last = max(run.history.last_step for run in told.runs)
    picture = drawing.chart(drawn, last, f"{title}: {said}", metric in curves.SHARES)
    return {"title": title, "metric": metric, "rows": rows, "drawing": picture}


def _curve_row(index: int, run: str, curve: curves.Curve) -> dict[str, Any]:
    figures = {"first": curve.first, "last": curve.last, "lowest": min(curve.low), "highest": max(curve.high), "count": curve.count}
    return {"index": index, "run": run} | {name: wording.figure(value) for name, value in figures.items()}


def _score(score: Score, told: Comparison) -> dict[str, Any]:
    ends = (
        (score.before, *(score.before_interval or (score.before,) * 2)) if score.before is not None else None,
        (score.after, *(score.after_interval or (score.after,) * 2)) if score.after is not None else None,
    )
    return wording.row(score) | {"index": told.runs.index(score.run), "drawing": drawing.shares(*ends)}  # type: ignore[arg-type]


def _swatch(index: int) -> Markup:
    return Markup('<svg class="swatch of-{}" viewBox="0 0 28 10" aria-hidden="true"><path d="M1,5 27,5"/></svg>').format(index)


def _styles(runs: int) -> str:
    """Colour, dash and switch of each run."""
    rules = []
    for index in range(runs):
        rules.append(f".of-{index}{{--run:var(--c{index % COLOURS})}}")
        if dash := index // COLOURS % len(DASHES):
            rules.append(f".of-{index} .line,.swatch.of-{index} path{{stroke-dasharray:{DASHES[dash]}}}")
        rules.append(f"body:has(#run-{index}:not(:checked)) main .of-{index}{{display:none}}")
    return "\n".join(rules)


def _part(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
