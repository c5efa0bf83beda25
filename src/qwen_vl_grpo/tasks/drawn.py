"""What the tasks share whose completions are drawn: how a row is read, and the form of those that draw from the policy's own states.

What a completion of image_edit or text_to_image is worth shows in its picture alone, so the words are judged well-formed or not, and
neither right nor wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from qwen_vl_grpo import answers
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import Message, Sample, Task, Verdict
from qwen_vl_grpo.rendered_reward import StatesReward
from qwen_vl_grpo.sections import ColumnName, DataSection


def task(name: str, system_prompt: str, states: Literal["qwen_image", "qwen_image_edit"], **own: Any) -> Task:
    """A task whose renderer sees the policy's own states, by the template of the pipeline `states`; `own` is its way to read rows."""
    made: Any = partial(StatesReward, kind=states)
    rewards, own_rewards = (("rendered_reward", 1.0),), {"rendered_reward": made}
    return Task(name, system_prompt, rewards, judge=judge, own_rewards=own_rewards, told=told, shown=shown, states=states, **own)


def column(ours: ColumnName, guesses: Sequence[str], what: str, row: Mapping[str, Any], data: DataSection) -> str:
    """Name the data set's column for one of ours; raises DataError if there is none."""
    asked = data.columns.get(ours)
    name = next((name for name in ((asked,) if asked else guesses) if name in row), None)
    if name is None:
        tried = repr(asked) if asked else " or ".join(map(repr, guesses))
        raise DataError(f"has no column {tried} for the {what}; it has {', '.join(map(str, row))}; map it with data.columns.{ours}")
    return name


def text(name: str, what: str, row: Mapping[str, Any]) -> str:
    """The text in a column, without the space around it; raises DataError for anything else, and for nothing."""
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"column {name!r} holds {value!r}; {what} is text")
    return value.strip()


def chat(system_prompt: str, asked: str) -> list[Message]:
    return [{"role": "system", "content": system_prompt}, {"role": "user", "content": asked}]


def judge(completion: str, sample: Sample) -> Verdict:
    """Well-formed: there is something to draw. Whether it is right only its picture can show."""
    return Verdict(bool(answers.without_end(completion).strip()), None)


def told(question: str, completion: str) -> dict[str, Any]:
    """All of the completion as the answer: all of it is drawn."""
    drawn = answers.without_end(completion).strip()
    return {"answer": drawn, "well_formed": bool(drawn)}


def shown(record: Mapping[str, Any]) -> str:
    """What was asked for, and what is drawn instead."""
    return f"asked for: {record['prompt']}\nto be drawn: {record['answer']}"
