"""What judging while drawing is worth: a renderer of 200 ms, a judge of 1.6 s, 32 pictures, 8 calls at once; and what the cache is worth.

PYTHONPATH=src:. python -m benchmarks.streaming            # prints the table of docs/rendered_rewards.md, exit code 1 outside the bounds
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from qwen_vl_grpo.interfaces import Judgement, RenderRequest
from qwen_vl_grpo.judges.cache import JudgementCache
from qwen_vl_grpo.rewards.rendered import RenderedScores

SAMPLES, CONCURRENCY = 32, 8
RENDER, JUDGE = 0.2, 1.6
PROCESSES = 8


class Renderer:
    """Takes 200 ms for each picture; the pictures differ."""

    identity = "200 ms"
    batch_size = 1

    def render(self, requests: Sequence[RenderRequest]) -> list:
        time.sleep(RENDER * len(requests))
        return [Image.new("RGB", (64, 64), (request.seed % 256, request.seed // 256, 0)) for request in requests]

    def rest(self) -> None:
        pass


class Judge:
    """Takes 1.6 s for a picture, as a service over the network does."""

    identity = "1.6 s"
    batch_size = 1
    concurrency = CONCURRENCY

    def judge(self, pictures: Sequence) -> list:
        time.sleep(JUDGE)
        return [Judgement(image.getpixel((0, 0))[0] / 255) for _, image in pictures]


def requests(prompt: str = "a cat", count: int = SAMPLES) -> list[RenderRequest]:
    return [RenderRequest(prompt, f"completion {number}", number) for number in range(count)]


def seconds(work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def one_by_one() -> None:
    renderer, judge = Renderer(), Judge()
    for request in requests():
        judge.judge([(request, renderer.render([request])[0])])


def drawn_then_judged() -> None:
    renderer = Renderer()
    renderer.batch_size = SAMPLES  # one batch, so that no judgement starts before the last picture
    RenderedScores(renderer, Judge())(requests())


def write(path: Path, process: int) -> None:
    """One of eight processes: 32 judgements, each kept by itself as it comes."""
    cache = JudgementCache(path, Renderer.identity, Judge.identity)
    for request in requests(f"prompt {process}"):
        cache.keep([(request, f"{process}/{request.seed}", Judgement(request.seed / SAMPLES))])


def shared(path: Path) -> tuple[int, float]:
    """Judgements that eight processes wrote into one file and that are there afterwards, and the seconds that it took."""
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=write, args=(path, process)) for process in range(PROCESSES)]
    started = time.perf_counter()
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    took = time.perf_counter() - started
    wanted = [request for process in range(PROCESSES) for request in requests(f"prompt {process}")]
    return len(JudgementCache(path, Renderer.identity, Judge.identity).find(wanted)), took


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = JudgementCache(Path(folder) / "judgements.sqlite", Renderer.identity, Judge.identity)
        score = RenderedScores(Renderer(), Judge(), cache)
        streamed = seconds(lambda: score(requests()))
        again = seconds(lambda: score(requests()))
        batched, single = seconds(drawn_then_judged), seconds(one_by_one)
        kept, took = shared(Path(folder) / "shared.sqlite")
    least = max(SAMPLES * RENDER, SAMPLES * JUDGE / CONCURRENCY) + RENDER + JUDGE
    print(f"| {SAMPLES} pictures, renderer {RENDER:g} s, judge {JUDGE:g} s, {CONCURRENCY} at once | seconds |")
    print("|---|---:|")
    print(f"| one by one | {single:.2f} |")
    print(f"| all drawn, then judged | {batched:.2f} |")
    print(f"| judged while drawn | {streamed:.2f} |")
    print(f"| 1.1 x (the slower part, and one of each) | {1.1 * least:.2f} |")
    print(f"| the same again, from the cache ({streamed / again:,.0f} times as fast) | {again:.4f} |")
    print(f"\n{PROCESSES} processes wrote {PROCESSES * SAMPLES} judgements into one file in {took:.1f} s; {kept} are there.")
    sys.exit(0 if streamed <= 1.1 * least and streamed >= 50 * again and kept == PROCESSES * SAMPLES else 1)


if __name__ == "__main__":
    main()
