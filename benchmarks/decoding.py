"""How fast clips become frames, with 2 processes, against bare PyAV that makes the same choice of the same clips; make bench-decoding.

PYTHONPATH=src:. OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks.decoding [clips] [rounds]

Bare PyAV is tried in the two ways in which people write it: decoding through to the last frame that is wanted, and seeking to each of
them. The ratio is against the faster way of each round. Clips are H.264 of 640x360 and 10 s at 24 frames a second, a key frame every
2 s, moving soft textures with noise; the frames that are wanted are 8, resized to 576 patches at most, as the config's defaults have it.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy
from PIL import Image

from demo import clips
from qwen_vl_grpo import decoding, footage, index, video
from qwen_vl_grpo.video_sections import VideoSection

SECTION, PATCH, PROCESSES = VideoSection(), 28, 2
SECONDS, FPS, WIDTH, HEIGHT = 10, 24, 640, 360


def textured(seed: int) -> Any:
    """The frames of one clip; the draw is seeded."""
    draw = numpy.random.default_rng(seed)
    soft = Image.fromarray(draw.integers(0, 256, (24, 40, 3), dtype=numpy.uint8)).resize((WIDTH * 2, HEIGHT * 2), Image.Resampling.BICUBIC)
    wide = numpy.asarray(soft, numpy.int16)
    for place in range(SECONDS * FPS):
        down, right = place * 2 % HEIGHT, place * 5 % WIDTH
        shown = wide[down : down + HEIGHT, right : right + WIDTH] + draw.integers(-4, 5, (HEIGHT, WIDTH, 1), dtype=numpy.int16)
        yield numpy.clip(shown, 0, 255).astype(numpy.uint8)


def through(path: str) -> int:
    """Bare PyAV, decoding every frame up to the last one that is wanted."""
    wanted, size = _wanted(path)
    seen = []
    with av.open(path) as file:
        for place, frame in enumerate(file.decode(video=0)):
            if place in wanted:
                seen.append(frame.to_ndarray(format="rgb24", width=size[0], height=size[1]))
            if len(seen) == len(wanted):
                break
    return len(numpy.stack(seen))


def seeking(path: str) -> int:
    """Bare PyAV, seeking to each frame that is wanted."""
    wanted, size = _wanted(path)
    seen = []
    with av.open(path) as file:
        stream = file.streams.video[0]
        for place in sorted(wanted):
            file.seek(round(place / FPS / (stream.time_base or 1)), stream=stream)
            for frame in file.decode(stream):
                if frame.time is not None and frame.time > (place - 0.5) / FPS:
                    seen.append(frame.to_ndarray(format="rgb24", width=size[0], height=size[1]))
                    break
    return len(numpy.stack(seen))


def ours(path: str, keep: bool = False) -> int:
    """This project's way: probed, chosen and read, and kept for the next epoch if that is asked for."""
    found = video.probe(path)
    places = video.choose(found, SECTION, patch=PATCH)
    return len(video.read(found, places, SECTION, PATCH, video.frames_cache(SECTION) if keep else None).frames)


def _wanted(path: str) -> tuple[set[int], tuple[int, int]]:
    found = video.probe(path)  # remembered, so that it costs bare PyAV the reading of a small file
    places = video.choose(found, SECTION, patch=PATCH)
    return set(places), video.size(found, len(places), SECTION, PATCH)


def timed(way: Callable[[str], int], path: str) -> tuple[int, float]:
    """Frames of a clip and the CPU seconds that they took."""
    started = time.process_time()
    return way(path), time.process_time() - started


def _median(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({', '.join(f'{value:{form}}'.strip() for value in values)})"


def decodes(path: str) -> int:
    """How many frames are decoded to read a clip again."""
    seen, published = [], footage.decoded

    def counted(*given: Any) -> Any:
        for item in published(*given):
            seen.append(item)
            yield item

    decoding.decoded = footage.decoded = counted
    try:
        ours(path, keep=True)
    finally:
        decoding.decoded = footage.decoded = published
    return len(seen)


def main(count: int = 16, rounds: int = 5) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRPO_HOME"] = f"{folder}/home"
        measure(Path(folder), count, rounds)


def measure(folder: Path, count: int, rounds: int) -> None:
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        paths = [str(clips.write(folder / f"{name}.mp4", textured(name), FPS, group=2 * FPS, quality=20)) for name in range(count)]
        ways: dict[str, Callable[[str], int]] = {
            "bare PyAV, decoding through": through, "bare PyAV, seeking": seeking, "ours, known files": ours,
            "ours, first epoch": partial(ours, keep=True), "ours, second epoch": partial(ours, keep=True),
        }  # fmt: skip
        rates: dict[str, list[float]] = {name: [] for name in ways}
        costs: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):  # interleaved, so that a busy moment of the machine falls on all
            for name, way in ways.items():
                if name == "ours, first epoch":
                    shutil.rmtree(index.home())
                started = time.perf_counter()
                frames, cpu = map(sum, zip(*pool.map(partial(timed, way), paths, chunksize=1), strict=True))
                rates[name].append(frames / (time.perf_counter() - started))
                costs[name].append(cpu / frames)
        size = sum(Path(path).stat().st_size for path in paths) / 2**20
        print(f"{count} clips, {size:.0f} MiB, {os.cpu_count()} CPUs, {PROCESSES} processes, {rounds} interleaved rounds", end=", ")
        print(f"PyAV {av.__version__}, decoder {'torchcodec' if decoding.torchcodec() else 'PyAV'}, load {os.getloadavg()[0]:.1f}")
        for name in ways:
            cost = _median([1e3 * cost for cost in costs[name]], "6.2f")
            print(f"{name:28} {_median(rates[name], '8.1f')} frames/s, {cost} ms of CPU a frame")
        through_, seeking_ = list(ways)[:2]
        for name in list(ways)[2:]:
            pairs = zip(rates[name], map(max, zip(rates[through_], rates[seeking_], strict=True)), strict=True)
            less = zip(costs[name], map(min, zip(costs[through_], costs[seeking_], strict=True)), strict=True)
            wall, cpu = ([rate / bare for rate, bare in pairs], [bare / cost for cost, bare in less])
            print(f"{name}, speed over the faster bare PyAV: {_median(wall, '.2f')} by the clock, {_median(cpu, '.2f')} by CPU time")
        print(f"frames decoded in the second epoch: {sum(map(decodes, paths))}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
