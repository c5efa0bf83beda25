"""Answer with a run found by its run_id: the door to `grpo infer` (see src/qwen_vl_grpo/answering.py)."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from qwen_vl_grpo.cli import main  # noqa: E402 - the line above makes it importable

if __name__ == "__main__":
    main(["infer", *sys.argv[1:]])
