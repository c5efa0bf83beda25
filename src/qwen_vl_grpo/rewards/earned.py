"""Format and correctness without the holes of the published rewards: each pays 0 to 1, and nothing but the thing itself.

The published strict format pays for a second closing tag, and the published correctness for an answer outside any format.
A tiny policy finds the first within 150 steps: it learned to end in `</answer>\\n</answer>\\n</answer>`, at full reward.
"""

from collections.abc import Sequence
from typing import Any

from qwen_vl_grpo import answers
from qwen_vl_grpo.rewards.xml import texts


def tags_reward(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """0.25 for each tag that stands once and in order; minus 0.001 for each character before or after the blocks, at most 0.25."""
    return [_tags(answers.without_end(text)) for text in texts(completions)]


def well_formed_reward(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """1 if the completion is the two blocks and nothing else: each tag once, in order, on a line of its own."""
    return [1.0 if answers.strict_answer(text) is not None else 0.0 for text in texts(completions)]


def solved_reward(
    completions: Sequence[Any],
    answer: Sequence[str],
    choices: Sequence[Sequence[str] | None] | None = None,
    precision: Sequence[float | None] | None = None,
    unit: Sequence[str | None] | None = None,
    **_: Any,
) -> list[float | None]:
    """1 if the completion is well-formed and its answer is the gold one, as the evaluator counts it."""
    nothing = [None] * len(completions)
    rows = zip(texts(completions), answer, choices or nothing, precision or nothing, unit or nothing, strict=True)
    return [1.0 if answers.solves(*row) else 0.0 for row in rows]


def _tags(text: str) -> float:
    score, reached = 0.0, -1
    for tag in answers.TAGS:
        place = text.find(tag)
        if text.count(tag) == 1 and place > reached:
            score, reached = score + 0.25, place
    before = text.partition(answers.TAGS[0])[0] if answers.TAGS[0] in text else ""
    after = text.rpartition(answers.TAGS[-1])[2] if answers.TAGS[-1] in text else ""
    return max(0.0, score - min(0.25, 0.001 * (len(before.strip()) + len(after.strip()))))
