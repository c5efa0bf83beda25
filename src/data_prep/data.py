"""Prepare the data of a run and say what was kept: the door to `grpo prepare` (see src/qwen_vl_grpo/dataset.py)."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from qwen_vl_grpo.cli import main  # noqa: E402 - the line above makes it importable

if __name__ == "__main__":
    main(["prepare", *sys.argv[1:]])
