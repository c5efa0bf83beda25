"""When two configs are the same run: equal in all keys but the harmless ones."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from qwen_vl_grpo.config import RunConfig

HARMLESS_KEYS = (
    "max_steps",
    "save_steps",
    "save_total_limit",
    "keep_best",
    "logging_steps",
    "tracking",
    "alarms",
    "allow_tight_memory",
    "data.workers",
    "registry.push",
    "registry.public",
    "vllm_server_base_url",
    "vllm_server_weights",
    "renderer.batch_size",
    "renderer.offload",
    "renderer.compile",
    "judge.concurrency",
    "judge.attempts",
    "judge.most_failures",
    "judge.cache",
    "judge.replay",
    "judge.base_url",
    "judge.timeout",
    "judge.requests_per_minute",
    "judge.tokens_per_minute",
    "judge.breaker_failures",
    "judge.breaker_pause",
    "judge.input_price",
    "judge.output_price",
    "judge.most_cost",
    "judge.most_tokens",
    "judge.spending",
    "placement",
)
"""Keys, with their section, that may differ between a run and its resumption."""


def digest(config: RunConfig) -> str:
    """Hash what makes a run this run: two configs with one digest differ in harmless keys at most."""
    return hashlib.sha256(json.dumps(_telling(config), sort_keys=True).encode()).hexdigest()


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """The keys, with their section, in which two configs differ beyond the harmless ones."""
    first, second = _flat(_telling(old)), _flat(_telling(new))
    return sorted(key for key in first.keys() | second.keys() if first.get(key) != second.get(key))


def _telling(config: RunConfig) -> dict[str, Any]:
    content = config.model_dump(mode="json")
    for dotted in HARMLESS_KEYS:
        *sections, key = dotted.split(".")
        inner = content
        for section in sections:
            inner = inner.get(section) or {}
        inner.pop(key, None)
    return content


def _flat(content: dict[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) and value else {above + key: value}
    return flat
