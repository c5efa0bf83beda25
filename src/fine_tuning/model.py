"""Loading the policy, and a model that rewrites prompts, where the documentation puts them; they live in the package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from qwen_vl_grpo.enhancing import QwenWrapper
from qwen_vl_grpo.policy import adapter, load_model, load_processor, trainable_parts

__all__ = ["QwenWrapper", "adapter", "load_model", "load_processor", "trainable_parts"]
