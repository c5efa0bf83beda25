"""A reward for what a completion looks like: it is drawn, and the picture is judged.

Pictures are judged while the next batch is drawn, so that a step takes about as long as the slower of the two. A completion that
cannot be drawn or judged has no score: None, never a number that nobody gave.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

    requests: list[RenderRequest | None]
    outcomes: list[Outcome | None]
    """One for each request, in order; None for a request of None."""
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

    def __call__(self, requests: Iterable[RenderRequest | None]) -> Rendered:
        """Each request is taken when a batch has room for it, and what was drawn before is judged meanwhile; None is nothing to draw.

        Raises what makes all pictures impossible: weights that cannot be loaded, a replay without its recording.
        """
        started = time.perf_counter()
        taken: list[RenderRequest | None] = []
        known: dict[RenderRequest, Judgement | None] = {}
        missing = self._missing(requests, taken, known)
        outcomes: dict[RenderRequest | None, Outcome | None] = {None: None}
        render_seconds: list[float] = []
        judge_seconds: list[float] = []
        small: dict[RenderRequest, Image] = {}
        if self.replay_only and (unknown := list(missing)):
            raise JudgeError(
                f"judge.replay: only: {len(unknown)} of {len(known)} completions were never judged under these settings, the first "
                f"for {unknown[0].original!r}; record them with replay: use, or put back the settings that the recording was made with"
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
                if render_seconds:
                    self.generator.rest()
                for call in calls:
                    outcomes |= dict(call.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        outcomes |= {request: judgement for request, judgement in known.items() if judgement}
        remembered = sum(known.get(request) is not None for request in taken if request)
        seconds = time.perf_counter() - started
        return Rendered(taken, [outcomes[request] for request in taken], remembered, seconds, render_seconds, judge_seconds, small)

    def _missing(
        self, requests: Iterable[RenderRequest | None], taken: list[RenderRequest | None], known: dict[RenderRequest, Judgement | None]
    ) -> Iterator[RenderRequest]:
        """What is to be drawn, each request once; `taken` gets all of them, and `known` what is remembered of each."""
        for request in requests:
            taken.append(request)
            if request is not None and request not in known:
                known[request] = self.memory.find([request]).get(request) if self.memory else None
                if known[request] is None:
                    yield request

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
            return [_finite(one) for one in self.judge.judge(pictures)]
        except JudgeError as error:
            if not error.passing:
                raise
            return [error] * len(pictures)


def _finite(said: Judgement | JudgeError) -> Judgement | JudgeError:
    if isinstance(said, Judgement) and not math.isfinite(said.score):
        return JudgeError(f"the judge's score is {said.score}, which is no number; a picture that it cannot score is a JudgeError")
    return said


def _small(image: Image) -> Image:
    copy = image.copy()  # the judge reads the whole one, in its thread
    copy.thumbnail((KEPT_SIDE, KEPT_SIDE))
    return copy


def batches(requests: Iterable[RenderRequest], size: int) -> Iterator[list[RenderRequest]]:
    """Requests of one picture size each, `size` at once while there are so many; no request is taken before the last full batch is done."""
    waiting: dict[Any, list[RenderRequest]] = {}
    for request in requests:
        batch = waiting.setdefault(request.size, [])
        batch.append(request)
        if len(batch) == size:
            yield waiting.pop(request.size)
    yield from waiting.values()


def seed_of(run_seed: int, original: str) -> int:
    """The noise of a prompt: the same for all of its completions, so that they differ by their words alone."""
    return int.from_bytes(hashlib.sha256(f"{run_seed}:{original}".encode()).digest()[:4])


def scores(
    score: RenderedScores, requests: Iterable[RenderRequest | None], most_failures: float, log_metric: Callable[..., Any] | None = None
) -> Rendered:
    """Judge requests, and log how long each part took and what failed.

    Raises RenderError or JudgeError if a larger share than `most_failures` of what was to be drawn fails.
    """
    rendered = score(requests)
    asked = [outcome for outcome in rendered.outcomes if outcome is not None]
    failed = [outcome for outcome in asked if not isinstance(outcome, Judgement)]
    judged = [outcome for outcome in asked if isinstance(outcome, Judgement)]
    if log_metric is not None:
        figures = {
            "rendered/seconds": rendered.seconds,
            "rendered/render_seconds": sum(rendered.render_seconds),
            "rendered/judge_seconds": sum(rendered.judge_seconds),
            "rendered/empty": rendered.outcomes.count(None) / len(rendered.outcomes),
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
    return rendered
