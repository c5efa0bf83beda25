"""Clips out of video files: what the rest of the house asks for, and the only file that puts choosing, decoding and keeping together."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy

from qwen_vl_grpo import decoding, index
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.footage import Footage, probe
from qwen_vl_grpo.frame_choice import choose, size
from qwen_vl_grpo.frames_cache import FramesCache
from qwen_vl_grpo.interfaces import Clip
from qwen_vl_grpo.video_sections import VideoSection

__all__ = ["Footage", "choose", "frames_cache", "kept", "probe", "read", "reread", "size"]


VERSION = 1
"""Of how a clip becomes frames; those of another version are decoded again."""


def frames_cache(section: VideoSection) -> FramesCache | None:
    """The decoded frames of this machine, in `frames` beside the index of runs; None for `video.cache_gib: 0`."""
    return _opened(index.home() / "frames", int(section.cache_gib * 2**30)) if section.cache_gib else None


def read(footage: Footage, indices: Sequence[int], section: VideoSection, patch: int, cache: FramesCache | None = None) -> Clip:
    """Return the chosen frames, upright RGB in a multiple of `patch` pixels inside the section's bounds.

    Where a broken file lacks some of them, the clip has fewer frames and says in `indices` which. Raises DataError if it has none.
    """
    return _clip(footage, tuple(indices), *size(footage, len(indices), section, patch), cache)


def kept(clip: Clip, path: str) -> dict[str, Any]:
    """Everything about a clip but its frames, for a row; `reread` makes the clip of it again."""
    _, height, width, _ = clip.frames.shape
    numbers = {"indices": list(clip.indices), "fps": clip.fps, "total": clip.total, "width": width, "height": height}
    return {"path": path, "sha256": clip.sha256} | numbers


def reread(row: Mapping[str, Any], cache: FramesCache | None = None) -> Clip:
    """Return the clip that `kept` described, from the cache if it is there; raises DataError if its file is not what it was."""
    indices = tuple(row["indices"])
    held = _held(cache, row["sha256"], indices, row["width"], row["height"])
    if held is not None:
        return Clip(held, indices, row["fps"], row["total"], row["sha256"])
    footage = probe(row["path"])
    if footage.sha256 != row["sha256"]:
        raise DataError(f"video {row['path']}: is another file than the one that was prepared; prepare the data set again")
    return _clip(footage, indices, row["width"], row["height"], cache)


@functools.cache
def _opened(folder: Path, limit: int) -> FramesCache:
    """One a process, since it knows how much it may still write."""
    return FramesCache(folder, limit)


def _clip(footage: Footage, indices: tuple[int, ...], width: int, height: int, cache: FramesCache | None) -> Clip:
    held = _held(cache, footage.sha256, indices, width, height)
    if held is None:
        whole = decoding.frames_of(footage, indices, width, height)
        indices = tuple(place for place in indices if place in whole)
        if not indices:
            raise DataError(f"video {footage.path}: not one of the chosen frames can be decoded; fetch it again or leave it out")
        held = numpy.stack([whole[place] for place in indices])
        if cache is not None:
            cache.put(_key(footage.sha256, indices, width, height), held)
    return Clip(held, indices, footage.fps, footage.frames, footage.sha256)


def _held(cache: FramesCache | None, sha256: str, indices: tuple[int, ...], width: int, height: int) -> numpy.ndarray | None:
    return None if cache is None else cache.get(_key(sha256, indices, width, height))


def _key(sha256: str, indices: tuple[int, ...], width: int, height: int) -> list[Any]:
    return [VERSION, sha256, indices, width, height]
