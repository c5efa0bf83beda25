"""The completions that a run kept, with what each earned: rows of its tables, drawn ones of its gallery, answers to held-out questions.

Rows of tables are the first of their step, chosen by nobody, and all statistics are over them alone. Best and worst of a step are
chosen by their reward, and the held-out answers are greedy: they are looked at, and not counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qwen_vl_grpo import gallery, rendered_gallery, rewards, tasks
from qwen_vl_grpo.errors import GrpoError
from qwen_vl_grpo.interfaces import RunCard, Sample, Task, Verdict
from qwen_vl_grpo.sections import TaskSection

TABLES = 500
"""Tables that are read at most, evenly spread: those of 500 steps are 8,000 completions."""
OTHERS = ("step", "prompt", "completion", "gold", "pictures", "advantage", "images")
"""Columns of a table that are neither a reward nor a value of the judge."""


@dataclass(frozen=True)
class Kept:
    """One completion."""

    moment: str
    prompt: str
    completion: str
    scores: Mapping[str, float]
    """By reward, before its weight."""
    total: float | None
    """The weighted sum, as it was learned from."""
    step: int = 0
    group: int = 0
    """Which of the step's groups it is of: rows of another picture may ask the same."""
    details: Mapping[str, float] = field(default_factory=dict)
    """The judge's values."""
    gold: Mapping[str, Any] = field(default_factory=dict)
    """What it can be judged by (gallery.telling)."""
    sources: tuple[str, ...] = ()
    """Files of what was asked about."""
    picture: str | None = None
    """File of what was drawn."""
    reason: str = ""
    """The judge's."""


@dataclass
class Completions:
    """All that a run kept of its completions, and in words what it did not keep."""

    weights: dict[str, float]
    task: Task | None
    rows: list[Kept] = field(default_factory=list)
    looked_at: list[Kept] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def most(self) -> float:
        """What a completion can earn at most; where a reward has no known range, the highest that was kept."""
        if self.weights.keys() <= rewards.RANGES.keys():
            return rewards.most(self.weights)
        return max((one.total for one in [*self.rows, *self.looked_at] if one.total is not None), default=0.0)

    def verdict(self, one: Kept) -> Verdict | None:
        """What the task's evaluator says of a completion; None where the run kept no answer to judge it by."""
        if self.task is None or not {"answer", "original_prompt"} & {*one.gold}:
            return None
        columns = {key: value for key, value in one.gold.items() if key != "answer"}
        try:
            return self.task.judge(one.completion, Sample("", [], [], str(one.gold.get("answer", "")), columns))
        except Exception:  # a task of the user's own, or of a version that judged by other columns
            return None

    def earned(self, one: Kept, weights: Mapping[str, float]) -> float | None:
        """What a completion earns by rewards of words alone; None where the run kept no answer, or one of them is no such reward."""
        if "answer" not in one.gold or not {*weights} <= {*rewards.REWARDS}:
            return None
        columns = {key: [value] for key, value in one.gold.items()}
        return sum((rewards.REWARDS[name](completions=[one.completion], **columns)[0] or 0.0) * each for name, each in weights.items())


def read(card: RunCard, folder: Path) -> Completions:
    """Everything that lies in a run's folder; a file that is not there or cannot be read is a note."""
    task, listed = None, card.config.get("rewards") or []
    found = Completions({}, None)
    try:
        task = tasks.build(TaskSection.model_validate({"name": card.task} | (card.config.get("task") or {})))
    except (GrpoError, ValueError, TypeError) as error:
        found.notes.append(f"The task {card.task} cannot be had here ({error}), so nothing is judged again.")
    pairs = [(str(entry["function"]).rpartition(":")[2], entry.get("weight", 1.0)) for entry in listed] or [*(task.rewards if task else ())]
    found.task, scale = task, card.config.get("reward_scale") or 1.0
    found.weights = {name: weight * scale for name, weight in pairs}
    _read_tables(folder, found, card.config.get("num_generations"))
    _read_gallery(folder, found)
    _read_answers(folder, found)
    return found


