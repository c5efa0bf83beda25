"""The documented rewards, where the documentation puts them; they live in qwen_vl_grpo.rewards and judges.clip."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from qwen_vl_grpo.judges.clip import CLIPRewardCalculator
from qwen_vl_grpo.rewards import (
    correctness_reward_func,
    soft_format_reward_func,
    strict_format_reward_func,
    xmlcount_reward_func,
)

__all__ = [
    "CLIPRewardCalculator",
    "correctness_reward_func",
    "soft_format_reward_func",
    "strict_format_reward_func",
    "xmlcount_reward_func",
]
