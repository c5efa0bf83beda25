"""How often a policy solves each row: what `grpo probe` stored, and which rows a run trains on by it, and in which order.

A row is known by what is asked (prompt, answer, pictures), so that a probe holds for every config that asks the same of the same policy,
whatever its split, limit and order.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qwen_vl_grpo import index, registry, tasks
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import DataError

Record = dict[str, Any]
"""row (row_key), id, solve_rate, and of each completion: correct, format, reward (None where nothing judged) and tokens."""


def policy_of(config: RunConfig) -> str:
    """Whose solve rates a config is about: a run_id or a model."""
    return registry.actual(config.data.probe or config.init_from or config.model_name)


def place(config: RunConfig) -> Path:
    """The file of a config's probe: one for each policy and everything that is asked of it beside the rows themselves."""
    policy, data = policy_of(config), config.data
    task = tasks.build(config.task)
    rewards = [(entry.function, entry.weight) for entry in config.rewards] or task.rewards
    asked = [
        policy, config.model_revision, config.task.model_dump(), rewards, config.reward_scale, config.temperature,
        config.max_completion_length, data.min_pixels, data.max_pixels, config.video.model_dump(exclude={"most_unreadable", "cache_gib"}),
    ]  # fmt: skip
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
    return index.home() / "probes" / f"{re.sub(r'[^A-Za-z0-9_-]+', '-', Path(policy).name)[:60]}-{digest}.jsonl"


def read(path: Path) -> dict[str, Record]:
    """What a probe stored, by row; what a kill left half written is no record."""
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    return by_row(json.loads(line) for line in lines if line.endswith("\n"))


def by_row(records: Iterable[Record]) -> dict[str, Record]:
    """row_key -> the last record of that row."""
    return {record["row"]: record for record in records}


def keys(rows: Any) -> list[str]:
    """The row_key of each row of a prepared part."""
    return [row_key(row) for row in rows.select_columns(["prompt", "answer", "picture_ids"])]


def row_key(row: Mapping[str, Any]) -> str:
    """What makes a prepared row the same row."""
    asked = _bare([row["prompt"], row["answer"], row["picture_ids"]])
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]


def _bare(value: Any) -> Any:
    """Without the empty keys that other rows of its table bring."""
    if isinstance(value, Mapping):
        return {key: _bare(inner) for key, inner in value.items() if inner is not None}
    return [_bare(inner) for inner in value] if isinstance(value, list) else value


def unsorted(config: RunConfig) -> RunConfig:
    """The config of the same run that trains on every row."""
    return config.model_copy(update={"data": config.data.model_copy(update={"filter": None, "curriculum": "none"})})


def refuse(config: RunConfig) -> None:
    """Raise DataError if a config needs a probe that nobody has made; reads no row."""
    if config.data.uses_probe and not place(config).is_file():
        raise DataError(f"{_key(config)}: {_command(config)}")


def chosen(keys: Sequence[str], config: RunConfig) -> list[int]:
    """The places of the rows that a config trains on, in its order; raises DataError for rows that were not probed, or if none is left."""
    records = read(place(config))
    if missing := sum(key not in records for key in keys):
        raise DataError(f"{_key(config)}: {missing} of {len(keys)} rows have no solve rate; {_command(config)}")
    rates = [records[key]["solve_rate"] for key in keys]
    least, most = config.data.filter or (0.0, 1.0)
    kept = [number for number, rate in enumerate(rates) if least <= rate <= most]
    if not kept:
        raise DataError(f"data.filter {[least, most]}: leaves none of {len(rates)} rows, whose solve rates are {spread(rates)}; widen it")
    return sorted(kept, key=lambda number: -rates[number]) if config.data.curriculum == "easy_first" else kept


def _key(config: RunConfig) -> str:
    return "data.filter" if config.data.filter else "data.curriculum"


def _command(config: RunConfig) -> str:
    return f"measure them with `grpo probe {policy_of(config)} --config CONFIG`, CONFIG being this file, and start again"


def spread(rates: Sequence[float]) -> str:
    return f"{min(rates):.2g} to {max(rates):.2g}"


def without_spread(values: Sequence[Any], size: int) -> float:
    """The probability that `size` completions of a row are all worth the same, from `values` of some that were drawn.

    With at least `size` of them it is the share of their subsets of that size that are all equal (the unbiased U-statistic, Hoeffding
    1948); with fewer it is the sum of the shares to the power `size`, which is too high.
    """
    drawn, counts = len(values), Counter(values).values()
    if drawn >= size:
        return sum(math.comb(count, size) for count in counts) / math.comb(drawn, size)
    return sum((count / drawn) ** size for count in counts)


def expected(records: Sequence[Record], size: int) -> str:
    """In words: the share of groups of `size` that the policy is expected to answer all right or all wrong, and to be paid alike for."""
    shares = {
        name: sum(without_spread(record[name], size) for record in records) / len(records) for name in ("correct", "reward")
    }  # fmt: skip
    few = "" if all(len(record["correct"]) >= size for record in records) else ", too high, as fewer completions than a group were drawn"
    return f"{shares['correct']:.2f} of the groups of {size} all right or all wrong, {shares['reward']:.2f} paid alike{few}"


def histogram(rates: Sequence[float], width: int = 40) -> str:
    """A line for each solve rate that there is, with a bar of the rows that have it."""
    counts = sorted(Counter(round(rate, 2) for rate in rates).items())
    most = max(count for _, count in counts)
    return "\n".join(f"{rate:4.2f} {'█' * -(-count * width // most)} {count}" for rate, count in counts)
