"""The task of the shapes: the policy says what to draw, a frozen DiT draws from the states of what it said, and the pixels are judged.

One raw row (demo/shapes_words.py writes them):

    {"id": "grass, three corners", "question": "grass, three corners", "answer": "green triangle", "clues": "grass, three corners"}

The reward is the product's own. `build_unsaid` is the control: the DiT gets the states of an empty completion, and all else is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import Sample, Task
from qwen_vl_grpo.rendered_reward import StatesReward
from qwen_vl_grpo.tasks import drawn

SYSTEM_PROMPT = "Say what to draw: the first thing gives its colour, the second its shape."


class UnsaidReward(StatesReward):
    """The same reward for pictures that are drawn as if nothing had been said."""

    def _requests(self, words: Sequence[str], prompts: Sequence[str], columns: Mapping[str, Any], log_metric: Any) -> Any:
        return super()._requests(words, prompts, {**columns, "completion_ids": [()] * len(words)}, log_metric)


def build(reward: type[StatesReward] = StatesReward) -> Task:
    own = {"rendered_reward": partial(reward, kind="qwen_image")}
    weights = (("rendered_reward", 1.0),)
    return Task("shapes", SYSTEM_PROMPT, weights, read_row, drawn.judge, own_rewards=own, told=drawn.told, shown=drawn.shown)


def build_unsaid() -> Task:
    return build(UnsaidReward)


def read_row(row: Mapping[str, Any], data: Any, system_prompt: str) -> Sample:
    """Turn one raw row into a sample without a picture; raises DataError if it has no question or no answer."""
    if not row.get("question") or not row.get("answer"):
        raise DataError(f"has no question or no answer; it has {', '.join(sorted(row))}; write it with python -m demo.shapes")
    columns = {"original_prompt": row["question"], "rubric": row["answer"]}
    return Sample(str(row.get("id", "")), drawn.chat(system_prompt, row["question"]), [], row["answer"], columns)
