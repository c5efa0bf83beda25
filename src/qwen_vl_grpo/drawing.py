"""Answers drawn as they come, for `grpo infer --draw`: each picture a file, and in the record of its answer what it was drawn from.

Nobody judges these pictures: that is the studio's, and costs what the run's judge costs.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from qwen_vl_grpo.answering import Answered
from qwen_vl_grpo.drawn_answers import DrawnAnswers
from qwen_vl_grpo.errors import DataError, RenderError
from qwen_vl_grpo.interfaces import RenderRequest
from qwen_vl_grpo.journal import Record
from qwen_vl_grpo.loading import RunPolicy


class Drawing:
    """Draws answers of some runs into a folder (answering.Draw)."""

    def __init__(self, runs: Sequence[RunPolicy], folder: Path):
        """Raises DataError for a folder that cannot be made, and the typed error of a renderer that cannot be had."""
        self.folder = folder.resolve()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"--picture_dir {folder}: cannot be made ({error.strerror}); name another folder") from None
        self._shown = folder
        self._drawn = DrawnAnswers()
        self._at_once = {run.run_id: self._drawn.renderer(run).batch_size for run in runs}

    def __call__(self, backend: Any, answered: Iterator[Answered]) -> Iterator[Record]:
        """The records, each when its picture is there; those of one run are drawn so many at once as its renderer takes."""
        waiting: defaultdict[RunPolicy, list[Answered]] = defaultdict(list)
        for run, record, pictures in answered:
            if record["error"] is not None:
                yield record
                continue
            waiting[run].append((run, record, pictures))
            if len(waiting[run]) >= self._at_once[run.run_id]:
                yield from self._records(backend, run, waiting.pop(run))
        for run, left in waiting.items():
            yield from self._records(backend, run, left)

    def _records(self, backend: Any, run: RunPolicy, answered: Sequence[Answered]) -> Iterator[Record]:
        model = None
        if run.task and run.task.states:
            backend.take(run)
            model = backend.model
        drawn = self._drawn.pictures(run, model, [(record, pictures) for _, record, pictures in answered])
        for (_, record, _), one in zip(answered, drawn, strict=True):
            yield record | {"picture": {"error": str(one)} if isinstance(one, DataError) else self._told(record, *one)}

    def _told(self, record: Record, request: RenderRequest, picture: Image.Image | RenderError) -> Record:
        """What is known of a picture, which is written; its name ends in its hash, so that no other is written over."""
        told = {"seed": request.seed, "conditioning_sha256": request.conditioning and request.conditioning.sha256}
        if isinstance(picture, RenderError):
            return told | {"error": str(picture)}
        content = png(picture)
        sha256 = hashlib.sha256(content).hexdigest()
        item = re.sub(r"[^A-Za-z0-9_-]+", "-", record["item"]).strip("-")[:60]
        path = self._shown / f"{record['run_id']}-{item}-{sha256[:16]}.png"
        path.write_bytes(content)
        return {"path": str(path), "sha256": sha256, "width": picture.width, "height": picture.height} | told | {"error": None}


def png(picture: Image.Image) -> bytes:
    """A picture's pixels as PNG, without whatever else a renderer may have put into it."""
    bare = Image.frombytes("RGB", picture.size, picture.convert("RGB").tobytes())
    file = io.BytesIO()
    bare.save(file, "PNG")
    return file.getvalue()
