"""The format of the tasks on clips: `<think>…</think> <answer>…</answer>`, as documented and without its holes."""

from collections.abc import Sequence
from typing import Any

from qwen_vl_grpo import answers
from qwen_vl_grpo.rewards.xml import texts

TAGS_PAY, ORDER_PAYS = 0.3, 0.4
"""For each pair of tags, and for their order; the documented values."""


def video_format_reward_func(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """0.3 for a think block, 0.3 for an answer block, 0.4 if the first of the one ends before the first of the other begins."""
    return [_documented(text) for text in texts(completions)]


def think_format_reward(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """0.3 for each pair of tags that stands once and in order, 0.4 if the completion is the two blocks and nothing else."""
    return [_strict(answers.without_end(text)) for text in texts(completions)]


def first_block(text: str, tag: str) -> tuple[int, int] | None:
    """Where the text between the first <tag> and the first </tag> behind it starts and ends."""
    start = text.find(f"<{tag}>")
    end = text.find(f"</{tag}>", start + len(tag) + 2)
    return None if -1 in (start, end) else (start + len(tag) + 2, end)


def _documented(text: str) -> float:
    think, answer = first_block(text, "think"), first_block(text, "answer")
    ordered = think is not None and answer is not None and think[1] < answer[0]
    return round(TAGS_PAY * ((think is not None) + (answer is not None)) + ORDER_PAYS * ordered, 4)


def _strict(text: str) -> float:
    pairs = (answers.THINK_TAGS[:2], answers.THINK_TAGS[2:])
    once = [text.count(first) == text.count(last) == 1 and text.index(first) < text.index(last) for first, last in pairs]
    return round(TAGS_PAY * sum(once) + ORDER_PAYS * (answers.thought_answer(text) is not None), 4)
