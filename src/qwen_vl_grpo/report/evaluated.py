"""The result of an evaluation as Markdown: what was asked, scores, what changed against another policy, and categories.

Every form is made of the result's JSON alone, so that one from another machine reads the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qwen_vl_grpo.report import wording
from qwen_vl_grpo.report.written import table_of

Result = Mapping[str, Any]

NAMES = {
    "correct": "well-formed and right",
    "any_correct": "one of the samples right",
    "format": "well-formed",
    "official": "MathVista's published rule",
    "quality": "quality, points",
    "told/official": "Complex-Edit overall, 0 to 10",
    "told/alignment": "instruction following, 0 to 10",
    "told/identity": "identity preservation, 0 to 10",
    "told/quality": "perceptual quality, 0 to 10",
    "told/fidelity": "MMMG knowledge fidelity",
    "told/mmmg": "MMMG score",
    "told/readability": "MMMG readability",
}
"""Measure -> what it is called; a judge's other raw values, and rewards, are called as they are."""
OF_CATEGORIES = ("correct", "format", "official", "quality", "told/official", "told/fidelity", "told/mmmg")


def markdown(result: Result, base: Result | None = None, changes: Mapping[str, Any] | None = None) -> str:
    """One result, or the second against a first and the changes between them."""
    names = [who(one) for one in (base, result) if one]
    parts = [f"# {' against '.join(reversed(names))}", *about(result, base)]
    for kind, scores in result["scores"].items():
        parts += [f"## {kind.capitalize()} answers", _scores(kind, scores, base, changes, names)]
    if changes:
        tests = sorted({change["test"] for kind in changes.values() for change in kind.values()})
        parts.append(
            f"Change: tuned less base over the same items, with p two-sided ({'; '.join(tests)}), not corrected for many measures."
        )
    parts.append("Intervals: 95 %, bootstrap over items, those of one picture drawn together; several samples of an item are their mean.")
    for category, values in result["categories"].items():
        parts += [f"## Greedy answers by {category}", _categories(values, (base or {}).get("categories", {}).get(category, {}), names)]
    return "\n\n".join(parts) + "\n"


def about(result: Result, base: Result | None = None) -> list[str]:
    """What was asked of whom, and what the rows have to do with training."""
    pinned, how = result["protocol"], result["protocol"]["generation"]
    rows = pinned["rows"]
    held = f", held out: {rows['held_out']}" if rows["held_out"] else ", all of it"
    said = [
        f"{rows['count']} rows of {rows['dataset']}, split {rows['split']}{held}. Task {pinned['task']}. Greedy, and {how['samples']} "
        f"sampled answers each at temperature {how['temperature']:g}, top_p {how['top_p']:g}; at most {how['max_new_tokens']} tokens; seed "
        f"{how['seed']}; {how['backend']}. Protocol `{result['digest'][:12]}`.",
        *(f"{who(one)}: {memory(one)}" for one in (base, result) if one),
    ]
    if base and (
        other := [key for key in ("dtype", "chat_template_sha256", "attention") if base["subject"][key] != result["subject"][key]]
    ):
        said.append(f"**Not the same in both: {', '.join(other)}.**")
    return said


def memory(result: Result) -> str:
    """What the rows have to do with the training of who answered."""
    seen, rows = result["seen"], result["protocol"]["rows"]
    if "unknown" in seen:
        return f"{seen['unknown']}."
    if seen["rows"]:
        return f"**{seen['rows']} of the {rows['count']} rows show what it was trained on, so its score rewards memory.**"
    if seen["same_split"]:
        return (
            f"it was trained on {seen['trained_rows']} other rows of this very split ({rows['split']}); these were held out, and a score "
            "on them is none of the whole split's."
        )
    return f"none of the rows is among the {seen['trained_rows']} that it was trained on."


def who(result: Result) -> str:
    return result["subject"]["name"]


def share(measured: Mapping[str, Any] | None) -> str:
    return wording.share(measured["mean"], tuple(measured["interval"])) if measured else wording.NOTHING


def likely(p: float) -> str:
    return f"{p:.2g}" if p >= 1e-4 else "< 0.0001"


def _scores(kind: str, scores: Mapping[str, Any], base: Result | None, changes: Mapping[str, Any] | None, names: Sequence[str]) -> str:
    other = base["scores"][kind]["measures"] if base else {}
    head = ["measure", *names, *(["change", "p", "better", "worse"] if base else []), "items"]
    rows = []
    for name, measured in scores["measures"].items():
        row = [NAMES.get(name, name), *([share(other.get(name))] if base else []), share(measured)]
        if base:
            change = (changes or {}).get(kind, {}).get(name)
            row += (
                [
                    wording.share(change["change"], tuple(change["interval"]), True),
                    likely(change["p"]),
                    str(change["up"]),
                    str(change["down"]),
                ]
                if change
                else [wording.NOTHING] * 4
            )
        rows.append([*row, str(measured["items"])])
    cut = f"{scores['clipped']:.1%} of {scores['n']} completions were cut off; {scores['tokens']:g} tokens on average."
    return f"{table_of(head, rows)}\n\n{cut}"


def _categories(values: Mapping[str, Any], others: Mapping[str, Any], names: Sequence[str]) -> str:
    shown = [name for name in OF_CATEGORIES if any(name in measured for measured in values.values())]
    head = ["", "rows", *(f"{NAMES[name]}, {who_}" for name in shown for who_ in names)]
    rows = [
        [value, str(measured["rows"])]
        + [share(one.get(name)) for name in shown for one in ([others.get(value, {}), measured] if others else [measured])]
        for value, measured in values.items()
    ]
    return table_of(head, rows)
