"""The documented correctness reward, with its public value."""

from collections.abc import Sequence
from typing import Any

from qwen_vl_grpo.rewards.xml import texts


def correctness_reward_func(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float | None]:
    """2.0 if the text of the last answer block is the gold answer, character for character, else 0."""
    return [2.0 if last_answer(text) == gold else 0.0 for text, gold in zip(texts(completions), answer, strict=True)]


def last_answer(text: str) -> str:
    """The text after the last <answer>, up to </answer>; without tags, the whole text."""
    return text.split("<answer>")[-1].split("</answer>")[0].strip()
