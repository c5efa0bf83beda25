"""From a completion to its final answer, and from two answers to "the same or not".

A completion is well-formed when it holds the reasoning block and the answer block, each tag once, in order, each on a
line of its own, and nothing around them. The evaluator counts only such completions: a right answer outside the
format cannot be read by the programs that come after the policy. The tasks on clips ask for <think> in place of <reasoning>, and
leave the line breaks to the policy.
"""

import re
from collections.abc import Sequence

from qwen_vl_grpo.quantities import plain, same_value, tidy

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
THINK_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_THOUGHT = re.compile(r"\s*<think>.*?</think>\s*<answer>(.*?)</answer>\s*", re.DOTALL)
_BLOCKS = re.compile(r"<reasoning>\n.*?\n</reasoning>\n<answer>\n(.*?)\n</answer>\n?", re.DOTALL)
_END = re.compile(r"(?<!\s)(?:\s*(?:<\|im_end\|>|<\|endoftext\|>))+\s*\Z")
_LETTER = re.compile(r"(?:(?:option|choice)\s*)?(?:\(([a-z])\)|([a-z])(?=[).:]|\Z))[).:]?\s*(.*)", re.DOTALL | re.IGNORECASE)


def without_end(completion: str) -> str:
    """Take off end-of-turn tokens that a decoder left at the end."""
    return _END.sub("", completion)


def strict_answer(completion: str) -> str | None:
    """Return the text of the answer block of a well-formed completion, else None."""
    return _only_answer(completion, TAGS, _BLOCKS)


def thought_answer(completion: str) -> str | None:
    """Return the text of the answer block of a completion that is a think block and an answer block and nothing else, else None."""
    return _only_answer(completion, THINK_TAGS, _THOUGHT)


def _only_answer(completion: str, tags: Sequence[str], form: re.Pattern[str]) -> str | None:
    completion = without_end(completion)
    match = form.fullmatch(completion) if all(completion.count(tag) == 1 for tag in tags) else None
    return match.group(1).strip() if match else None


def solves(
    completion: str, gold: str, choices: Sequence[str] | None = None, precision: float | None = None, unit: str | None = None
) -> bool:
    """Say whether a completion is well-formed and its one answer is the gold one; the arguments are the columns of its row."""
    given = strict_answer(completion)
    return given is not None and same(given, gold, choices or (), None if precision is None else int(precision), unit)


def parts(completion: str) -> tuple[str | None, str]:
    """Split any completion into reasoning and answer for showing; without an answer block all of it is the answer."""
    reasoning = re.search(r"<(reasoning|think)>(.*?)</\1>", completion, re.DOTALL)
    answer = re.search(r"<answer>(.*?)</answer>", completion, re.DOTALL)
    return (reasoning.group(2).strip() if reasoning else None, (answer.group(1) if answer else completion).strip())


def same(given: str, gold: str, choices: Sequence[str] = (), precision: int | None = None, unit: str | None = None) -> bool:
    """Say whether an answer is the gold one: the same words, value or list, or with `choices` the right choice by letter or text.

    `precision` is the number of decimals to which a number must agree (none: exactly); `unit` is the gold answer's unit.
    With choices there is no tolerance, and a text that fits two of them names none.
    """
    right = {plain(choice) for choice in choices if plain(choice) == plain(gold)} or _chosen(gold, choices)
    if right:
        return _chosen(given, choices) == right
    return same_value(given, gold, precision, unit)


def _chosen(given: str, choices: Sequence[str]) -> set[str]:
    """The choices that a text names: by a letter, by a letter and its own text, by the text, or by an equal value."""
    given = tidy(given)
    if len(given) > 1 and given in choices:  # MathVista has choices that are called (a), (b), … in another order
        return {plain(given)}
    match = _LETTER.fullmatch(given)
    if match:
        index = ord((match.group(1) or match.group(2)).upper()) - ord("A")
        if index < len(choices) and (not match.group(3) or same_value(match.group(3), choices[index])):
            return {plain(choices[index])}
    named = {plain(choice) for choice in choices if plain(choice) == plain(given)}
    return named or {plain(choice) for choice in choices if same_value(given, choice)}
