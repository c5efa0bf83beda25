"""The texts that judges are told, as .md files beside this one; each begins with its version, which is a part of every judgement's key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Prompt:
    """One such text. Raise `version` in its file when a word of it changes, or old judgements would be taken for new ones."""

    name: str
    version: int
    text: str


def read(name: str) -> Prompt:
    """The prompt in `name`.md."""
    held = (Path(__file__).parent / f"{name}.md").read_text(encoding="utf-8")
    head = re.match(r"---\nversion: (\d+)\n---\n", held)
    assert head, f"judges/{name}.md does not begin with its version"
    return Prompt(name, int(head[1]), held[head.end() :].strip())
