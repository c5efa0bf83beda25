"""A run's answers to a few held-out questions, kept with their pictures so that people can read them years later.

The questions are the first of the held-out rows, so nobody chose them, and runs that hold out the same rows kept the same.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qwen_vl_grpo import index
from qwen_vl_grpo.interfaces import Sample, Task
from qwen_vl_grpo.rewards.rendered import KEPT_SIDE

KEPT = 16
"""Questions a run keeps answers to."""
LONGEST_SIDE = 512
"""Pixels of a kept picture's longest side: enough to read a chart, and not a copy of the data."""
ASKED = 1000
"""Pictures that training asks about and that are kept, with KEPT_SIDE pixels at most: to recognise one, in some 15 MB of disk."""
TELLING = ("answer", "choices", "precision", "unit", "question_type", "answer_type", "original_prompt")
"""Columns by which a completion can be judged again, years later and by another rule."""


def keep(run_dir: Path, when: str, task: Task, samples: Sequence[Sample], completions: Sequence[Sequence[str]]) -> None:
    """Add the first completion of each of the first samples, under `when`, to answers.jsonl in the run's folder.

    One line a question: place (among the held-out rows), id, question, gold, columns, pictures (files in answers/), and for each
    `when` completion, format and correct.
    """
    earlier = {item["place"]: item for item in read(run_dir)[0]}
    lines = []
    for place, (sample, texts) in enumerate(zip(samples[:KEPT], completions, strict=False)):
        verdict = task.judge(texts[0], sample)
        item = earlier.get(place) or {
            "place": place,
            "id": sample.id,
            "question": "\n".join(turn["content"] for turn in sample.prompt if turn["role"] == "user" and isinstance(turn["content"], str)),
            "gold": sample.answer,
            "columns": telling({"answer": sample.answer, **sample.columns}),
            "pictures": [keep_picture(run_dir, image) for image in sample.images],
        }
        lines.append(item | {when: {"completion": texts[0], "format": verdict.format, "correct": verdict.correct}})
    index.replace(run_dir / "answers.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def telling(row: Mapping[str, Any]) -> dict[str, Any]:
    """What of a row a completion can be judged by."""
    return {name: row[name] for name in TELLING if row.get(name) not in (None, "", [])}


def read(run_dir: Path) -> tuple[list[dict[str, Any]], int]:
    """The kept answers of a run, in the order of the held-out rows, and how many lines could not be read."""
    return read_lines(run_dir / "answers.jsonl", place=int, question=str)


def read_lines(path: Path, **kinds: Any) -> tuple[list[dict[str, Any]], int]:
    """The lines of a file of JSON that hold these keys with values of these kinds, and how many others there are."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return [], 0
    items = []
    for line in lines:
        try:
            item = json.loads(line)
            if all(isinstance(item[key], kind) for key, kind in kinds.items()):
                items.append(item)
        except (ValueError, KeyError, TypeError):
            continue
    return items, len(lines) - len(items)


def keep_asked(run_dir: Path, row: Mapping[str, Any], kept: dict[str, str]) -> list[str]:
    """Keep small copies of a row's pictures, each once, while `kept`, their names by picture id, holds fewer than ASKED; returns names."""
    ids = row.get("picture_ids") or ()
    for key, image in zip(ids, row.get("images") or (), strict=False):  # the ids of clips come after those of pictures
        if key not in kept and len(kept) < ASKED:
            kept[key] = keep_picture(run_dir, image, KEPT_SIDE)
    return [kept[key] for key in ids if key in kept]


def keep_picture(folder: Path, image: Any, side: int = LONGEST_SIDE) -> str:
    """Write a small copy under the hash of its bytes: PNG while that is small, as drawings are, else JPEG. Returns its name in `folder`."""
    image = image.convert("RGB")
    image.info = {}  # what a file says of itself beside its pixels is nobody's here
    image.thumbnail((side, side))
    for kind, options in (("PNG", {"optimize": True}), ("JPEG", {"quality": 85})):
        file = io.BytesIO()
        image.save(file, kind, **options)
        if file.tell() < 40_000:
            break
    name = f"answers/{hashlib.sha256(file.getvalue()).hexdigest()[:16]}.{kind.lower()}"
    (folder / "answers").mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(file.getvalue())
    return name
