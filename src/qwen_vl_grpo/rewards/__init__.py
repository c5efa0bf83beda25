"""The rewards that a config may name, and the way to anyone's own.

A reward is a plain function in TRL's form: `f(completions, **columns) -> list[float | None]`. None says "could not be
judged", and TRL then leaves the completion out; a number says "was judged".
"""

from __future__ import annotations

import difflib
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qwen_vl_grpo.errors import RewardError
from qwen_vl_grpo.interfaces import RewardFunction
from qwen_vl_grpo.rewards.actions import actions_reward, video_accuracy_reward_func
from qwen_vl_grpo.rewards.correctness import correctness_reward_func
from qwen_vl_grpo.rewards.earned import solved_reward, tags_reward, well_formed_reward
from qwen_vl_grpo.rewards.segments import segments_reward
from qwen_vl_grpo.rewards.think import think_format_reward, video_format_reward_func
from qwen_vl_grpo.rewards.xml import soft_format_reward_func, strict_format_reward_func, xmlcount_reward_func

REWARDS: dict[str, RewardFunction] = {
    function.__name__: function
    for function in (
        xmlcount_reward_func,
        soft_format_reward_func,
        strict_format_reward_func,
        correctness_reward_func,
        tags_reward,
        well_formed_reward,
        solved_reward,
        video_format_reward_func,
        video_accuracy_reward_func,
        think_format_reward,
        actions_reward,
        segments_reward,
    )
}

RANGES = {
    "xmlcount_reward_func": (-math.inf, 0.5),  # it falls by 0.001, or twice that, with each further character
    "soft_format_reward_func": (0.0, 0.5),
    "strict_format_reward_func": (0.0, 0.5),
    "correctness_reward_func": (0.0, 2.0),
    "tags_reward": (0.0, 1.0),
    "well_formed_reward": (0.0, 1.0),
    "solved_reward": (0.0, 1.0),
    "video_format_reward_func": (0.0, 1.0),
    "video_accuracy_reward_func": (0.0, 1.0),
    "think_format_reward": (0.0, 1.0),
    "actions_reward": (0.0, 1.0),
    "segments_reward": (0.0, 1.0),
}
"""The least and the most that each reward pays, before its weight."""


def most(weights: Mapping[str, float]) -> float:
    """What rewards of known ranges pay together at most, each by its weight."""
    return sum(max(0.0, RANGES[name][1] * weight) for name, weight in weights.items())


def find(reference: str) -> RewardFunction:
    """Return the reward named `reference`: a documented name, or `path/to/module.py:function`.

    Raises RewardError: an unknown name (the nearest is named), a missing file, a file without that function.
    """
    if ".py:" in reference:
        return checked(load_function(reference, RewardError))
    if reference not in REWARDS:
        near = difflib.get_close_matches(reference, REWARDS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"the documented ones are {', '.join(REWARDS)}"
        raise RewardError(f"rewards: no reward is called {reference!r}; {hint} Your own is written path/to/file.py:function")
    return REWARDS[reference]


def load_function(reference: str, error: type[Exception]) -> Callable[..., Any]:
    """Import `path/to/module.py:function`; raises `error` with the reason if that cannot be done."""
    path, _, name = reference.rpartition(":")
    if not Path(path).is_file():
        raise error(f"{reference}: there is no file {path} (paths start where the command is run)")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as cause:
        raise error(f"{reference}: {path} cannot be imported ({type(cause).__name__}: {cause})") from cause
    function = getattr(module, name, None)
    if not callable(function):
        raise error(f"{reference}: {path} defines no function {name!r}")
    return function


def _finite(score: Any) -> bool:
    try:
        return not isinstance(score, str) and math.isfinite(float(score))
    except (TypeError, ValueError):
        return False


def checked(function: Callable[..., Any]) -> RewardFunction:
    """Wrap someone's own reward so that a broken contract is said by name instead of deep inside the trainer."""
    name = getattr(function, "__name__", type(function).__name__)

    def reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        try:
            scores = list(function(completions=completions, **columns))
        except Exception as cause:
            raise RewardError(f"reward {name}: raised {type(cause).__name__}: {cause}; return None for what cannot be judged") from cause
        if len(scores) != len(completions):
            raise RewardError(f"reward {name}: returned {len(scores)} scores for {len(completions)} completions; return one for each")
        wrong = [score for score in scores if score is not None and not _finite(score)]
        if wrong:
            raise RewardError(f"reward {name}: returned {wrong[0]!r}; a score is a finite number, or None for what cannot be judged")
        return [None if score is None else float(score) for score in scores]

    reward.__name__ = name
    return reward
