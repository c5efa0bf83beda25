"""Answers of runs whose completions are drawn: the picture of each for the person who asked, and what the judge says of it.

Nothing is remembered, since a judgement from the cache has no picture. No part is there twice: runs of the same sections share renderer
and judge, and the policy that answered is itself the encoder of its states. Without a judge there are pictures, and the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from qwen_vl_grpo import dataset, policy_states, rendered_gallery, rendered_parts
from qwen_vl_grpo.errors import DataError, JudgeError, RenderError
from qwen_vl_grpo.interfaces import ImageGenerator, RenderRequest
from qwen_vl_grpo.journal import Record
from qwen_vl_grpo.loading import RunPolicy
from qwen_vl_grpo.policy_states import PolicyStates
from qwen_vl_grpo.rendered_sections import JudgeSection, RendererSection
from qwen_vl_grpo.rewards.rendered import RenderedScores, batches, seed_of

if TYPE_CHECKING:
    from PIL.Image import Image

NO_GRAPH = "no knowledge graph comes with this prompt, and judge.name mmmg looks for its parts in the picture"


@dataclass(frozen=True)
class Drawn:
    """What an answer looks like, and the verdict in words, or why there is none."""

    picture: Image | None
    verdict: str


class Unscored:
    """Stands in for a judge that cannot be asked: every picture gets the reason in place of a score."""

    identity, batch_size, concurrency = "nobody", 64, 1

    def __init__(self, why: str):
        self.why = why

    def judge(self, pictures: Sequence[tuple[RenderRequest, Image]]) -> list[Any]:
        return [JudgeError(self.why) for _ in pictures]


class DrawnAnswers:
    """Draws what runs answered; renderers stay loaded for as long as a picked run wants them (`only`)."""

    def __init__(self) -> None:
        self._parts: dict[str, RenderedScores] = {}
        self._unreached: dict[str, str | None] = {}
        self._states: dict[RunPolicy, PolicyStates] = {}

    def only(self, runs: Sequence[RunPolicy]) -> None:
        """Let go of every policy, and of renderers and judges that none of the runs has."""
        self._states.clear()
        wanted = {_key(run) for run in runs}
        self._parts = {key: score for key, score in self._parts.items() if key in wanted}

    def look_again(self) -> None:
        """A judge that was not there may be by now."""
        self._unreached.clear()

    def draw(self, run: RunPolicy, model: Any, answered: Sequence[tuple[Record, Sequence[Image]]]) -> list[Drawn]:
        """Draw records of a run, each beside the pictures that it was asked with; `model` is the policy that answered, as it did.

        Raises the typed error of a renderer that cannot be had; what is wrong with one answer alone is its verdict.
        """
        requests = self._requests(run, model, answered)
        score = self._score(run)
        with self._guided(run, score.generator):
            rendered = score([request for request in requests if isinstance(request, RenderRequest)])
        outcomes = iter(rendered.outcomes)
        drawn = []
        for request in requests:
            if isinstance(request, DataError):
                drawn.append(Drawn(None, f"no picture: {request}"))
            else:
                said = rendered_gallery.Entry(request.original, request.completion, request, next(outcomes), None).said
                drawn.append(Drawn(rendered.pictures.get(request), rendered_gallery.verdict(said)))
        return drawn

    def pictures(
        self, run: RunPolicy, model: Any, answered: Sequence[tuple[Record, Sequence[Image]]]
    ) -> list[tuple[RenderRequest, Image | RenderError] | DataError]:
        """The same as they were drawn, in full size and with no judge asked; a DataError is an answer with nothing to draw."""
        requests = self._requests(run, model, answered)
        generator = self.renderer(run)
        drawn: dict[RenderRequest, Image | RenderError] = {}
        wanted = list(dict.fromkeys(request for request in requests if isinstance(request, RenderRequest)))
        with self._guided(run, generator):
            for batch in batches(wanted, generator.batch_size):
                drawn |= zip(batch, generator.render(batch), strict=True)
            generator.rest()
        return [request if isinstance(request, DataError) else (request, drawn[request]) for request in requests]

    def renderer(self, run: RunPolicy) -> ImageGenerator:
        """The run's renderer, whose weights are there; raises the typed error of one that cannot be had."""
        return self._built(run).generator

    def _requests(self, run: RunPolicy, model: Any, answered: Sequence[tuple[Record, Sequence[Image]]]) -> list[RenderRequest | DataError]:
        requests: list[RenderRequest | DataError] = []
        for record, pictures in answered:
            try:
                if not record["answer"]:
                    raise DataError("there was nothing to draw")
                requests.append(self._request(run, model, record, pictures))
            except DataError as error:
                requests.append(error)
        return requests

    @contextmanager
    def _guided(self, run: RunPolicy, generator: Any) -> Iterator[None]:
        """Have the policy encode the negative prompt while its pictures are drawn, where the renderer asks for that."""
        needs_negative = run in self._states and hasattr(generator, "negative")
        if needs_negative:
            generator.negative = self._states[run].negative
        try:
            yield
        finally:
            if needs_negative:
                generator.negative = None  # it would keep the policy in memory when other runs are picked

    def _request(self, run: RunPolicy, model: Any, record: Record, pictures: Sequence[Image]) -> RenderRequest:
        """One answer as a run's reward asks for it: noise, and where its renderer sees states the policy's own and the sources."""
        prompt, words = record["prompt"], record["answer"]
        request = RenderRequest(prompt, words, seed_of(run.config.seed, prompt))
        if run.task is None or run.task.states is None:
            return request
        if run not in self._states:
            kind: Any = run.task.states
            self._states[run] = PolicyStates(_sections(run)[0], kind, model, run.processor, frozen=True)
        sources = tuple(policy_states.source(dataset.fit(picture, run.processor, run.config)) for picture in pictures)
        (encoded,) = self._states[run].encode([prompt], [words], [sources])
        return replace(request, sources=sources, conditioning=encoded.conditioning)

    def _score(self, run: RunPolicy) -> RenderedScores:
        """The run's renderer and its judge, or what stands in for one that has nothing to go by or cannot be reached."""
        key, score = _key(run), self._built(run)
        if _sections(run)[1].name == "mmmg":
            return replace(score, judge=Unscored(NO_GRAPH))
        if key not in self._unreached:
            self._unreached[key] = _unreached(score.judge)
        why = self._unreached[key]
        return replace(score, judge=Unscored(why)) if why else score

    def _built(self, run: RunPolicy) -> RenderedScores:
        key = _key(run)
        if key not in self._parts:
            self._parts[key] = rendered_parts.by_hand(*_sections(run))
        return self._parts[key]


def is_drawn(run: RunPolicy) -> bool:
    """Whether the run's completions are prompts for a renderer that its config names, or that its task has."""
    task = run.task
    return task is not None and "rendered_reward" in task.own_rewards and (run.config.renderer is not None or task.states is None)


def _sections(run: RunPolicy) -> tuple[RendererSection, JudgeSection]:
    return run.config.renderer or RendererSection(), run.config.judge or JudgeSection()


def _key(run: RunPolicy) -> str:
    return "\n".join(section.model_dump_json() for section in _sections(run))


def _unreached(judge: Any) -> str | None:
    """Why a judge cannot be asked, None where it can; one of the user's own may have no check."""
    try:
        judge.check() if hasattr(judge, "check") else None
    except JudgeError as error:
        return str(error)
    return None
