"""A reward that even noise earns in different amounts, for runs that show the machinery and not learning."""

from collections.abc import Sequence
from typing import Any


def distinct_characters(completions: Sequence[Any], **_: Any) -> list[float]:
    """Distinct characters of each completion, in hundreds."""
    return [len(set(completion[0]["content"])) / 100 for completion in completions]
