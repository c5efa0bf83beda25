"""The tasks by name, and the way to anyone's own."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.interfaces import Mode, RewardFunction, Task
from qwen_vl_grpo.rewards import find, load_function
from qwen_vl_grpo.sections import RewardEntry, TaskSection
from qwen_vl_grpo.tasks import image_edit, prompt_enhancement, text_to_image, video_actions, video_grounding, visual_reasoning

PUBLISHED: dict[str, Callable[[Mode], Task]] = {"visual_reasoning": visual_reasoning.build, "video_actions": video_actions.build}
"""The tasks that have published rewards beside their own."""
TASKS: dict[str, Callable[[], Task]] = {
    "visual_reasoning": visual_reasoning.build,
    "video_actions": video_actions.build,
    "video_grounding": video_grounding.build,
    "prompt_enhancement": prompt_enhancement.build,
    "image_edit": image_edit.build,
    "text_to_image": text_to_image.build,
}


def build(section: TaskSection) -> Task:
    """Return the task that a config names: a built-in one, or `path/to/module.py:function` (a function that returns a Task).

    Raises ConfigError: no such task, or a function that returns something else.
    """
    if ".py:" in section.name:
        if section.mode == "documented":
            raise ConfigError("task.mode: documented is for the built-in tasks; a task of your own names its rewards itself")
        build_own = load_function(section.name, ConfigError)
        try:
            task = build_own()
        except Exception as cause:
            raise ConfigError(f"task.name: {section.name} raised {type(cause).__name__}: {cause}") from cause
        if not isinstance(task, Task):
            raise ConfigError(f"task.name: {section.name} returned {type(task).__name__}; it must return a Task")
        return task
    if section.name not in TASKS:
        near = difflib.get_close_matches(section.name, TASKS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(TASKS)}"
        raise ConfigError(f"task.name: no task is called {section.name!r}; {hint} Your own is written path/to/file.py:function")
    if section.name in PUBLISHED:
        return PUBLISHED[section.name](section.mode)
    if section.mode == "documented":
        raise ConfigError(f"task.mode: documented is for {' and '.join(PUBLISHED)}, which have published rewards; remove it")
    return TASKS[section.name]()


def rewards(task: Task, config: RunConfig) -> list[tuple[RewardFunction, float]]:
    """The rewards of a run with their scaled weights: those that the config lists, else the task's.

    Raises RewardError for an unknown name.
    """
    entries = config.rewards or tuple(RewardEntry(function=name, weight=weight) for name, weight in task.rewards)
    found = [task.own_rewards[entry.function](config) if entry.function in task.own_rewards else find(entry.function) for entry in entries]
    return [(function, entry.weight * config.reward_scale) for function, entry in zip(found, entries, strict=True)]
