"""What a judge answered to a list of items, a line "* item: yes" each: read for a reward, and as MMMG's published code reads it.

For a reward an item that was not answered has no answer. The published reading (MMMGBench/MMMG, commit 98bb915,
mmmg_eval/utils/stat_knowledge.py) takes it for a no, and an answer that is no list at all for a picture that shows nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

HEADING = "verdicts"
"""Alone on a line it begins the list. What stands before it describes the picture, and may quote what is written there: "water: yes"."""

COLON = "[:\uff1a]"
"""As a pattern: the usual one, and that of Chinese text."""


def read(text: str, items: Sequence[str]) -> dict[str, bool]:
    """Item -> yes or no, for the items that have a line and only one answer.

    Bullets, numbers, bold type, quotes, brackets, case and the kind of colon do not matter; the item's words do.
    """
    spelled: dict[str, list[str]] = {}
    for item in items:
        spelled.setdefault(_plain(item), []).append(item)
    longest_first = sorted(spelled, key=len, reverse=True)  # for one item may begin as another does
    answers: dict[str, set[bool]] = {}
    for line in listed(text).splitlines():
        said = _plain(line)
        for beginning in (said, re.sub(r"^\d+\s*[.)]\s*", "", said)):
            name = next((name for name in longest_first if _answer(beginning, name)), None)
            if name is not None:
                for item in spelled[name]:
                    answers.setdefault(item, set()).add(_answer(beginning, name) == "yes")
                break
    return {item: answers[item].pop() for item in items if len(answers.get(item, ())) == 1}


def listed(text: str) -> str:
    """What stands after the last heading; all of a text without one."""
    lines = text.splitlines()
    headings = [number for number, line in enumerate(lines) if _plain(line).strip(" :#") == HEADING]
    return "\n".join(lines[headings[-1] + 1 if headings else 0 :]).strip()


def published(text: str, elements: Sequence[str], dependencies: Sequence[str]) -> tuple[dict[str, bool], dict[str, bool]]:
    """Element -> yes or no and dependency -> yes or no, as MMMG's own code reads an answer; the last line about an item counts."""
    seen = dict.fromkeys(elements, False), dict.fromkeys(dependencies, False)
    if not (elements or dependencies):
        return seen
    for said, word in re.findall(_published_line([*elements, *dependencies]), _undecorated(text), re.IGNORECASE | re.MULTILINE):
        name = re.sub(rf"{COLON}$", "", re.sub(r"[*`]+$", "", re.sub(r"^[*`]+", "", said.strip()))).strip()
        holder, key = _place(name, seen)
        if holder is not None:
            holder[key] = word.lower() == "yes"
    return seen


def _answer(said: str, name: str) -> str | None:
    """The yes or no that follows an item at the beginning of a line; "yes/no" and "yes or no" are none."""
    word = re.match(r"\s*[:=-]+>?\s*(yes|no)\b(?!\s*(?:/|or\b))", said[len(name) :]) if said.startswith(name) else None
    return word and word[1]


def _plain(text: str) -> str:
    """A text without what marks it up, with one kind of space, colon and dash, in lower case."""
    text = re.sub(r"[*`\"'_\[\]“”‘’]", "", unicodedata.normalize("NFKC", text).casefold())  # noqa: RUF001 - quotes that models write
    return " ".join(re.sub(r"[–—−]", "-", text).split()).lstrip("-•· ")  # noqa: RUF001 - dashes, likewise


def _undecorated(text: str) -> str:
    return text.replace("**", "").replace("[yes]", "yes").replace("[no]", "no")


def _published_line(items: Sequence[str]) -> str:
    """The published pattern: a bullet or number, the item in backticks or not, a colon, and yes, no or one of their letters."""
    names = "|".join(map(re.escape, items))
    return rf"^\s*(?:[*\-•]|\d+\.)?\s*`*\s*({names})`*\s*{COLON}\s*(yes|no|[yesno])\b"


def _place(name: str, seen: tuple[dict[str, bool], dict[str, bool]]) -> tuple[dict[str, bool] | None, str]:
    """Where an item's answer is kept: under its own spelling, else under the first that differs by case alone."""
    for holder in seen:
        if name in holder:
            return holder, name
    for holder in seen:
        for key in holder:
            if key.lower() == name.lower():
                return holder, key
    return None, name
