"""The parts of a run: rows to train on and rows held out, with no picture on both sides."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets

from qwen_vl_grpo import dataset, solve_rates
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import Task
from qwen_vl_grpo.sections import EvaluationSection

log = logging.getLogger("qwen_vl_grpo")


@dataclass(frozen=True)
class Parts:
    """What a run trains on and what it is scored on."""

    train: datasets.Dataset
    held_out: datasets.Dataset | None
    shared: int = 0
    """Rows left out of training because they show a picture of the held-out part."""


def load(config: RunConfig, task: Task, processor: Any) -> Parts:
    """Load dataset_split and what the config holds out; raises DataError.

    A part that is cut from dataset_split (held_out, ids_file) shares no picture with the rest. Of a split of its own that is
    only said, for whoever made the splits chose them. Of the rest a run trains on the rows, in the order, that data.filter and
    data.curriculum ask for.
    """
    parts = _cut(config, task, processor)
    if not config.data.uses_probe:
        return parts
    places = solve_rates.chosen(solve_rates.keys(parts.train), config)
    log.info("%d of %d rows are trained on, by the solve rates in %s", len(places), len(parts.train), solve_rates.place(config))
    return replace(parts, train=parts.train.select(places))


def _cut(config: RunConfig, task: Task, processor: Any) -> Parts:
    if config.evaluation.ids_file is not None:
        _ids(config.evaluation.ids_file)  # refused before the rows are prepared
    rows = dataset.load(config, task, processor, config.dataset_name, config.dataset_split)
    if config.evaluation.dataset_split is not None:
        where = config.evaluation.dataset_name or config.dataset_name
        held_out = dataset.load(config, task, processor, where, config.evaluation.dataset_split)
        groups = by_picture([*rows["picture_ids"], *held_out["picture_ids"]], [""] * (len(rows) + len(held_out)))
        seen = set(groups[len(rows) :]) - {""}
        if both := sum(group in seen for group in groups[: len(rows)]):
            log.warning("%d training rows show a picture of split %s: its scores reward memory", both, config.evaluation.dataset_split)
        return Parts(rows, held_out)
    if config.evaluation.held_out is None and config.evaluation.ids_file is None:
        return Parts(rows, None)
    return apart(rows, config.evaluation)


def apart(rows: datasets.Dataset, section: EvaluationSection) -> Parts:
    """Cut the held-out part from `rows`: the same rows whatever their order and size, picture by picture. Raises DataError."""
    groups = by_picture(rows["picture_ids"], [json.dumps(prompt) for prompt in rows["prompt"]])
    if section.ids_file is None:
        assert section.held_out is not None
        order = sorted(set(groups), key=lambda group: hashlib.sha256(group.encode()).digest())
        chosen = set(order[: max(1, round(section.held_out * len(order)))])
        held = [index for index, group in enumerate(groups) if group in chosen]
        train = [index for index, group in enumerate(groups) if group not in chosen]
    else:
        ids = _ids(section.ids_file)
        held = [index for index, own in enumerate(rows["id"]) if own in ids]
        chosen = {groups[index] for index in held}
        train = [index for index, group in enumerate(groups) if group not in chosen]
        if len(held) < len(ids):
            log.warning("%s: %d of its %d ids are in the data (data.limit and dropped rows count)", section.ids_file, len(held), len(ids))
    if not held or not train:
        raise DataError(f"evaluation: {section.part} leaves {len(train)} rows to train on and {len(held)} held out; both need one at least")
    return Parts(rows.select(train), rows.select(held), len(rows) - len(train) - len(held))


def by_picture(pictures: Sequence[Sequence[str]], otherwise: Sequence[str]) -> list[str]:
    """A name for each row, equal for rows that are linked by pictures they show; `otherwise` names the rows without any."""
    above: dict[str, str] = {}

    def root(picture: str) -> str:
        while above.setdefault(picture, picture) != picture:
            picture = above[picture]
        return picture

    for shown in pictures:
        for picture in shown[1:]:
            one, other = sorted((root(shown[0]), root(picture)))
            above[other] = one
    return [root(shown[0]) if shown else name for shown, name in zip(pictures, otherwise, strict=True)]


def _ids(name: str) -> set[str]:
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"evaluation.ids_file {name}: cannot be read ({error}); paths start where the command is run") from None
    ids = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    if not ids:
        raise DataError(f"evaluation.ids_file {name}: holds no id; write one a line")
    return ids
