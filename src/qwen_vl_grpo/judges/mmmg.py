"""MMMG's protocol as a judge of pictures that teach: which elements and dependencies of a knowledge graph does a picture really show?

One question a picture, about all items at once, among them decoys that no picture of the graph should show: a judge that says yes to
those says yes too easily. Protocol: MMMGBench/MMMG, commit 98bb915 (arXiv 2506.10963); the prompt says the same in words of ours, and
the published one also gives the annotation of the graph away, by which decoys would be told apart.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

from PIL.Image import Image

from qwen_vl_grpo import knowledge
from qwen_vl_grpo.errors import ConfigError, DataError, JudgeError
from qwen_vl_grpo.interfaces import Judgement, RenderRequest
from qwen_vl_grpo.judges import checklist, prompts
from qwen_vl_grpo.judges.asking import AskingJudge, noise
from qwen_vl_grpo.judges.questions import Question
from qwen_vl_grpo.judges.replies import Reply
from qwen_vl_grpo.knowledge import KnowledgeGraph
from qwen_vl_grpo.rendered_sections import JudgeSection
from qwen_vl_grpo.rewards import load_function

MOST_TOKENS = 2048
"""Of an answer; the published evaluation's limit."""


class KnowledgeJudge(AskingJudge):
    """Scores a picture by the knowledge graph in `request.rubric` (knowledge.read); it sees neither prompt nor completion.

    The score is the Dice overlap of what was seen with the graph. Details: the shares of `elements` and `dependencies` that were seen;
    `fidelity`, MMMG's own figure from the same answers; `yes_bias`, the share of decoys that were seen, which no score counts; `votes`
    and, with several, `noise`; with judge.region_counter `readability` and `mmmg`, fidelity x readability. Several votes are averaged.
    """

    def __init__(self, section: JudgeSection, device: Any = None):
        self._prompt = prompts.read("mmmg")
        self._section = section
        super().__init__(section, (self._prompt,), region_counter=section.region_counter)

    def check(self) -> None:
        """Raise JudgeError if the endpoint cannot be asked, and ConfigError if there is no such region counter."""
        _ = self._regions
        super().check()

    def judged(self, request: RenderRequest, image: Image) -> Judgement:
        """The judgement of one picture; raises JudgeError for a request without a graph, too."""
        try:
            graph = knowledge.read(request.rubric)
        except DataError as error:
            raise JudgeError(f"request {request.original[:80]!r}: {error}") from None
        votes = self._section.votes
        question = Question(
            self._prompt.text,
            (image, "The items:\n" + "\n".join(f"* {item}" for item in shuffled(graph))),
            read=partial(seen_of, graph),
            votes=votes,
            temperature=0.0 if votes == 1 else 1.0,
            max_tokens=MOST_TOKENS,
        )
        replies = self.endpoint.ask(question)
        details = {name: statistics.fmean(values) for name, values in _details(graph, replies).items() if values}
        dice = [knowledge.dice(graph, reply.parsed) for reply in replies]
        details |= {"votes": float(len(replies))} | self._readable(image, details["fidelity"]) | noise(dice)
        return Judgement(statistics.fmean(dice), details, checklist.listed(replies[0].text))

    def _readable(self, image: Image, fidelity: float) -> dict[str, float]:
        readability = knowledge.readability(self._regions(image)) if self._regions else None
        return {} if readability is None else {"readability": readability, "mmmg": fidelity * readability}

    @cached_property
    def _regions(self) -> Callable[[Image], int | None] | None:
        counter = self._section.region_counter
        return load_function(counter, ConfigError) if counter else None


def shuffled(graph: KnowledgeGraph) -> list[str]:
    """All items of a graph, decoys among them, in an order that is the same for each of its pictures and tells nothing."""
    items = [*graph.elements, *(dependency.text for dependency in graph.dependencies), *graph.decoys]
    random.Random(graph.to_json()).shuffle(items)
    return items


def seen_of(graph: KnowledgeGraph, text: str) -> dict[str, bool]:
    """Item -> whether an answer says that it is seen.

    Raises ValueError if one has no answer; decoys and dependencies that cannot be earned may go without.
    """
    seen = checklist.read(text, shuffled(graph))
    left_out = [item for item in (*graph.elements, *(dependency.text for dependency in graph.sound)) if item not in seen]
    if left_out:
        raise ValueError(f"no yes or no for {len(left_out)} items, the first {left_out[0]!r}")
    return seen


def _details(graph: KnowledgeGraph, replies: Sequence[Reply]) -> dict[str, list[float]]:
    """Name -> a value for each vote, or for each answer about a single item."""
    whole = [(reply.text, reply.parsed) for reply in replies]
    dependencies = [dependency.text for dependency in graph.dependencies]
    return {
        "elements": [float(seen[element]) for _, seen in whole for element in graph.elements],
        "dependencies": [
            float(seen[sound.text] and all(seen[end] for end in sound.ends or ())) for _, seen in whole for sound in graph.sound
        ],
        "fidelity": [knowledge.fidelity(*checklist.published(text, graph.elements, dependencies)) for text, _ in whole],
        "yes_bias": [float(seen[decoy]) for _, seen in whole for decoy in graph.decoys if decoy in seen],
    }
