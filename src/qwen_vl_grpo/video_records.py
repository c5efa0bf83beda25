"""Stub until the records' branch is merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import Sample
from qwen_vl_grpo.sections import DataSection


@dataclass(frozen=True)
class VideoFile:
    path: str
    meta: Mapping[str, Any] = field(default_factory=dict)


def read_record(row: Mapping[str, Any], data: DataSection, system_prompt: str) -> Sample:
    turns = row.get("conversations") or ()
    if len(turns) != 2:
        raise DataError("holds no conversation")
    text = turns[0]["value"].replace("<video>\n", "").replace("<video>", "")
    content = [{"type": "video"}, {"type": "text", "text": text}]
    prompt = [{"role": "system", "content": system_prompt}, {"role": "user", "content": content}]
    return Sample(str(row.get("id", "")), prompt, [], turns[1]["value"], videos=[VideoFile(row["video"], row.get("meta") or {})])  # type: ignore[list-item]
