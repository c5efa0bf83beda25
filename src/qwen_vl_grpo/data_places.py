"""Whether the data sets that a config names can be there, told without a library that reads them."""

from __future__ import annotations

import os
from pathlib import Path

from qwen_vl_grpo import dataset_registry
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import DataError

LOCAL_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv", ".txt")
HUB = "on the Hub, which is asked when the run starts"
OFFLINE = "on the Hub, which HF_HUB_OFFLINE forbids to ask: the copy in this machine's cache is read when the run starts"


def local(name: str) -> bool:
    """Whether a name can only be meant for a file or a folder here."""
    path = Path(name)
    return path.exists() or path.is_absolute() or name.startswith(".") or name.count("/") > 1 or path.suffix in LOCAL_SUFFIXES


def find(config: RunConfig) -> dict[str, str]:
    """Each data set of a run and where it is: here, or on the Hub, which is not asked. Raises DataError for one that is nowhere."""
    named = {"dataset_name": config.dataset_name, "evaluation.dataset_name": config.evaluation.dataset_name}
    named["warmup.dataset_name"] = config.warmup.dataset_name if config.warmup else None
    return {name: _place(key, name, config.data.registry) for key, name in named.items() if name is not None}


def _place(key: str, name: str, registry: str | None) -> str:
    if registry is not None:
        dataset_registry.located(registry, name)
        return f"here, by {registry}"
    if Path(name).exists():
        return "here"
    if local(name) or "/" not in name.strip("/"):
        raise DataError(f"{key}: there is no file or folder {name} here (paths start where the command is run), and a Hub id is OWNER/NAME")
    return OFFLINE if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE") else HUB
