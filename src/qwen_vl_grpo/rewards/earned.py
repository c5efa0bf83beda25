"""Format and correctness without the holes of the published rewards: each pays 0 or 1, and nothing but the thing itself.

The published strict format pays for a second closing tag, and the published correctness for an answer outside any format.
A tiny policy finds the first within 150 steps: it learned to end in `</answer>\\n</answer>\\n</answer>`, at full reward.
"""

from collections.abc import Sequence
from typing import Any

from qwen_vl_grpo import answers
from qwen_vl_grpo.rewards.xml import texts


def well_formed_reward(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """1 if the completion is the two blocks and nothing else: each tag once, in order, on a line of its own."""
    return [1.0 if answers.strict_answer(text) is not None else 0.0 for text in texts(completions)]


def solved_reward(
    completions: Sequence[Any], answer: Sequence[str], choices: Sequence[Sequence[str]] | None = None, **_: Any
) -> list[float | None]:
    """1 if the completion is well-formed and its answer is the gold one, as the evaluator counts it."""
    scores: list[float | None] = []
    for row, (text, gold) in enumerate(zip(texts(completions), answer, strict=True)):
        given = answers.strict_answer(text)
        right = given is not None and answers.same(given, gold, tuple((choices[row] if choices else None) or ()))
        scores.append(1.0 if right else 0.0)
    return scores
