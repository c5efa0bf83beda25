"""The clips of a row while it is prepared: their frames chosen and decoded once, or written into the chat as pictures with their times."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from qwen_vl_grpo import video
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import Clip, Message, Sample
from qwen_vl_grpo.video_records import VideoFile
from qwen_vl_grpo.video_sections import VideoSection


class UnreadableClip(DataError):
    """A clip that is missing or cannot be decoded; `video.most_unreadable` says how many rows may have one."""


def seen(files: Sequence[VideoFile], config: RunConfig, patch: int) -> tuple[list[Clip], list[str]]:
    """Each clip with the frames that the config and its record choose, and remarks on them; what is decoded here stays in the cache.

    Raises UnreadableClip, and DataError for a clip from which the frames that are asked for cannot be chosen.
    """
    clips: list[Clip] = []
    remarks: list[str] = []
    for file in files:
        try:
            footage = file.footage or video.probe(file.path)
        except DataError as error:
            raise UnreadableClip(str(error)) from None
        indices = video.choose(footage, config.video, **_wanted(file), patch=patch)
        try:
            clips.append(video.read(footage, indices, config.video, patch, video.frames_cache(config.video)))
        except DataError as error:
            raise UnreadableClip(str(error)) from None
        remarks += footage.remarks
    return clips, remarks


def told(files: Sequence[VideoFile], clips: Sequence[Clip], config: RunConfig, patch: int, row: str) -> list[dict[str, Any]]:
    """What a table holds of each clip, `video.kept`; with `video.jitter` also the frames that training sees, `trained_on`.

    These are drawn by the run's seed and the row's id, so that a run sees the same ones whenever it is prepared or resumed.
    """
    rows = []
    for place, (file, clip) in enumerate(zip(files, clips, strict=True)):
        kept = video.kept(clip, file.path) | {"cache_gib": config.video.cache_gib}
        if config.video.jitter:
            chance = random.Random(f"{config.seed}:{row}:{place}")
            kept["trained_on"] = list(video.choose(video.probe(file.path), config.video, **_wanted(file), jitter=chance, patch=patch))
        rows.append(kept)
    return rows


class Clips(Sequence[Clip]):
    """The clips of a prepared row, read each time they are asked for and kept by nobody; from the cache of frames if they are there.

    Raises DataError for a file that is not what it was. `training` gives the frames that training sees.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], training: bool = False):
        self._rows, self._training = rows, training

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        return [self._read(row) for row in self._rows[place]] if isinstance(place, slice) else self._read(self._rows[place])

    def _read(self, row: Mapping[str, Any]) -> Clip:
        indices = (row.get("trained_on") if self._training else None) or row["indices"]
        return video.reread({**row, "indices": indices}, video.frames_cache(VideoSection(cache_gib=row["cache_gib"])))


def trained_on(row: Mapping[str, Any]) -> Clip:
    """One clip of a prepared row as training sees it."""
    return Clips([row], training=True)[0]


def as_pictures(sample: Sample, clips: Sequence[Clip]) -> tuple[list[Message], list[Image.Image]]:
    """The chat and the pictures of a sample with each clip written as its frames, each behind the time at which it is seen."""
    left: dict[str, Any] = {"image": iter(sample.images), "video": iter(clips)}
    chat: list[Message] = []
    pictures: list[Image.Image] = []
    for message in sample.prompt:
        content: list[dict[str, Any]] = []
        for part in message["content"]:
            if part["type"] == "text":
                content.append(part)
            elif part["type"] == "image":
                content.append(part)
                pictures.append(next(left["image"]))
            else:
                clip = next(left["video"])
                for index, frame in zip(clip.indices, clip.frames, strict=True):
                    content += [{"type": "text", "text": f"<{index / clip.fps:.1f} s>"}, {"type": "image", "text": ""}]
                    pictures.append(Image.fromarray(frame))
        chat.append({"role": message["role"], "content": content})
    return chat, pictures


def _wanted(file: VideoFile) -> dict[str, Any]:
    return {"frame_counts": file.frame_counts, "min_frames": file.min_frames, "max_frames": file.max_frames, "dynamic": file.dynamic}
