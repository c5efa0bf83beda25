"""Video actions: which of the actions that a question offers happen in a clip.

One raw row, the documented record (video_records.py reads it, and rows of other forms):

    {"id": 0, "video": "clips/0.mp4", "meta": {"frame_cnts": [15, 11], "min_frames": 4, "max_frames": 8, "dynamic_sample": true},
     "conversations": [
       {"from": "human", "value": "<video>\\nWhich of these happen? (1) reach (2) grasp (3) place"},
       {"from": "gpt", "value": "<answer>(1) reach (3) place</answer>"}]}

The actions are those that the question numbers, or those of the column `choices`, which `data.columns` may rename. Answers are sets of
them (actions.py), in think and answer tags (docs/reward_logic_video.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qwen_vl_grpo import actions, answers
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import Mode, Sample, Task, Verdict
from qwen_vl_grpo.rewards.actions import score
from qwen_vl_grpo.sections import DataSection
from qwen_vl_grpo.tasks import clips, visual_reasoning

SYSTEM_PROMPT = "Watch the clip and say which of the actions happen in it, each by its number and name. " + clips.FORM.format(
    answer="(2) one action (5) another action"
)

REWARDS: dict[Mode, tuple[tuple[str, float], ...]] = {
    "documented": (("video_format_reward_func", 0.3), ("video_accuracy_reward_func", 0.7)),
    "strict": (("think_format_reward", 0.3), ("actions_reward", 0.7)),
}


def build(mode: Mode = "strict") -> Task:
    return Task("video_actions", SYSTEM_PROMPT, REWARDS[mode], read_row, judge, examples, told=clips.told)


def read_row(row: Mapping[str, Any], data: DataSection, system_prompt: str) -> Sample:
    """Turn one raw row into a sample; raises DataError (what tasks/clips.py refuses, or an answer that names no offered actions)."""
    sample = clips.read(row, data, system_prompt)
    choices = visual_reasoning.further_columns(row, data)["choices"] or actions.offered(clips.question(sample))
    if not actions.named(sample.answer, choices):
        asked = f"(1) to ({len(choices)}) of {choices}, as in (1) (3)" if choices else "actions, as in (1) reach (2) place"
        raise DataError(f"its answer {sample.answer[:200]!r} is no list of {asked}; correct it, or give the actions in a column choices")
    return replace(sample, columns={**sample.columns, "choices": choices})


def judge(completion: str, sample: Sample) -> Verdict:
    """Right: all of the actions and no other."""
    right = score(completion, sample.answer, sample.columns.get("choices") or ()) == 1
    return Verdict(answers.thought_answer(completion) is not None, right)


def examples(sample: Sample) -> tuple[str, list[str]]:
    """The gold answer in the form that is asked for, and: an action too many, a wrong one, too few, none, and it outside the form."""
    choices = sample.columns.get("choices") or ()
    right = sorted(actions.named(sample.answer, choices) or ())
    if choices:
        wrong = [f"({number})" for number in range(1, len(choices) + 1) if str(number) not in right][:1]
        few = [f"({number})" for number in right[1:]]
    else:
        wrong = [f"({len(right) + 1}) not {right[0]}"]
        few = [f"({place}) {name}" for place, name in enumerate(right[1:], 1)]
    misses = [*(f"{sample.answer} {one}" for one in wrong), *wrong, " ".join(few), ""]
    return clips.in_form(sample.answer), [*map(clips.in_form, dict.fromkeys(misses)), sample.answer]
