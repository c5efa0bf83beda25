"""Train one run from its YAML config: the door to `grpo train` (see src/qwen_vl_grpo/training.py)."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from qwen_vl_grpo.cli import main  # noqa: E402 - the line above makes it importable

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