def _read_tables(folder: Path, found: Completions, size: int | None) -> None:
    """Read the tables, in which groups of `size` lie behind each other; where that is not known, a step is one group."""
    import pyarrow.parquet

    files = sorted((folder / "completions").glob("completions_*.parquet"))
    if not files:
        found.notes.append("It kept no tables of completions (tracking.log_completions), so nothing is counted over them.")
    shown = files if len(files) <= TABLES else [files[place * (len(files) - 1) // (TABLES - 1)] for place in range(TABLES)]
    if len(shown) < len(files):
        found.notes.append(f"Of its {len(files)} tables of completions {TABLES} were read, evenly spread.")
    broken, seen = 0, False
    for file in shown:
        try:
            rows = pyarrow.parquet.read_table(file).to_pylist()
            seen = seen or any("pictures" in row for row in rows)
            found.rows += [
                _row(row, place // (size or len(rows)), found) for place, row in enumerate(rows) if isinstance(row.get("completion"), str)
            ]
        except (OSError, ValueError, KeyError, TypeError):
            broken += 1
    if broken:
        found.notes.append(f"{broken} tables of completions could not be read.")
    if found.rows and not any(one.gold for one in found.rows):
        found.notes.append("Its tables hold no gold answers (runs from before they were kept), so their completions are not judged again.")
    if found.rows and not seen:
        found.notes.append("Its tables name no pictures that training asked about (runs from before they were kept).")


def _row(row: Mapping[str, Any], group: int, found: Completions) -> Kept:
    numbers = {name: value for name, value in row.items() if name not in OTHERS and isinstance(value, float) and math.isfinite(value)}
    scores = {name: numbers.pop(name) for name in found.weights if name in numbers}
    total = sum(value * found.weights[name] for name, value in scores.items()) if scores else None
    gold, names = json.loads(row.get("gold") or "{}"), tuple(json.loads(row.get("pictures") or "[]"))
    return Kept(f"step {row['step']}", str(row["prompt"]), row["completion"], scores, total, row["step"], group, numbers, gold, names)


def _read_gallery(folder: Path, found: Completions) -> None:
    lines, broken = rendered_gallery.read(folder)
    if broken:
        found.notes.append(f"{broken} lines of {rendered_gallery.FILE} could not be read.")
    for line in lines:
        measured: Any = line.get("details")
        details = {name: value for name, value in measured.items() if isinstance(value, int | float)} if isinstance(measured, dict) else {}
        reward = line.get("reward") if isinstance(line.get("reward"), int | float) else None
        weight = found.weights.get("rendered_reward", 1.0)
        score = {"judge_score": line["score"]} if isinstance(line.get("score"), int | float) else {}
        found.looked_at.append(
            Kept(
                f"{line['kind']}, {line['moment']}", line["original"], line["completion"],
                {} if reward is None else {"rendered_reward": reward}, None if reward is None else reward * weight,
                details=details | score, gold={"original_prompt": line["original"]}, sources=tuple(line["sources"]),
                picture=line["picture"], reason=str(line.get("reason") or ""),
            )
        )  # fmt: skip


def _read_answers(folder: Path, found: Completions) -> None:
    lines, broken = gallery.read(folder)
    if broken:
        found.notes.append(f"{broken} lines of answers.jsonl could not be read.")
    for line in lines:
        gold = line["columns"] if isinstance(line.get("columns"), dict) else {"answer": str(line.get("gold", ""))}
        pictures: Any = line.get("pictures")
        names = tuple(name for name in pictures if isinstance(name, str)) if isinstance(pictures, list) else ()
        for when in ("before", "after"):
            given = line.get(when)
            if isinstance(given, dict) and isinstance(given.get("completion"), str):
                one = Kept(f"held out, {when}", line["question"], given["completion"], {}, None, gold=gold, sources=names)
                scores = {name: value for name in found.weights if (value := found.earned(one, {name: 1.0})) is not None}
                whole = found.earned(one, found.weights) if found.weights else None
                found.looked_at.append(Kept(one.moment, one.prompt, one.completion, scores, whole, gold=gold, sources=names))
