"""MathVista's published rule of what counts as right, for scores that stand beside ours; never a reward.

The published scorer lets a language model extract the answer and then applies this rule. Here the extraction is the answer
block, so the score is the rule's and not the leaderboard's. The rule pays for what is not right: a wrong or empty text
counts as the choice whose spelling is nearest (about a third of non-answers), 12.9 counts as 12, and an unspaced list
is wrong. Rule: lupantech/MathVista, evaluation/, commit 53d5258; tests/fixtures/mathvista_scores.jsonl holds its verdicts.
"""

import re
from collections.abc import Sequence


def right(
    response: str, answer: str, question_type: str, answer_type: str, choices: Sequence[str] = (), precision: float | None = None
) -> bool:
    """Say whether the published rule counts `response` as the answer; the arguments are a MathVista row's columns."""
    return prediction(response, question_type, answer_type, choices, precision) == answer


def prediction(
    response: str, question_type: str, answer_type: str, choices: Sequence[str] = (), precision: float | None = None
) -> str | None:
    """What the rule reads in a response: the text of a choice, or a number or list written as Python writes it."""
    extraction = _extraction(response, question_type, answer_type, choices)
    if question_type == "multi_choice":
        return _choice(extraction.strip(), choices) if choices else None
    try:
        if answer_type == "integer":
            return str(int(float(extraction)))
        if answer_type == "float":
            return str(round(float(extraction), int(precision)))  # type: ignore[arg-type] - no precision is the rule's None, too
    except (ValueError, TypeError, OverflowError):
        return None
    return extraction if answer_type == "list" else None


def _extraction(response: str, question_type: str, answer_type: str, choices: Sequence[str]) -> str:
    if response == "" or (question_type == "multi_choice" and response in choices):
        return response
    number = {"integer": int, "float": float}.get(answer_type)
    if number:
        try:
            return str(number(response))
        except ValueError:
            pass
    quoted = re.search(r'The answer is "(.*)"\.', response)
    return quoted.group(1) if quoted else response


def _choice(extraction: str, choices: Sequence[str]) -> str:
    letter = re.search(r"\(([a-zA-Z])\)", extraction)
    if letter:
        extraction = letter.group(1).upper()
    index = ord(extraction) - ord("A") if len(extraction) == 1 else -1
    return choices[index] if 0 <= index < len(choices) else min(choices, key=lambda choice: _edits(extraction, choice))


def _edits(one: str, other: str) -> int:
    """How many letters to insert, delete or replace to make one text the other (V. I. Levenshtein, 1966)."""
    row = list(range(len(other) + 1))
    for number, letter in enumerate(one, 1):
        above, row[0] = row[0], number
        for column, counterpart in enumerate(other, 1):
            above, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, above + (letter != counterpart))
    return row[-1]
