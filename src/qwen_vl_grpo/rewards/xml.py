"""The documented format rewards, with their public values.

Source of the values: the public GRPO gist by willccbb. They pay too much in places (a second closing tag, hedging) and too
little in others; rewards/earned.py closes the holes. Two departures: `.` matches newlines, or reasoning of two lines could
never score; and the end-of-turn token and what follows it are not part of a completion.
"""

import re
from collections.abc import Sequence
from typing import Any

_SOFT = re.compile(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>", re.DOTALL)
_STRICT = re.compile(r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$", re.DOTALL)


def texts(completions: Sequence[Any]) -> list[str]:
    """The text of each completion, whether TRL hands chats or strings."""
    return [completion if isinstance(completion, str) else completion[0]["content"] for completion in completions]


def xmlcount_reward_func(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """0.125 for each tag that stands once with its newline, minus 0.001 for each character after the last one."""
    return [_count(text) for text in texts(completions)]


def soft_format_reward_func(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """0.5 if the completion starts with a reasoning block and an answer block."""
    return [0.5 if _SOFT.match(text) else 0.0 for text in texts(completions)]


def strict_format_reward_func(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """0.5 if the completion is exactly the two blocks, each tag on its own line, with a final newline."""
    return [0.5 if _STRICT.match(text) else 0.0 for text in texts(completions)]


def _count(text: str) -> float:
    score = 0.0
    if text.count("<reasoning>\n") == 1:
        score += 0.125
    if text.count("\n</reasoning>\n") == 1:
        score += 0.125
    if text.count("\n<answer>\n") == 1:
        score += 0.125
        score -= len(text.split("\n</answer>\n")[-1]) * 0.001
    if text.count("\n</answer>") == 1:
        score += 0.125
        score -= (len(text.split("\n</answer>")[-1]) - 1) * 0.001
    return score
