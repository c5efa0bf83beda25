"""How many of a clip's actions an answer names, as documented and without its holes."""

import re
from collections.abc import Sequence
from typing import Any

from qwen_vl_grpo import actions, answers
from qwen_vl_grpo.rewards.think import first_block
from qwen_vl_grpo.rewards.xml import texts

_NUMBER = re.compile(r"\((\d+)\)")


def video_accuracy_reward_func(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float | None]:
    """1 if the numbers in brackets of the first answer block are the gold ones, else the IoU of the two sets of numbers."""
    return [_documented(text, gold) for text, gold in zip(texts(completions), answer, strict=True)]


def actions_reward(
    completions: Sequence[Any], answer: Sequence[str], choices: Sequence[Sequence[str] | None] | None = None, **_: Any
) -> list[float | None]:
    """IoU of the sets of actions if the completion is well-formed and its answer is a list of offered actions, each once; else 0."""
    rows = zip(texts(completions), answer, choices or [None] * len(completions), strict=True)
    return [score(text, gold, offered or ()) for text, gold, offered in rows]


def score(completion: str, gold: str, choices: Sequence[str] = ()) -> float:
    """Intersection over union of the actions that a completion names and of the gold ones."""
    given, right = actions.named(answers.thought_answer(completion) or "", choices), actions.named(gold, choices)
    return actions.overlap(given, right) if given and right else 0.0


def _documented(text: str, gold: str) -> float:
    block = first_block(text, "answer")
    if block is None:
        return 0.0
    given, right = sorted(_NUMBER.findall(text[slice(*block)])), sorted(_NUMBER.findall(gold))
    return 1.0 if given == right else actions.overlap(set(given), set(right))
