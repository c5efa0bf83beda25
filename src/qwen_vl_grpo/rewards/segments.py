"""How much of the time that a question asks for an answer names."""

from collections.abc import Sequence
from typing import Any

from qwen_vl_grpo import answers, segments
from qwen_vl_grpo.rewards.xml import texts


def segments_reward(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float | None]:
    """IoU of the stretches of time if the completion is well-formed and its answer is a list of `start to end`, in seconds; else 0."""
    return [score(text, gold) for text, gold in zip(texts(completions), answer, strict=True)]


def score(completion: str, gold: str) -> float:
    """Intersection over union, in seconds, of the segments that a completion names and of the gold ones."""
    given, right = segments.read(answers.thought_answer(completion) or ""), segments.read(gold)
    return segments.overlap(given, right) if given and right else 0.0
