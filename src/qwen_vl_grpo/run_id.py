"""What a run may be called."""

from __future__ import annotations

import re

from qwen_vl_grpo.errors import ConfigError

BASE = "base"
WORDS = {"all": "every run", "latest": "the newest run", BASE: "what a run began from"}
"""Words that stand for policies wherever an id is taken -> what for; a server that has a run called `base` would answer as its base."""
RUN_ID_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,62}")


def check_run_id(run_id: str) -> str:
    """Return `run_id` if it may name a folder, a Hub tag and a W&B run alike; raise ConfigError otherwise."""
    if word := WORDS.get(run_id.lower()):
        raise ConfigError(f"run_id: '{run_id.lower()}' is the word for {word}, so no run has it as its id; give another")
    if not RUN_ID_PATTERN.fullmatch(run_id) or run_id.endswith((".", ".lock")):  # git allows no tag that ends so
        raise ConfigError(
            f"run_id: {run_id[:80]!r} is not a run id; use 1 to 63 letters, digits, '-', '_' and single dots, "
            "starting with a letter or digit"
        )
    return run_id
