"""Which actions an answer names, as in `(1) reach (3) place`, and how much of two sets of actions is the same.

The numbers are those under which the question offers its actions; the name behind a number may be left out, and is else the name of
that very action. Where a question offers none, the numbers only count, 1, 2, 3, …, and the names are the actions. Order tells
nothing: an answer is a set.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

_NUMBER = re.compile(r"\(([0-9]{1,3})\)")
_MARKS = " .,;:"


def offered(question: str) -> list[str]:
    """The actions that a question offers as (1), (2), (3), …: its longest run of such numbers, each name up to the end of its line or
    sentence.

    An example of an answer may stand beside them, and is shorter or comes later. Empty if the question offers none.
    """
    runs: list[list[str]] = []
    _, *parts = _NUMBER.split(question)
    for number, text in zip(parts[::2], parts[1::2], strict=True):
        if int(number) == 1:
            runs.append([])
        if runs and int(number) == len(runs[-1]) + 1:
            runs[-1].append(re.split(r"[\n<]|[.;?]\s", text)[0].strip().strip(_MARKS))
    return max(runs, key=len, default=[])


def named(text: str, choices: Sequence[str] = ()) -> frozenset[str] | None:
    """The actions of an answer: numbers of `choices`, or names without any; None for a text that is no such list and nothing else.

    A number twice, a number that is not offered, another action's name behind a number, and words before the first number are all
    no such list: a guess more costs the answer.
    """
    before, *parts = _NUMBER.split(text)
    items = [(int(number), _plain(name)) for number, name in zip(parts[::2], parts[1::2], strict=True)]
    numbers = [number for number, _ in items]
    if before.strip() or not items or len(set(numbers)) < len(items):
        return None
    if choices:
        fit = all(1 <= number <= len(choices) and name in ("", _plain(choices[number - 1])) for number, name in items)
        return frozenset(map(str, numbers)) if fit else None
    names = frozenset(name for _, name in items)
    return names if numbers == [*range(1, len(items) + 1)] and "" not in names and len(names) == len(items) else None


def overlap(one: AbstractSet[str], other: AbstractSet[str]) -> float:
    """Intersection over union; 0 where both are empty, as nothing was named."""
    return len(one & other) / len(one | other) if one | other else 0.0


def _plain(name: str) -> str:
    """A name without its case, its spacing and what stands between it and the numbers beside it."""
    name = " ".join(name.split()).casefold().strip(_MARKS)
    return re.sub(r"(?:^| )(?:and|&)$", "", name).rstrip(_MARKS)
