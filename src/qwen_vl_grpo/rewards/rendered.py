"""A reward for what a completion looks like: it is drawn, and the picture is judged.

Pictures are judged while the next batch is drawn, so that a step takes about as long as the slower of the two. A completion that
cannot be drawn or judged has no score: None, never a number that nobody gave.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from qwen_vl_grpo.errors import JudgeError, RenderError
from qwen_vl_grpo.interfaces import ImageGenerator, Judge, Judgement, RenderRequest

if TYPE_CHECKING:
    from PIL.Image import Image

Outcome = Judgement | RenderError | JudgeError

KEPT_SIDE = 320
"""Pixels of the longest side of a picture that is handed back: a step may draw hundreds, and only people look at them."""


class Judgements(Protocol):
    """A memory of judgements (judges/cache.py)."""

    def find(self, requests: Sequence[RenderRequest]) -> Mapping[RenderRequest, Judgement]: ...

    def same_picture(self, request: RenderRequest, picture: str) -> Judgement | None: ...

    def keep(self, judged: Sequence[tuple[RenderRequest, str, Judgement]]) -> None: ...


@dataclass(frozen=True)
class Rendered:
    """What one call came to."""

    outcomes: list[Outcome]
    """One for each request, in order."""
    remembered: int
    """Requests that nothing was drawn for."""
    seconds: float
    render_seconds: list[float]
    """Of each batch."""
    judge_seconds: list[float]
    """Of each call, with all that the judge waits for."""
    pictures: dict[RenderRequest, Image]
    """Small copies of what was drawn; what was remembered has none."""


@dataclass
class RenderedScores:
    """Draws and judges requests, with every judgement remembered in `memory`.

    With `replay_only` nothing is drawn: a request that is not remembered is a JudgeError.
    """

    generator: ImageGenerator
    judge: Judge
    memory: Judgements | None = None
    replay_only: bool = False

    def __call__(self, requests: Sequence[RenderRequest]) -> Rendered:
        """Raises what makes all pictures impossible: weights that cannot be loaded, a replay without its recording."""
        started = time.perf_counter()
        wanted = list(dict.fromkeys(requests))
        outcomes: dict[RenderRequest, Outcome] = dict(self.memory.find(wanted)) if self.memory else {}
        missing = [request for request in wanted if request not in outcomes]
        remembered = sum(request in outcomes for request in requests)
        render_seconds: list[float] = []
        judge_seconds: list[float] = []
        small: dict[RenderRequest, Image] = {}
        if missing and self.replay_only:
            raise JudgeError(
                f"judge.replay: only: {len(missing)} of {len(wanted)} completions were never judged under these settings, the first "
                f"for {missing[0].original!r}; record them with replay: use, or put back the settings that the recording was made with"
            )
        with ThreadPoolExecutor(self.judge.concurrency, "judge") as pool:
            calls: list[Future[list[tuple[RenderRequest, Outcome]]]] = []
            try:
                for batch in batches(missing, self.generator.batch_size):
                    begun = time.perf_counter()
                    drawn = self.generator.render(batch)
                    render_seconds.append(time.perf_counter() - begun)
                    pictures = [(request, image) for request, image in zip(batch, drawn, strict=True) if not isinstance(image, RenderError)]
                    outcomes |= {request: image for request, image in zip(batch, drawn, strict=True) if isinstance(image, RenderError)}
                    for start in range(0, len(pictures), self.judge.batch_size):
                        part = pictures[start : start + self.judge.batch_size]
                        calls.append(pool.submit(self._judged, part, judge_seconds))
                    small |= {request: _small(image) for request, image in pictures}
                if missing:
                    self.generator.rest()
                for call in calls:
                    outcomes |= dict(call.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        in_order = [outcomes[request] for request in requests]
        return Rendered(in_order, remembered, time.perf_counter() - started, render_seconds, judge_seconds, small)

    def _judged(self, pictures: Sequence[tuple[RenderRequest, Image]], seconds: list[float]) -> list[tuple[RenderRequest, Outcome]]:
        """Judge some pictures and remember what was said, in a thread."""
        started = time.perf_counter()
        hashes = {request: hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest() for request, image in pictures}
        outcomes: dict[RenderRequest, Outcome] = {}
        for request, _ in pictures:
            if self.memory and (known := self.memory.same_picture(request, hashes[request])):
                outcomes[request] = known
        left = [(request, image) for request, image in pictures if request not in outcomes]
        if left:
            outcomes |= dict(zip((request for request, _ in left), self._asked(left), strict=True))
        if self.memory:
            earned = [(request, hashes[request], said) for request, said in outcomes.items() if isinstance(said, Judgement)]
            self.memory.keep(earned)
        seconds.append(time.perf_counter() - started)
        return list(outcomes.items())

    def _asked(self, pictures: Sequence[tuple[RenderRequest, Image]]) -> Sequence[Judgement | JudgeError]:
        try:
            return self.judge.judge(pictures)
        except JudgeError as error:
            if not error.passing:
                raise
            return [error] * len(pictures)


def _small(image: Image) -> Image:
    copy = image.copy()  # the judge reads the whole one, in its thread
    copy.thumbnail((KEPT_SIDE, KEPT_SIDE))
    return copy


def batches(requests: Sequence[RenderRequest], size: int) -> Iterator[list[RenderRequest]]:
    """Requests of one picture size each, at most `size` at once, in order of first appearance."""
    by_size: dict[Any, list[RenderRequest]] = {}
    for request in requests:
        by_size.setdefault(request.size, []).append(request)
    for group in by_size.values():
        for start in range(0, len(group), size):
            yield group[start : start + size]


def seed_of(run_seed: int, original: str) -> int:
    """The noise of a prompt: the same for all of its completions, so that they differ by their words alone."""
    return int.from_bytes(hashlib.sha256(f"{run_seed}:{original}".encode()).digest()[:4])


def scores(
    score: RenderedScores, requests: Sequence[RenderRequest | None], most_failures: float, log_metric: Callable[..., Any] | None = None
) -> tuple[list[Outcome | None], Mapping[RenderRequest, Image]]:
    """Judge requests and log how long each part took and what failed; returns what each came to, and small copies of what was drawn.

    A request of None is a completion without anything to draw, and comes to None. Raises RenderError or JudgeError if a larger share than
    `most_failures` of the others fails.
    """
    asked = [request for request in requests if request is not None]
    rendered = score(asked)
    failed = [outcome for outcome in rendered.outcomes if not isinstance(outcome, Judgement)]
    judged = [outcome for outcome in rendered.outcomes if isinstance(outcome, Judgement)]
    if log_metric is not None:
        figures = {
            "rendered/seconds": rendered.seconds,
            "rendered/render_seconds": sum(rendered.render_seconds),
            "rendered/judge_seconds": sum(rendered.judge_seconds),
            "rendered/empty": (len(requests) - len(asked)) / len(requests),
            "rendered/failed": len(failed) / max(1, len(asked)),
            "rendered/remembered": rendered.remembered / max(1, len(asked)),
        }
        for name, seconds in (("render", rendered.render_seconds), ("judge", rendered.judge_seconds)):
            if seconds:
                figures[f"rendered/{name}_latency"] = statistics.median(seconds)
        for name in {name for outcome in judged for name in outcome.details}:
            figures[f"judge/{name}"] = statistics.fmean(outcome.details[name] for outcome in judged if name in outcome.details)
        if told := getattr(score.judge, "figures", None):
            figures |= {f"judge/{name}": value for name, value in told().items()}
        for name, value in figures.items():
            log_metric(name, value)
    if len(failed) > most_failures * len(asked):
        raise type(failed[0])(
            f"{len(failed)} of {len(asked)} pictures could not be drawn or judged, and judge.most_failures allows {most_failures:.0%}; "
            f"the first: {failed[0]}"
        )
    outcomes = iter(rendered.outcomes)
    return [None if request is None else next(outcomes) for request in requests], rendered.pictures
