"""From a completion to its final answer, and from two answers to "the same or not".

A completion is well-formed when it holds the reasoning block and the answer block, each tag once, in order, each on a
line of its own, and nothing around them. The evaluator counts only such completions: a right answer outside the
format cannot be read by the programs that come after the policy.
"""

import re

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
_BLOCKS = re.compile(r"<reasoning>\n.*?\n</reasoning>\n<answer>\n(.*?)\n</answer>\n?", re.DOTALL)


def strict_answer(completion: str) -> str | None:
    """Return the text of the answer block of a well-formed completion, else None."""
    if any(completion.count(tag) != 1 for tag in TAGS):
        return None
    match = _BLOCKS.fullmatch(completion)
    return match.group(1).strip() if match else None


def parts(completion: str) -> tuple[str | None, str]:
    """Split any completion into reasoning and answer for showing; without an answer block all of it is the answer."""
    reasoning = re.search(r"<reasoning>(.*?)</reasoning>", completion, re.DOTALL)
    answer = re.search(r"<answer>(.*?)</answer>", completion, re.DOTALL)
    return (reasoning.group(1).strip() if reasoning else None, (answer.group(1) if answer else completion).strip())


def same(given: str, gold: str, choices: tuple[str, ...] = ()) -> bool:
    """Say whether two answers are the same: equal text, equal numbers, or the letter of the right choice."""
    if not given.strip():
        return False
    if _plain(given) == _plain(gold):
        return True
    letter = re.fullmatch(r"\(?([A-Za-z])[).:]?", given.strip())
    if letter and choices:
        index = ord(letter.group(1).upper()) - ord("A")
        return index < len(choices) and _plain(choices[index]) == _plain(gold)
    number, gold_number = _number(given), _number(gold)
    return number is not None and number == gold_number


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


def _number(text: str) -> float | None:
    text = text.strip()
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?", text):
        text = text.replace(",", "")
    try:
        return float(text)
    except ValueError:
        return None
