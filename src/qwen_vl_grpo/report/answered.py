"""What the runs answered to the same questions, side by side: to held-out rows, and to files of questions since."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qwen_vl_grpo import answers, journal, registry
from qwen_vl_grpo.report.tables import Run, at, text

SHOWN = 24
"""Questions on a page at most."""
LONGEST = 4000
"""Characters of a completion on a page at most."""
PICTURE = re.compile(r"answers/[0-9a-f]{16}\.(png|jpeg)")
"""The names that the gallery gives; a card from elsewhere may name no other file of this machine."""


@dataclass(frozen=True)
class Answer:
    """One completion, split for reading; `verdict` is the judge's at the time, or empty where nobody judged."""

    answer: str
    completion: str
    verdict: str


@dataclass(frozen=True)
class Item:
    """One question with its pictures as data URIs, and the number of each run that answered it -> its answers."""

    id: str
    question: str
    gold: str
    pictures: list[str]
    missing: list[str]
    """Pictures that are not there any more."""
    answers: dict[int, dict[str, Answer]] = field(default_factory=dict)
    """Number of the run -> before and after, or the day of the answer."""


def side_by_side(runs: Sequence[Run]) -> tuple[list[Item], str]:
    """The questions that most runs answered, in the order of the held-out rows, and a sentence on what is left out.

    Two runs answered the same question if data set, part, id (or place), question and gold answer are the same.
    """
    items: dict[tuple[str, ...], Item] = {}
    for index, run in enumerate(runs):
        data = [text(run.card.dataset.get(key)) for key in ("name", "held_out")]
        for kept in run.answers:
            name = text(kept.get("id") or kept["place"])
            question, gold = kept["question"], text(kept.get("gold", ""))
            key = (*data, name, question, gold)
            if key not in items:
                items[key] = Item(name, question, gold, *pictures_of(run.folder, kept.get("pictures")))
            given = {when: _answer(kept[when]) for when in ("before", "after") if isinstance(at(kept, when, "completion"), str)}
            items[key].answers[index] = given
    if not items:
        return [], "None of these runs has answers to held-out rows here: an evaluated run keeps them in its folder, and the Hub gets none."
    shown, most = _answered_by_most(items)
    left = len(items) - len(shown)
    said = f"{left} questions that fewer runs answered are left out. " * bool(left)
    if most < 2 <= len(runs):
        said += "No question was answered by two of these runs: they were scored on different rows."
    return shown, said.strip()


def since(runs: Sequence[Run]) -> list[Item]:
    """What `grpo infer --input` asked these runs, as far as its pictures were kept: the first questions of each file.

    The last answer of a run with the weights of its card counts.
    """
    numbers = {(run.id, registry.checkpoint_sha(run.card)): index for index, run in enumerate(runs)}
    items: dict[tuple[str, ...], Item] = {}
    for name, record in journal.answers_of(numbers, {sha for _, sha in numbers}):
        completion, kept = record.get("completion"), record.get("pictures")
        if not isinstance(completion, str) or not isinstance(kept, list):
            continue
        key = (name, *map(text, (record.get("item"), record.get("prompt"), record.get("image_sha256"))))
        if key not in items:
            items[key] = Item(key[1], key[2], "", *pictures_of(journal.folder(), kept))
        given = Answer(*_parts(completion, f"{name}.jsonl"), "" if record.get("well_formed") is True else "not well-formed")
        items[key].answers[numbers[record["run_id"], record["sha"]]] = {text(record.get("time"))[:10]: given}
    return _answered_by_most(items)[0]


def _answered_by_most(items: dict[tuple[str, ...], Item]) -> tuple[list[Item], int]:
    """The first questions that most runs answered, and how many runs that is."""
    most = max((len(item.answers) for item in items.values()), default=0)
    return [item for item in items.values() if len(item.answers) == most][:SHOWN], most


def _answer(kept: dict[str, Any]) -> Answer:
    correct = kept.get("correct", False)
    verdict = "right" if correct is True else "not well-formed" if kept.get("format") is not True else "" if correct is None else "wrong"
    return Answer(*_parts(kept["completion"], "answers.jsonl"), verdict)


def _parts(completion: str, file: str) -> tuple[str, str]:
    """The answer in a completion, and as much of it as is shown."""
    shown = completion[:LONGEST] + f"\n… and {len(completion) - LONGEST:,} characters more, in {file}" * (len(completion) > LONGEST)
    return answers.parts(completion)[1], shown


def pictures_of(folder: Path, names: Any) -> tuple[list[str], list[str]]:
    """Kept pictures as data URIs, and the names of those that are not there."""
    shown, missing = [], []
    for name in names if isinstance(names, list) else []:
        kind = PICTURE.fullmatch(name) if isinstance(name, str) else None
        try:
            content = (folder / name).read_bytes() if kind else b""
        except OSError:
            content = b""
        if kind and content:
            shown.append(f"data:image/{kind.group(1)};base64,{base64.b64encode(content).decode()}")
        else:
            missing.append(text(name))
    return shown, missing
