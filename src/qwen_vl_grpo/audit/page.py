"""An audit as one HTML page, in the style of a comparison (report/page.py) and as safe: what a model says is text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qwen_vl_grpo.audit.figures import THIRDS, Distribution, Habit, Together
from qwen_vl_grpo.audit.findings import Audit
from qwen_vl_grpo.audit.suspicion import RULES, Suspect
from qwen_vl_grpo.report import drawing, wording
from qwen_vl_grpo.report import page as report_page
from qwen_vl_grpo.report.answered import LONGEST, pictures_of

HERE = Path(__file__).parent


def page(told: Audit) -> str:
    """The whole page as text."""
    return report_page.filled(
        HERE,
        "page.html",
        len(THIRDS),
        title=f"Audit of {told.card.run_id}",
        told=told,
        thirds=THIRDS,
        distributions=[_distribution(one, told) for one in told.distributions],
        lengths=[_together(one) for one in told.lengths],
        repeats=[(name, wording.figure(value)) for name, value in told.repeats.figures],
        others=[_together(one) for one in told.others],
        tables=any(one.table for one in told.others),
        habits=[_habit(one) for one in told.habits],
        suspects=[_suspect(one, told) for one in told.suspects],
        notes=[*told.kept.notes, *told.history.notes],
        alarms=told.card.alarms,
    )


def _distribution(one: Distribution, told: Audit) -> dict[str, Any]:
    metric = "reward" if one.name == "reward" else f"rewards/{one.name}/mean"
    curve = told.history.curves.get(metric)
    rows = [[wording.figure(count), *(wording.share(value if count else None) for value in values)] for count, *values in one.rows]
    return {
        "name": one.name,
        "metric": metric,
        "curve": curve and drawing.chart([(0, curve)], told.history.last_step, f"{metric} from {curve.first:g} to {curve.last:g}"),
        "bars": drawing.histogram(one.counts, *one.edges, f"Scores of {one.name} in each third of the run; the figures are below"),
        "rows": rows,
        "ends": [wording.figure(end) for end in one.edges],
    }


def _together(one: Together) -> dict[str, Any]:
    shares = [wording.NOTHING if value is None else f"{value:+.2f}" for value in (one.rho, one.inside)]
    told = {"ours": one.ours, "other": one.other, "n": one.n, "grouped": one.grouped, "table": one.table}
    return told | {"rho": shares[0], "inside": shares[1]}


def _habit(one: Habit) -> dict[str, Any]:
    means = [wording.share(value) for value in (one.mean, one.others)]
    return {"name": one.name, "n": one.n, "thirds": [f"{share:.1%}" for share in one.thirds], "mean": means[0], "others": means[1]}


def _suspect(suspect: Suspect, told: Audit) -> dict[str, Any]:
    one, over = suspect.one, len(suspect.one.completion) - LONGEST
    pictures, missing = pictures_of(told.folder, [*one.sources, *([one.picture] if one.picture else [])])
    scores = [f"{name} {value:.3g}" for name, value in {**one.scores, **one.details}.items()]
    return {
        "moment": one.moment + f", kept {suspect.times} times" * (suspect.times > 1),
        "prompt": one.prompt,
        "completion": one.completion[:LONGEST] + f"\n… and {over:,} characters more" * (over > 0),
        "pictures": pictures,
        "missing": missing,
        "total": wording.figure(one.total),
        "scores": ", ".join(scores),
        "reason": one.reason[:LONGEST],
        "why": sorted(suspect.why.items(), key=lambda pair: -RULES[pair[0]][0]),
    }
