"""What a video file holds, found by one pass over its packets that decodes a single frame, and remembered until the file changes.

Packets are counted, and not the header believed: headers of broken downloads, and of many containers, do not tell the truth.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen_vl_grpo import index
from qwen_vl_grpo.errors import DataError, briefly

if TYPE_CHECKING:
    from av.container import InputContainer

VERSION = 1
"""Of what is remembered; another one is looked up again."""
KEYFRAMES = 10_000
"""The most that are remembered of a file."""
LATE = 1.5
"""Seconds by which a file may promise to be longer than its pictures: the sound goes on for a little while in many clips."""
MAX_PIXELS = 64 * 10**6
"""A header is believed before a single frame is decoded."""
REORDERED = 16
"""Frames that may be stored before one that is seen earlier (H.264's largest reordering)."""


@dataclass(frozen=True)
class Footage:
    """A video whose frames can be chosen: frame `index` is what is seen in the middle of its slot, start + (index + 0.5) / fps seconds."""

    path: str
    sha256: str
    """Of the file."""
    frames: int
    fps: float
    """Frames a second; the mean of a variable rate."""
    seconds: float
    width: int
    """Pixels of the upright picture, with square pixels."""
    height: int
    rotation: int = 0
    """Quarter turns to the left that set a stored picture upright."""
    start: float = 0.0
    """Seconds on the file's own clock at which the first frame begins."""
    keyframes: tuple[float, ...] = ()
    """Seconds on the file's own clock at which decoding may begin; not every one of a film of nothing but key frames,
    and none of a container that cannot be sought in."""
    remarks: tuple[str, ...] = ()


def probe(path: str | Path) -> Footage:
    """Look at a video file once, and never again while its size and time of change stay; raises DataError if no frame of it can be seen."""
    path = Path(path)
    try:
        state = path.stat()
    except OSError as error:
        raise DataError(f"video {path}: cannot be read ({error.strerror}); check the path and the media root") from None
    if not state.st_size:
        raise DataError(f"video {path}: is empty (0 bytes); fetch it again")
    stamp = [VERSION, str(path.resolve()), state.st_size, state.st_mtime_ns]
    memory = index.home() / "footage" / f"{hashlib.sha256(stamp[1].encode()).hexdigest()[:32]}.json"
    try:
        noted = json.loads(memory.read_text(encoding="utf-8"))
        if noted["stamp"] == stamp:
            held = noted["footage"]
            return Footage(**held | {"path": str(path), "keyframes": tuple(held["keyframes"]), "remarks": tuple(held["remarks"])})
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = looked(path)
    aside = memory.with_name(f".{memory.name}.{os.getpid()}.{threading.get_ident()}")
    with contextlib.suppress(OSError):  # then the next process looks again, as where half of it is there after a crash
        memory.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps({"stamp": stamp, "footage": asdict(found)}), encoding="utf-8")
        os.replace(aside, memory)
    return found


def picture_stream(container: InputContainer) -> Any:
    """The video of a file; raises DataError if it has none, as a recording of sound whose only picture is its cover."""
    from av.stream import Disposition

    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            return stream
    kinds = " and ".join(sorted({stream.type for stream in container.streams})) or "no stream"
    raise DataError(f"video {container.name}: holds {kinds} and no moving pictures; take a file with a video stream")


def packets(container: InputContainer, stream: Any) -> Iterator[Any]:
    """The packets of a stream as far as they can be read."""
    from av.error import FFmpegError

    with contextlib.suppress(FFmpegError):  # the file ends in the middle of one
        yield from container.demux(stream)


def decoded(container: InputContainer, stream: Any) -> Iterator[Any]:
    """The frames of a stream in the order in which they are shown; a packet that cannot be decoded stands there itself."""
    from av.error import FFmpegError

    for packet in packets(container, stream):
        try:
            yield from packet.decode()
        except FFmpegError:
            yield packet


def looked(path: Path, formats: str = "") -> Footage:
    """What `probe` finds, without remembering it; `formats` are FFmpeg's names of the only containers to open."""
    import av
    from av.error import FFmpegError

    shown: list[tuple[float, bool, float]] = []
    whole = 0
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        with av.open(str(path), metadata_errors="ignore", options={"format_whitelist": formats} if formats else {}) as container:
            stream = picture_stream(container)
            if stream.width * stream.height > MAX_PIXELS:
                raise DataError(
                    f"video {path}: has frames of {stream.width}x{stream.height}, more than {MAX_PIXELS // 10**6} million pixels"
                )
            for packet in packets(container, stream):
                time = packet.pts if packet.pts is not None else packet.dts
                if time is None or not packet.size or packet.is_corrupt:
                    continue
                whole += 1
                if not packet.is_discard:  # as what an edit of the clip has cut away
                    shown.append((float(time * stream.time_base), packet.is_keyframe, float((packet.duration or 0) * stream.time_base)))
            container.seek(0)
            picture = next((found for found in decoded(container, stream) if isinstance(found, av.VideoFrame)), None)
            rate, shape = float(stream.average_rate or 0), stream.sample_aspect_ratio or 1
            announced, promised = stream.frames, (container.duration or 0) / 1e6
            seeks = container.format.name != "mpeg"  # MPEG-PS has no times of single frames, and loses count at a seek
    except (FFmpegError, OSError) as error:
        raise DataError(f"video {path}: is no video that can be read ({briefly(error)}); fetch it again or leave it out") from None
    if picture is None or not shown:
        raise DataError(f"video {path}: not one frame of it can be decoded; fetch it again or leave it out")
    shown.sort()
    start = shown[0][0]
    broken = announced > whole or promised > shown[-1][0] + shown[-1][2] - start + LATE
    if broken and rate:  # what is seen after the first gap was stored before it, and not all of it
        gaps = [place for place in range(1, len(shown)) if shown[place][0] - shown[place - 1][0] > 1.5 / rate]
        shown = shown[: next((place for place in gaps if place > len(shown) - REORDERED), None)]
    frames, (end, _, last) = len(shown), shown[-1]
    seconds = end - start + (last or ((end - start) / (frames - 1) if frames > 1 else 1 / (rate or 1)))
    fps = rate if abs(frames - seconds * rate) < 0.5 else frames / seconds  # a container's clock may be coarse
    keyframes = [time for time, key, _ in shown if key and seeks]
    width, height = round(picture.width * float(shape)), picture.height
    turns = round(picture.rotation / 90) % 4
    return Footage(
        str(path), sha256, frames, fps, frames / fps, *((height, width) if turns % 2 else (width, height)), turns, start,
        tuple(keyframes[:: len(keyframes) // KEYFRAMES + 1]),
        (f"video {path}: breaks off after {frames} frames ({seconds:.1f} s)",) if broken else (),
    )  # fmt: skip
