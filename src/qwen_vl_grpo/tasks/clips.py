"""What the tasks on clips share: their form of an answer, and a gold answer that may stand in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qwen_vl_grpo import answers, video_records
from qwen_vl_grpo.interfaces import Sample
from qwen_vl_grpo.sections import DataSection
from qwen_vl_grpo.tasks import visual_reasoning

FORM = "Think first. Reply in exactly this form:\n<think>your reasoning</think> <answer>{answer}</answer>"


def read(row: Mapping[str, Any], data: DataSection, system_prompt: str) -> Sample:
    """A record with its pictures opened, its clips still files, and its gold answer; raises DataError."""
    sample = video_records.read_record(row, data, system_prompt)
    return replace(sample, images=[visual_reasoning.open_picture(image) for image in sample.images], answer=gold(sample.answer))


def gold(text: str) -> str:
    """The text of a record's answer: what stands in its answer tags, or all of it."""
    found = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return (found.group(1) if found else text).strip()


def question(sample: Sample) -> str:
    """All that the user's turns say."""
    parts = [part for message in sample.prompt if message["role"] == "user" for part in message["content"]]
    return "\n".join(part["text"] for part in parts if part["type"] == "text")


def in_form(answer: str) -> str:
    return f"<think>It is so.</think> <answer>{answer}</answer>"


def told(_question: str, completion: str) -> dict[str, Any]:
    """Whether a completion is in the form of these tasks."""
    return {"well_formed": answers.thought_answer(completion) is not None}
