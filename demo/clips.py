"""Real video files with moving shapes, written with PyAV: what the tests read and what the demonstration learns from.

What is written is what a player shows: for a turned clip the pictures are stored turned, with the note that turns them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy

STEPS = {"right": (0, 1), "left": (0, -1), "down": (1, 0), "up": (-1, 0)}
"""What a shape does in one frame: rows down, columns to the right."""


def write(
    path: Path | str,
    frames: Iterable[numpy.ndarray],
    fps: float = 8.0,
    *,
    times: Sequence[float] | None = None,
    rotation: int = 0,
    group: int = 12,
    codec: str = "libx264",
    quality: int = 8,
) -> Path:
    """Write frames, uint8 (height, width, 3), and return the path; its suffix names the container.

    `times` are the seconds at which each frame begins (a variable frame rate); without it they are `fps` a second apart. `rotation` (90,
    180, 270) stores the pictures turned; a key frame comes every `group` frames. `quality` is that of H.264, whose files
    of the net are near 23 and which keeps odd sizes in yuv444p alone.
    """
    path, every = Path(path), Fraction(fps).limit_denominator(1001)
    path.parent.mkdir(parents=True, exist_ok=True)
    fast = {"movflags": "+faststart"} if path.suffix == ".mp4" else {}  # the index comes first, so that half a file is half a clip
    with av.open(str(path), "w", options=fast) as file:
        stream = file.add_stream(codec, rate=every)
        assert isinstance(stream, av.VideoStream)
        for place, picture in enumerate(frames):
            stored = numpy.ascontiguousarray(numpy.rot90(picture, rotation // 90))
            if not place:
                stream.height, stream.width = stored.shape[:2]
                stream.pix_fmt = "yuv444p" if codec == "libx264" and (stream.height % 2 or stream.width % 2) else "yuv420p"
                stream.codec_context.gop_size, stream.codec_context.thread_count = group, 1
                stream.codec_context.time_base = Fraction(1, 90_000) if times else 1 / every
                stream.options = {"crf": str(quality), "x264-params": f"scenecut=0:keyint={group}"} if codec == "libx264" else {}
                stream.set_display_rotation(-rotation)
            frame = av.VideoFrame.from_ndarray(stored, format="rgb24")
            frame.time_base = stream.codec_context.time_base
            frame.pts = round(times[place] * 90_000) if times else place
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def write_sound(path: Path | str, seconds: float = 1.0) -> Path:
    """Write a file of silence without a picture, in the container of its suffix."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("aac", rate=16_000)
        assert isinstance(stream, av.AudioStream)
        for start in range(0, round(seconds * 16_000), 1024):
            frame = av.AudioFrame.from_ndarray(numpy.zeros((1, 1024), numpy.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 16_000, start
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return Path(path)


def cut(path: Path, share: float) -> Path:
    """Leave the first part of a file's bytes, as a download that broke off does."""
    content = path.read_bytes()
    path.write_bytes(content[: round(len(content) * share)])
    return path


def counting(frames: int, height: int = 48, width: int = 64) -> list[numpy.ndarray]:
    """Frames that tell their own number (`number` reads it): twelve bright or dark squares, and a red corner at the top left."""
    pictures = []
    for place in range(frames):
        picture = numpy.zeros((height, width, 3), numpy.uint8)
        for bit in range(12):
            if place >> bit & 1:
                row, column = divmod(bit, 4)
                picture[_part(height, 4, row + 1), _part(width, 4, column)] = 255
        picture[_part(height, 4, 0), _part(width, 4, 0)] = (255, 0, 0)
        pictures.append(picture)
    return pictures


def number(picture: numpy.ndarray) -> int:
    """Which of `counting`'s frames a picture of any size shows; raises ValueError if its corner is not at the top left."""
    height, width = picture.shape[:2]
    red, green, _ = picture[height // 8, width // 8].astype(int)
    if red < 128 or green > 128:
        raise ValueError("the red corner is not at the top left: the picture is turned, or is none of these")
    centres = [(height * (2 * (bit // 4) + 3) // 8, width * (2 * (bit % 4) + 1) // 8) for bit in range(12)]
    return sum(1 << bit for bit, (row, column) in enumerate(centres) if picture[row, column].mean() > 128)


def moving(motions: Sequence[str], each: int = 4, size: int = 56, shape: int = 12, step: int = 4) -> list[numpy.ndarray]:
    """A bright square in the middle that does one motion of STEPS after the other, `each` frames of `step` pixels."""
    row = column = (size - shape) / 2
    pictures = []
    for motion in motions:
        down, right = STEPS[motion]
        for _ in range(each):
            row, column = ((place + step * by) % size for place, by in ((row, down), (column, right)))
            picture = numpy.zeros((size, size, 3), numpy.uint8)
            rows, columns = ((numpy.arange(shape) + round(place)) % size for place in (row, column))
            picture[numpy.ix_(rows, columns)] = (255, 220, 80)
            pictures.append(picture)
    return pictures


def _part(length: int, parts: int, place: int) -> slice:
    return slice(length * place // parts, length * (place + 1) // parts)
