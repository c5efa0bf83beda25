"""All that a comparison says, gathered once for the page, the Markdown and the CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qwen_vl_grpo import registry
from qwen_vl_grpo.report import answered, curves, drawn, tables
from qwen_vl_grpo.report.tables import Run, Score


@dataclass(frozen=True)
class Comparison:
    """The runs and every table of them; the number of a run is its place in `runs`."""

    runs: list[Run]
    title: str
    command: str
    written: str
    scores: list[Score]
    warning: str
    panels: list[tuple[str, str]]
    """Metric and title of each picture of curves."""
    joined: str
    costs: list[dict[str, float | str | None]]
    differences: list[tuple[str, list[str]]]
    same: int
    items: list[answered.Item]
    unshown: str
    since: list[answered.Item]
    """What was asked of them after training."""
    pictures: list[drawn.Strip]
    """What completions to held-out prompts looked like."""
    extremes: list[drawn.Strip]
    """What the best and worst completions of some steps looked like."""
    notes: dict[str, list[str]]
    """What is missing or wrong -> the runs of which it holds."""


def of(runs: list[Run], command: str) -> Comparison:
    """Make the comparison of runs that were read."""
    different, same = tables.differences(runs)
    items, unshown = answered.side_by_side(runs)
    names = [run.id for run in runs]
    title = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if len(names) <= 3 else f"Comparison of {len(names)} runs"
    notes: dict[str, list[str]] = {}
    for run in runs:
        for note in run.notes:
            notes.setdefault(note, []).append(run.id)
    return Comparison(
        runs=runs,
        title=title,
        command=command,
        written=registry.now(),
        scores=tables.scores(runs),
        warning=_warning(runs),
        panels=_panels(runs),
        joined=_joined(runs),
        costs=[tables.cost(run) for run in runs],
        differences=different,
        same=same,
        items=items,
        unshown=unshown,
        since=answered.since(runs),
        pictures=drawn.held_out(runs),
        extremes=drawn.extremes(runs),
        notes=notes,
    )


def _warning(runs: Sequence[Run]) -> str:
    """Say so where scores are not of the same rows: then a difference is no difference of policies."""
    scored: dict[str, list[str]] = {}
    for run in runs:
        if tables.scores([run]):
            scored.setdefault(tables.held_out(run), []).append(run.id)
    if len(scored) < 2:
        return ""
    return "Scores on different rows do not compare. " + "; ".join(f"{rows}: {', '.join(names)}" for rows, names in scored.items()) + "."


def _panels(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """What at least one run logged; each reward component has a picture of its own."""
    logged = dict.fromkeys(name for run in runs for name in run.history.curves)
    found: list[tuple[str, str]] = []
    for metric, title in curves.PANELS:
        if metric == "rewards/":
            parts = [name for name in logged if name.startswith(metric)]
            found += [(name, title + name.removeprefix(metric).removesuffix("/mean")) for name in parts]
        elif metric in logged:
            found.append((metric, title))
    return found


def _joined(runs: Sequence[Run]) -> str:
    drawn = [curve for run in runs for curve in run.history.curves.values()]
    most = max((curve.count for curve in drawn), default=0)
    if most <= curves.BUCKETS:
        return "Every logged value is drawn."
    return (
        f"A curve has at most {curves.BUCKETS} points: each joins up to {-(-most // curves.BUCKETS)} neighbouring values as their mean, "
        "and the shaded band goes from the lowest to the highest of them, so no extreme is lost."
    )
