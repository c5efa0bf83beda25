"""Data sets by name: a YAML file that says where the records of each lie, and the clips and pictures that they name.

assy07_grpo:
  annotations: assy07/train.json   # a file, or a folder with one file a split; from the folder of this file
  media_root: /data/assy07         # where relative clips and pictures start; without it, beside the annotations
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import DataError

KEYS = {"annotations", "media_root"}


@dataclass(frozen=True)
class Part:
    """A data set that is used, or a share of its rows."""

    name: str
    annotations: Path
    media_root: Path | None
    share: float = 1.0

    def kept(self, count: int) -> list[int]:
        """The numbers of the rows that are used of so many, in order: always the same, and those of a smaller share among them."""
        order = sorted(range(count), key=lambda row: hashlib.sha256(f"{self.name}:{row}".encode()).digest())
        return sorted(order[: max(1, round(count * self.share))])


def find(registry: str, used: str) -> list[Part]:
    """The data sets of a list such as `assy07_grpo%50,other`, half of the one and all of the other.

    Raises DataError: a registry that cannot be read, a name that it does not hold (the nearest is told), a share that is none.
    """
    known = _read(Path(registry))
    parts: list[Part] = []
    for given in map(str.strip, used.split(",")):
        name, percent = _named(given)
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise DataError(f"dataset_use: {registry} holds no {name!r}; {hint}it holds {', '.join(sorted(known)) or 'nothing'}")
        if name in [part.name for part in parts]:
            raise DataError(f"dataset_use {used}: names {name} twice; name it once, its rows count alike")
        parts.append(_part(Path(registry), name, known[name], percent / 100))
    return parts


def located(registry: str, used: str) -> list[Part]:
    """The data sets of a list, each of which is there; raises DataError as `find` does, or for annotations that are not."""
    parts = find(registry, used)
    for part in parts:
        if not part.annotations.exists():
            raise DataError(f"data.registry {registry}: there are no annotations of {part.name} at {part.annotations}")
    return parts


def check(config: RunConfig) -> None:
    """Look up every data set of a run without opening one; raises DataError as `find` does, or for rows that are trained on and scored."""
    registry, evaluation = config.data.registry, config.evaluation
    if registry is None:
        return
    trained = {part.name for part in find(registry, config.dataset_name)}
    if config.warmup:
        find(registry, config.warmup.dataset_name)
    for part in find(registry, evaluation.dataset_name or config.dataset_name) if evaluation.dataset_split else ():
        if part.name in trained and (part.annotations.is_file() or evaluation.dataset_split == config.dataset_split):
            raise DataError(
                f"evaluation.dataset_split: would score rows of {part.name} that are trained on; name another split of a folder, another "
                "data set as evaluation.dataset_name, or set evaluation.held_out"
            )


def _named(given: str) -> tuple[str, float]:
    name, marked, percent = given.partition("%")
    if not marked:
        return name, 100.0
    if not re.fullmatch(r"\d+(\.\d+)?", percent) or not 0 < float(percent) <= 100:
        raise DataError(f"dataset_use: {given!r} is no share of a data set; write a percentage above 0 and up to 100, as in {name}%50")
    return name, float(percent)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        held = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"data.registry {path}: cannot be read ({error}); paths start where the command is run") from None
    except yaml.YAMLError as error:
        raise DataError(f"data.registry {path}: is not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(held, dict) or not all(isinstance(name, str) and not re.search(r"[,%]", name) for name in held):
        raise DataError(
            f"data.registry {path}: is no list of names, without comma or %, and what they name; write NAME: {{annotations: FILE}}"
        )
    return held


def _part(registry: Path, name: str, entry: Any, share: float) -> Part:
    if not isinstance(entry, dict) or not isinstance(entry.get("annotations"), str) or not isinstance(entry.get("media_root") or "", str):
        raise DataError(f"data.registry {registry}: {name} names no annotations; write {name}: {{annotations: FILE, media_root: FOLDER}}")
    if further := sorted(set(map(str, entry)) - KEYS):
        raise DataError(f"data.registry {registry}: {name} has a key {further[0]!r}; it takes annotations and media_root")
    root = entry.get("media_root")
    return Part(name, registry.parent / entry["annotations"], None if root is None else registry.parent / root, share)
