"""A comparison as Markdown, for a pull request, and as CSV, one row a run, for a spreadsheet."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Sequence

from qwen_vl_grpo.report import wording
from qwen_vl_grpo.report.answered import Item
from qwen_vl_grpo.report.comparison import Comparison

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def markdown(told: Comparison) -> str:
    """The tables and answers; the curves as figures, for Markdown has no pictures of its own."""
    names = [run.id for run in told.runs]
    official = any(score.official != (None, None) for score in told.scores)
    parts = [
        f"# {_cell(told.title)}",
        f"Written {told.written} by `{told.command}`. Curves and pictures: comparison.html beside this file.",
    ]
    parts += ["## Scores before and after", told.warning and f"**Not the same rows.** {_cell(told.warning)}"]
    head = ["run", "answers", "rows", "n", "before", "after", "gain", "well-formed"] + ["published rule"] * official
    rows = [list(wording.row(score).values())[: len(head)] for score in told.scores]
    parts.append(table_of(head, rows) if rows else "None of these runs has scores in its card.")
    if rows:
        parts.append(
            "Well-formed and right, as a share, with 95 % intervals: Wilson over rows, and Newcombe for the gain. Where words alone tell "
            "nothing right, the mean of the reward."
        )
    parts += ["## Curves", told.joined]
    head = ["metric", "run", "first", "last", "lowest", "highest", "values"]
    rows = []
    for metric, _ in told.panels:
        for run in told.runs:
            if curve := run.history.curves.get(metric):
                figures = (curve.first, curve.last, min(curve.low), max(curve.high), curve.count)
                rows.append([metric, run.id, *map(wording.figure, figures)])
    parts.append(table_of(head, rows) if rows else "None of these runs has metrics beside its card.")
    columns = list(told.costs[0])
    rows = [[name, *(wording.figure(cost[column]) for column in columns)] for name, cost in zip(names, told.costs, strict=True)]
    parts += ["## Cost", table_of(["run", *columns], rows)]
    parts += ["## Answers to the same questions", _cell(told.unshown)]
    parts += [part for item in told.items for part in _answers(item, names)]
    if told.since:
        parts += ["## Answers to files of questions since", *(part for item in told.since for part in _answers(item, names))]
    parts += ["## What differs in configuration and circumstances", f"{told.same} keys are the same in all of them."]
    if told.differences:
        parts.append(table_of(["key", *names], [[key, *values] for key, values in told.differences]))
    notes = [f"- {', '.join(map(_cell, noted))}: {_cell(note)}" for note, noted in told.notes.items()]
    parts += ["## Notes", "\n".join(notes) or "Nothing is missing, and no alarm rang."]
    return "\n\n".join(part for part in parts if part) + "\n"


def _answers(item: Item, names: Sequence[str]) -> tuple[str, str]:
    asked = f"**{_cell(item.id)}** {_cell(item.question)}" + f" Gold: {_cell(item.gold)}" * bool(item.gold)
    rows = [
        [names[index], when, answer.verdict, answer.answer[:200]] for index, given in item.answers.items() for when, answer in given.items()
    ]
    return asked, table_of(["run", "when", "verdict", "answer"], rows)


def table(told: Comparison) -> str:
    """One row a run: scores with the ends of their intervals, cost, the ends of the curves, and what differs in the configs."""
    rows: list[dict[str, object]] = []
    for index, run in enumerate(told.runs):
        row: dict[str, object] = {"run_id": run.id, "state": run.card.state, "task": run.card.task, "base_model": run.card.base_model}
        row |= {"created": run.card.created, "finished": run.card.finished}
        for score in told.scores:
            if score.run is run:
                name = score.name
                row |= {f"{name}: rows": score.rows, f"{name}: n": score.n, f"{name}: before": score.before, f"{name}: after": score.after}
                for when, ends in (("before", score.before_interval), ("after", score.after_interval)):
                    row |= {f"{name}: {when}, {side}": end for side, end in zip(("low", "high"), ends or (None, None), strict=True)}
        row |= told.costs[index]
        for metric, _ in told.panels:
            if curve := run.history.curves.get(metric):
                row |= {f"{metric}: first": curve.first, f"{metric}: last": curve.last}
        row |= {f"config: {key}": values[index] for key, values in told.differences}
        rows.append(row)
    file = io.StringIO()
    written = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
    written.writeheader()
    written.writerows({key: _plain(value) for key, value in row.items()} for row in rows)
    return file.getvalue()


def _plain(value: object) -> object:
    """Text that a spreadsheet would run as a formula gets an apostrophe in front; a number stays one."""
    if not isinstance(value, str) or not value.startswith(FORMULA) or re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", value):
        return value
    return "'" + value


def table_of(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: str) -> str:
    """Strangers' text as text in Markdown: no tag, no link, no picture, no second column."""
    escaped = re.sub(r"([\\`*_{}\[\]()#+!|~$])", r"\\\1", html.escape(value, quote=False))
    return "<br>".join(line.strip() for line in escaped.splitlines())
