"""Chosen frames out of a video file: torchcodec where it loads and can be trusted, else PyAV.

Both seek to the last key frame before a frame that is wanted, unless decoding is past it already, so that a film of hours costs a few
groups of pictures. Frames that a broken file does not hold whole are left out, and never replaced by what a decoder makes up.
"""

from __future__ import annotations

import functools
import logging
import math
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy

from qwen_vl_grpo.errors import DataError, briefly
from qwen_vl_grpo.footage import Footage, decoded, picture_stream

log = logging.getLogger("qwen_vl_grpo")


AT_ONCE = 16
"""Frames that torchcodec holds in the file's own size."""


def frames_of(footage: Footage, indices: Sequence[int], width: int, height: int) -> dict[int, numpy.ndarray]:
    """Return index -> uint8 array (height, width, 3), RGB and upright, for the frames that are whole.

    Raises DataError if the file cannot be opened.
    """
    places = sorted(set(indices))
    times = [footage.start + (place + 0.5) / footage.fps for place in places]

    def finish(picture: Any) -> numpy.ndarray:
        """Colours and size in one pass over the picture."""
        stored = (height, width) if footage.rotation % 2 else (width, height)
        sized = picture.reformat(*stored, format="rgb24", interpolation="BICUBIC").to_ndarray()
        return numpy.ascontiguousarray(numpy.rot90(sized, footage.rotation))

    pictures = _by_torchcodec(footage, times, finish) or _by_pyav(footage, times, finish)
    return {place: picture for place, picture in zip(places, pictures, strict=True) if picture is not None}


@functools.cache
def torchcodec() -> Any:
    """torchcodec's decoder, or None where it is not there or finds no FFmpeg that it can use."""
    try:
        from torchcodec.decoders import VideoDecoder  # pyright: ignore[reportMissingImports]
    except (ImportError, OSError, RuntimeError) as error:
        log.debug("video: PyAV decodes, for torchcodec does not load (%s)", briefly(error))
        return None
    return VideoDecoder


def _by_torchcodec(footage: Footage, times: Sequence[float], finish: Callable[[Any], numpy.ndarray]) -> list[numpy.ndarray] | None:
    """The frames seen at these times; None where torchcodec is not there, fails or gives frames of other times, as it does with MPEG-TS.

    Turned clips and broken ones are left to PyAV: older releases do not turn, and none tells which frames it made up.
    """
    import av

    if footage.rotation or footage.remarks or not torchcodec():
        return None
    pictures = []
    try:
        decoder = torchcodec()(footage.path, dimension_order="NHWC", seek_mode="approximate")
        for first in range(0, len(times), AT_ONCE):
            asked = list(times[first : first + AT_ONCE])
            got = decoder.get_frames_played_at(asked)
            ends = got.pts_seconds + got.duration_seconds
            if any(not begin <= time < end for time, begin, end in zip(asked, got.pts_seconds.tolist(), ends.tolist(), strict=True)):
                return None
            pictures += [finish(av.VideoFrame.from_ndarray(picture, format="rgb24")) for picture in got.data.numpy()]
    except (RuntimeError, ValueError, IndexError) as error:
        log.debug("video %s: torchcodec gives up (%s); PyAV reads it", footage.path, briefly(error))
        return None
    return pictures


def _by_pyav(footage: Footage, times: Sequence[float], finish: Callable[[Any], numpy.ndarray]) -> list[numpy.ndarray | None]:
    """The frames seen at these rising times, None for what is not whole."""
    import av
    from av.error import FFmpegError

    try:
        with av.open(footage.path, metadata_errors="ignore") as container:
            reader = _Reader(container, picture_stream(container), footage.keyframes)
            return [None if (frame := reader.seen_at(time)) is None else finish(frame) for time in times]
    except (FFmpegError, OSError) as error:
        raise DataError(f"video {footage.path}: cannot be read ({briefly(error)}); fetch it again or leave it out") from None


class _Reader:
    """Walks forward through a file and tells which frame is seen at a time."""

    def __init__(self, container: Any, stream: Any, keyframes: Sequence[float]):
        self._container, self._stream, self._keyframes = container, stream, keyframes
        self._read_on()

    def seen_at(self, time: float) -> Any:
        """The frame seen at a time that is no earlier than the one asked for before; None if it is not whole."""
        place = bisect_right(self._keyframes, time) - 1
        if place <= 0 or (self._ahead is not None and self._keyframes[place] <= self._ahead[0]):
            self._advance(time)
        else:
            self._seek(place, time)
            back = 1
            while self._current is None and place:  # some containers land behind the key frame that was asked for
                place, back = max(0, place - back), back * 2
                self._seek(place, time)
        return None if self._current is None else self._current[1]

    def _seek(self, place: int, time: float) -> None:
        if place:
            self._container.seek(round(self._keyframes[place] / self._stream.time_base), stream=self._stream)
        else:
            self._container.seek(0)
        self._read_on()
        self._advance(time)

    def _read_on(self) -> None:
        self._frames = _timed(decoded(self._container, self._stream))
        self._current: tuple[float, Any] | None = None
        self._ahead = next(self._frames, None)

    def _advance(self, time: float) -> None:
        while self._ahead is not None and self._ahead[0] <= time:
            self._current, self._ahead = self._ahead, next(self._frames, None)


def _timed(found: Iterator[Any]) -> Iterator[tuple[float, Any]]:
    """Each frame with its time, and None in the place of one that is not whole.

    After a fault no frame is whole up to the next key frame: it may be made up of what was lost.
    """
    import av

    whole, lost, key = True, [], -math.inf
    for item in found:
        if not isinstance(item, av.VideoFrame):  # a packet that could not be decoded
            if item.pts is not None and item.pts * item.time_base < key:
                continue  # it needed frames from before the place that was sought, and is seen before the key frame
            whole = False
            if item.pts is not None:
                insort(lost, float(item.pts * item.time_base))
        elif item.time is not None:
            while lost and lost[0] < item.time:
                yield lost.pop(0), None
            key = item.time if item.key_frame else key
            whole = (whole or bool(item.key_frame)) and not item.is_corrupt
            yield item.time, item if whole else None
    yield from ((time, None) for time in lost)
