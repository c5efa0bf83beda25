"""The reward of tasks whose completions are drawn and judged: `TextReward` hands the words to the renderer, `StatesReward` what the
policy made of them.

A reward is called with the completions of a step, or of an evaluation. It draws, judges, logs and keeps what people look at; the score is
None for a completion that is empty, and for one that could not be drawn or judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qwen_vl_grpo import answers, placement, policy_states, rendered_parts
from qwen_vl_grpo.images import width
from qwen_vl_grpo.interfaces import Judgement, RenderRequest, Source
from qwen_vl_grpo.policy_states import PolicyStates
from qwen_vl_grpo.rendered_gallery import Entry, RenderedGallery
from qwen_vl_grpo.rendered_sections import PlacementSection, RendererSection
from qwen_vl_grpo.rewards.rendered import scores, seed_of
from qwen_vl_grpo.rewards.xml import texts

if TYPE_CHECKING:
    from PIL.Image import Image

    from qwen_vl_grpo.config import RunConfig
    from qwen_vl_grpo.images.embeddings import Kind

Log = Callable[..., Any] | None


class RenderedReward:
    """The judge's score of what each completion looks like, less what `taken_off` says of (prompt, words).

    Raises the typed error of a part that is not there when it is made, and of too many failures when it is called.
    """

    def __init__(self, config: RunConfig, words: Callable[[str], str], taken_off: Callable[[str, str], float] | None = None):
        self.__name__ = "rendered_reward"
        self._config = config
        self._words = words
        self._taken_off = taken_off
        self._judging = config.judging
        self._rendering = config.renderer or RendererSection()
        self._placing = config.placement or PlacementSection()
        self._score = rendered_parts.build(self._rendering, self._judging, self._placing)
        self._gallery = RenderedGallery(config.run_dir, config.max_steps)
        self._told: list[str] = []
        self.noise_gate = self._judging.noise_gate
        self.noises: list[float | None] = []
        """The standard error of each score of the last call, None where the judge tells none: the trainer knows the groups (groups.py)."""

    @property
    def identities(self) -> tuple[str, str]:
        """Of the renderer and the judge: everything that decides a score beside what is drawn."""
        return self._score.generator.identity, self._score.judge.identity

    def __call__(
        self,
        completions: Sequence[Any],
        original_prompt: Sequence[str],
        log_metric: Log = None,
        log_extra: Log = None,
        trainer_state: Any = None,
        moment: str | None = None,
        **columns: Any,
    ) -> list[float | None]:
        words = [self._words(text) for text in texts(completions)]
        requests = self._requests(words, original_prompt, columns, log_metric)
        rendered = scores(self._score, requests, self._judging.most_failures, log_metric)
        judged = [outcome if isinstance(outcome, Judgement) else None for outcome in rendered.outcomes]
        self.noises = [judgement and judgement.details.get("noise") for judgement in judged]
        off = [self._taken_off(*pair) if self._taken_off else 0.0 for pair in zip(original_prompt, words, strict=True)]
        if log_metric is not None and self._taken_off:
            log_metric("rendered/penalty", sum(off) / len(off))
        if log_extra is not None:
            self._tell(judged, log_extra)
        if trainer_state is not None and trainer_state.global_step % self._placing.empty_cache_every == 0:
            placement.release()
        rewards = [None if judgement is None else judgement.score - less for judgement, less in zip(judged, off, strict=True)]
        drawn, sources = (rendered.requests, rendered.outcomes), self._pictures(columns, len(words))
        entries = list(map(Entry, original_prompt, words, *drawn, rewards, sources))
        if trainer_state is not None:
            self._gallery.keep_step(trainer_state.global_step + 1, entries, rendered.pictures)
        elif moment is not None:
            self._gallery.keep_held_out(moment, entries, rendered.pictures)
        return rewards

    def _requests(
        self, words: Sequence[str], prompts: Sequence[str], columns: Mapping[str, Any], log_metric: Log
    ) -> Iterator[RenderRequest | None]:
        """What is to be drawn, None for a completion without a word."""
        rubrics = columns.get("rubric") or [""] * len(words)
        for prompt, text, size, rubric in zip(prompts, words, sizes(columns, len(words)), rubrics, strict=True):
            yield RenderRequest(prompt, text, seed_of(self._config.seed, prompt), size, rubric=rubric) if text else None

    def _pictures(self, columns: Mapping[str, Any], count: int) -> list[tuple[Source, ...]]:
        """What each completion begins from: nothing here, since the words are all that the renderer sees."""
        return [()] * count

    def _tell(self, judged: Sequence[Judgement | None], log_extra: Callable[..., Any]) -> None:
        """Put scores and raw values into the table of completions, whose columns are the same at every step."""
        self._told = self._told or sorted({name for judgement in judged if judgement for name in judgement.details})
        log_extra("judge_score", [judgement and judgement.score for judgement in judged])
        for name in self._told:
            log_extra(name, [judgement and judgement.details.get(name) for judgement in judged])


class StatesReward(RenderedReward):
    """The same for a renderer that sees the policy's own states of a completion (images/embeddings.py), and perhaps pictures to edit.

    `hold` gives it the policy before its first call. Every completion is encoded whatever the cache knows of it, since what is remembered
    is known by the states themselves; and each process makes as many forward passes as the others (sharding.py).
    """

    def __init__(self, config: RunConfig, kind: Kind):
        """Raises ConfigError, too, for a policy whose states the renderer cannot read; for `kind` see PolicyStates."""
        width.check(config)
        super().__init__(config, lambda text: answers.without_end(text).strip())
        self._kind: Kind = kind
        self._states: PolicyStates | None = None
        self._sources: dict[int, tuple[Image, Source]] = {}

    def hold(self, model: Any, processor: Any) -> None:
        """Take the policy, as the trainer holds it: adapters that learn are seen as they are at each call."""
        self._states = PolicyStates(self._rendering, self._kind, model, processor, frozen=self._config.lora.enabled)
        generator: Any = self._score.generator
        if hasattr(generator, "negative"):
            generator.negative = self._states.negative

    def _requests(
        self, words: Sequence[str], prompts: Sequence[str], columns: Mapping[str, Any], log_metric: Log
    ) -> Iterator[RenderRequest | None]:
        """The same, with states that are made when a request is taken: what was drawn before is judged meanwhile."""
        assert self._states is not None, "hold() gives the policy"
        started, seconds = time.perf_counter(), 0.0
        self._sources.clear()  # pictures are known by their place in memory, which is another row's once they are gone
        sources = self._pictures(columns, len(words))
        states, encoded = self._states.encode(prompts, words, sources, columns.get("completion_ids")), []
        for request, pictures in zip(super()._requests(words, prompts, columns, log_metric), sources, strict=True):
            encoded.append(next(states))
            seconds += time.perf_counter() - started
            yield request and replace(request, sources=pictures, conditioning=encoded[-1].conditioning)
            started = time.perf_counter()
        if log_metric is not None:
            figures = {
                "rendered/embed_seconds": seconds,
                "rendered/tokens": sum(one.tokens for one in encoded) / len(encoded),
                "rendered/dropped_tokens": sum(one.dropped for one in encoded),
            }
            for limit in (512, 1024):
                beyond = [getattr(one, f"beyond_{limit}") / max(1, one.tokens) for one in encoded]
                figures[f"rendered/lost_beyond_{limit}"] = sum(beyond) / len(beyond)
            for name, value in figures.items():
                log_metric(name, value)

    def _pictures(self, columns: Mapping[str, Any], count: int) -> list[tuple[Source, ...]]:
        """The row's pictures, which are to be edited."""
        return [tuple(map(self._source, row or ())) for row in columns.get("images") or [()] * count]

    def _source(self, image: Image) -> Source:
        """A picture by the hash of its pixels, taken once for all completions of a row."""
        if id(image) not in self._sources:
            self._sources[id(image)] = (image, policy_states.source(image))
        return self._sources[id(image)][1]


def sizes(columns: Mapping[str, Any], count: int) -> list[tuple[int, int] | None]:
    """Width and height that each row asks for, None for the renderer's own."""
    sides = zip(columns.get("width") or [0] * count, columns.get("height") or [0] * count, strict=True)
    return [(width, height) if width and height else None for width, height in sides]
