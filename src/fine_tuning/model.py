"""Loading the policy, where the documentation puts it; it lives in qwen_vl_grpo.policy."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from qwen_vl_grpo.policy import adapter, load_model, load_processor, trainable_parts

__all__ = ["adapter", "load_model", "load_processor", "trainable_parts"]
