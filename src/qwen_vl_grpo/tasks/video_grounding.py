"""Video grounding: when in a clip something happens.

A raw row is that of video_actions, with times in seconds as its answer, one or several:

    {"id": 7, "video": "clips/7.mp4", "conversations": [
       {"from": "human", "value": "<video>\\nWhen does the door stand open?"},
       {"from": "gpt", "value": "<answer>2.0 to 5.0 and 8.0 to 9.0</answer>"}]}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qwen_vl_grpo import answers, segments
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import Sample, Task, Verdict
from qwen_vl_grpo.rewards.segments import score
from qwen_vl_grpo.sections import DataSection
from qwen_vl_grpo.tasks import clips

SYSTEM_PROMPT = "Watch the clip and say when it happens, in seconds from its start. " + clips.FORM.format(answer="2.5 to 4.0, 7.0 to 8.5")
REWARDS = (("think_format_reward", 0.3), ("segments_reward", 0.7))
ENOUGH = 0.5
"""IoU from which an answer counts as right: the R1@0.5 of the benchmarks of temporal grounding."""


def build() -> Task:
    return Task("video_grounding", SYSTEM_PROMPT, REWARDS, read_row, judge, examples, told=clips.told)


def read_row(row: Mapping[str, Any], data: DataSection, system_prompt: str) -> Sample:
    """Turn one raw row into a sample; raises DataError (what tasks/clips.py refuses, or an answer that names no stretch of time)."""
    sample = clips.read(row, data, system_prompt)
    if not segments.merged(segments.read(sample.answer) or ()):
        raise DataError(
            f"its answer {sample.answer[:200]!r} names no stretch of time; write seconds, as in 2.5 to 4.0, or 1 to 2 and 5 to 6"
        )
    return sample


def judge(completion: str, sample: Sample) -> Verdict:
    return Verdict(answers.thought_answer(completion) is not None, score(completion, sample.answer) >= ENOUGH)


def examples(sample: Sample) -> tuple[str, list[str]]:
    """The gold answer in the form that is asked for, and: the time behind it, a moment of it, nothing, and the answer outside the form."""
    times = segments.merged(segments.read(sample.answer) or ())
    start, end = times[0][0], times[-1][1]
    misses = [f"{end:g} to {end + 1:g}", f"{start:g} to {start:g}", ""]
    return clips.in_form(sample.answer), [*map(clips.in_form, misses), sample.answer]
