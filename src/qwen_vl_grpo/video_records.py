"""One record with clips: its chat, the files that its tags stand for, and the answer that its last turn gives.

The documented record (qwen-vl-finetune's, JSON or JSON Lines):

    {"id": 0, "video": "clips/0.mp4", "meta": {"frame_cnts": [15, 11], "min_frames": 4, "max_frames": 8, "dynamic_sample": true},
     "conversations": [{"from": "human", "value": "<video>\\nWhat happens?"}, {"from": "gpt", "value": "<answer>(1) …</answer>"}]}

`video` and `image` hold one file or a list, and each `<video>` and `<image>` tag stands for the next of them. Rows in TRL's style have
`prompt` (a chat, or the question as text), `videos` and `images`, and their answer in the column that `data.columns.answer` names;
their chat may have tags, {"type": "video"} parts, or neither, and then everything is shown before the first question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.footage import Footage
from qwen_vl_grpo.interfaces import Message, Sample
from qwen_vl_grpo.sections import DataSection

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
KINDS = {"video": ("videos", "video"), "image": ("images", "image")}
"""Kind of part -> the columns that may hold its files."""
ANSWERS = ("answer", "solution")
_TAG = re.compile(r"\n?<(video|image)>\n?")


@dataclass(frozen=True)
class VideoFile:
    """A clip that a record names, before its frames are chosen."""

    path: str
    frame_counts: tuple[int, ...] | None = None
    """Frames of its consecutive segments, which say how many are wanted in all."""
    min_frames: int | None = None
    max_frames: int | None = None
    dynamic: bool = False
    """Share the frames by the length of the segments."""
    footage: Footage | None = field(default=None, compare=False, repr=False)
    """What is known of the file; None looks when it is read."""
    held: Any = field(default=None, compare=False, repr=False)
    """What keeps a passing file there."""


def read_record(row: Mapping[str, Any], data: DataSection, system_prompt: str) -> Sample:
    """The chat of a record, its files as Sample.videos (VideoFile) and Sample.images (as they stand in the row), and its answer as text.

    Raises DataError: no question, no answer, tags that do not match the files, or a `meta` that cannot be followed.
    """
    chat, answer = _conversation(row["conversations"]) if "conversations" in row else _prompt(row, data)
    files = {kind: _files(row, kind, data) for kind in KINDS}
    shown = [part["type"] for message in chat for part in message["content"] if part["type"] in KINDS]
    if not shown and "conversations" not in row:
        shown = [kind for kind, named in files.items() for _ in named]
        first = next(message for message in chat if message["role"] == "user")
        first["content"] = [*map(_part, shown), *first["content"]]
    for kind, named in files.items():
        tags = shown.count(kind)
        if tags != len(named):
            raise DataError(f"has {tags} <{kind}> tags and names {len(named)} files for them; write one tag for each file")
    if chat[0]["role"] != "system":
        chat.insert(0, {"role": "system", "content": [_part("text", system_prompt)]})
    metas = _each(row.get("meta") or {}, len(files["video"]))
    videos: list[Any] = [_video(path, meta) for path, meta in zip(files["video"], metas, strict=True)]
    return Sample(str(row.get(data.columns.get("id", "id"), "")), chat, files["image"], answer, videos=videos)


def _conversation(turns: Any) -> tuple[list[Message], str]:
    """The chat up to the last answer, and that answer."""
    if not isinstance(turns, Sequence) or not all(isinstance(turn, Mapping) and {"from", "value"} <= turn.keys() for turn in turns):
        raise DataError("holds conversations that are no list of turns with from and value")
    unknown = next((turn["from"] for turn in turns if turn["from"] not in ROLES), None)
    if unknown is not None:
        raise DataError(f"holds a turn from {unknown!r}; turns are from {', '.join(ROLES)}")
    roles = [ROLES[turn["from"]] for turn in turns]
    if roles[-2:] != ["user", "assistant"]:
        raise DataError("holds a conversation that does not end in a question (human) and its answer (gpt)")
    chat = [{"role": role, "content": _parts(turn["value"])} for role, turn in zip(roles, turns[:-1], strict=False)]
    return chat, str(turns[-1]["value"])


def _prompt(row: Mapping[str, Any], data: DataSection) -> tuple[list[Message], str]:
    asked = next((row[name] for name in (data.columns.get("question"), "prompt", "question", "problem") if name and row.get(name)), None)
    named = next((name for name in (data.columns.get("answer"), *ANSWERS) if name and row.get(name) is not None), None)
    if asked is None or named is None:
        raise DataError("has neither conversations nor a prompt and an answer; name their columns with data.columns.question and .answer")
    chat = [{"role": "user", "content": asked}] if isinstance(asked, str) else [dict(message) for message in asked]
    if not any(message.get("role") == "user" for message in chat):
        raise DataError("holds a prompt without a turn of the user")
    return [{"role": message["role"], "content": _parts(message["content"])} for message in chat], str(row[named])


def _parts(content: Any) -> list[dict[str, Any]]:
    """A turn as a list of parts, a tag as a part of its own; a text that is empty without its tags is none."""
    if not isinstance(content, str):
        return [part for given in content for part in (_parts(given["text"]) if given["type"] == "text" else [_part(given["type"])])]
    pieces = _TAG.split(content)  # text and the word of a tag by turns
    return [_part(piece) if place % 2 else _part("text", piece) for place, piece in enumerate(pieces) if piece.strip()]


def _part(kind: str, text: str = "") -> dict[str, Any]:
    """A part of a turn; each has the same keys, so that a table holds them."""
    return {"type": kind, "text": text}


def _files(row: Mapping[str, Any], kind: str, data: DataSection) -> list[Any]:
    columns = (data.columns.get("images"), data.columns.get("image"), *KINDS[kind]) if kind == "image" else KINDS[kind]
    value = next((row[name] for name in columns if name and row.get(name) is not None), [])
    return list(value) if isinstance(value, list | tuple) else [value]


def _each(meta: Any, count: int) -> list[Any]:
    """The `meta` of each clip: one for all of them, or a list."""
    metas = list(meta) if isinstance(meta, list | tuple) else [meta] * count
    if len(metas) != count:
        raise DataError(f"holds {len(metas)} meta for {count} clips; give one for all, or one for each")
    return metas


def _video(path: Any, meta: Any) -> VideoFile:
    if not isinstance(path, str) or not path:
        raise DataError(f"names {path!r} as its video; a clip is a path")
    if not isinstance(meta, Mapping):
        raise DataError(f"holds {meta!r} as meta; it is an object with frame_cnts, min_frames, max_frames and dynamic_sample")
    counts, fewest, most = meta.get("frame_cnts"), meta.get("min_frames"), meta.get("max_frames")
    counts = None if counts is None else list(counts) if isinstance(counts, list | tuple) else [counts]
    for key, numbers in (("frame_cnts", counts or []), ("min_frames", [fewest]), ("max_frames", [most])):
        if not all(number is None or (type(number) is int and number > 0) for number in numbers) or counts == []:
            raise DataError(f"holds meta.{key} {meta.get(key)!r}; it counts frames, from 1")
    if fewest is not None and most is not None and fewest > most:
        raise DataError(f"holds meta.min_frames {fewest} above max_frames {most}; swap or change them")
    return VideoFile(path, None if counts is None else tuple(map(int, counts)), fewest, most, bool(meta.get("dynamic_sample")))
