"""What the tasks on clips share: their form of an answer, and a gold answer that may stand in it."""

from __future__ import annotations

import re
from typing import Any

from qwen_vl_grpo import answers
from qwen_vl_grpo.interfaces import Sample

FORM = "Think first. Reply in exactly this form:\n<think>your reasoning</think> <answer>{answer}</answer>"


def gold(text: str) -> str:
    """The text of a record's answer: what stands in its answer tags, or all of it."""
    found = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return (found.group(1) if found else text).strip()


def question(sample: Sample) -> str:
    """All that the user's turns say."""
    contents = [message["content"] for message in sample.prompt if message["role"] == "user"]
    parts = [[{"type": "text", "text": content}] if isinstance(content, str) else content for content in contents]
    return "\n".join(part["text"] for content in parts for part in content if part["type"] == "text")


def in_form(answer: str) -> str:
    return f"<think>It is so.</think> <answer>{answer}</answer>"


def told(_question: str, completion: str) -> dict[str, Any]:
    """Whether a completion is in the form of these tasks."""
    return {"well_formed": answers.thought_answer(completion) is not None}
