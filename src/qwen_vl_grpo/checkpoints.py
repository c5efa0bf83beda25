"""Checkpoints that are whole or not there: written aside, hashed, then renamed.

transformers writes into the final folder and leaves half a checkpoint there when it is killed, which its own search for the
last one then takes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qwen_vl_grpo import index
from qwen_vl_grpo.errors import RegistryError

log = logging.getLogger("qwen_vl_grpo")

ASIDE = ".saving"
"""The folder in a run's own in which a checkpoint is written."""

HASHES = "files.sha256"
"""One line a file, as `sha256sum -c` reads them; written last."""


def publish(aside: Path, run_dir: Path) -> Path:
    """Hash a finished checkpoint and put it into the run's folder in one step; returns where it lies then."""
    names = sorted(path.relative_to(aside).as_posix() for path in aside.rglob("*") if path.is_file())
    (aside / HASHES).write_text("".join(f"{_on_disk(aside / name)}  {name}\n" for name in names), encoding="utf-8")
    place = run_dir / aside.name
    if place.exists():  # it was not whole, or the run would have gone on from there
        shutil.rmtree(place)
    os.replace(aside, place)
    return place


def sealed(folder: Path) -> bool:
    """Whether a checkpoint was written to its end."""
    return (folder / HASHES).is_file()


def whole(folder: Path) -> bool:
    """Whether every file of a checkpoint is there and as it was written."""
    return sealed(folder) and next(faults(folder), None) is None


def faults(folder: Path) -> Iterator[str]:
    """The files of a sealed checkpoint that are gone or not as they were written, say a process's part of a sharded optimizer."""
    for line in (folder / HASHES).read_text(encoding="utf-8").splitlines():
        expected, _, name = line.partition("  ")
        if not (folder / name).is_file() or sha256(folder / name) != expected:
            yield name


def forget_missing(folder: Path) -> None:
    """Take the files that are gone out of a checkpoint's hashes, so that what is left of it is whole."""
    lines = (folder / HASHES).read_text(encoding="utf-8").splitlines(keepends=True)
    index.replace(folder / HASHES, "".join(line for line in lines if (folder / line.rstrip("\n").partition("  ")[2]).is_file()))


def in_order(run_dir: Path) -> list[Path]:
    """The checkpoints that were written to their end, oldest step first."""
    return sorted((path for path in run_dir.glob("checkpoint-*") if sealed(path)), key=step_of)


def newest_whole(run_dir: Path) -> Path | None:
    """The checkpoint to go on from; one that has changed on the disk is passed over with a warning."""
    for folder in reversed(in_order(run_dir)):
        if whole(folder):
            return folder
        log.warning("%s is not as it was written, so it is passed over", folder)
    return None


def to_go_on_from(run_dir: Path) -> Path | None:
    """The newest whole checkpoint, None where none was written; raises RegistryError where all are broken."""
    found = newest_whole(run_dir)
    if found is None and (written := in_order(run_dir)):
        raise RegistryError(
            f"{written[-1]}: {next(faults(written[-1]))} is gone or not as it was written, and there is no whole checkpoint before it; put "
            "the file back, or start another run"
        )
    return found


def prune(run_dir: Path, limit: int | None, step: int, best: Path | None = None) -> None:
    """Delete all but the last `limit` checkpoints up to the step that was just saved, and the best.

    A later one is of an attempt before this: it was not whole, so it must not push out one that is.
    """
    for folder in [path for path in in_order(run_dir) if step_of(path) <= step][: -limit if limit else 0]:
        if folder != best:
            shutil.rmtree(folder, ignore_errors=True)


def refuse_full(run_dir: Path, expected: int) -> None:
    """Raise OSError where the disk has no room for another checkpoint, before a byte is written.

    It takes as much as the newest one that is there, and the first one `expected` bytes.
    """
    there = in_order(run_dir)
    needed = sum(path.stat().st_size for path in there[-1].rglob("*") if path.is_file()) if there else expected
    free = shutil.disk_usage(run_dir).free
    if free < needed:
        raise OSError(f"it takes {needed / 2**20:,.1f} MiB, and {free / 2**20:,.1f} MiB are free")


def saved_bytes(model: Any, only_model: bool = False) -> int:
    """About what a checkpoint takes: an adapter or all weights, and unless `only_model`, AdamW's two moments of what learns."""
    from peft import PeftModel

    sizes = [  # ZeRO-3 leaves a parted weight without elements of its own, and tells how many it has
        (getattr(weight, "ds_numel", weight.numel()) * weight.element_size(), weight.requires_grad) for weight in model.parameters()
    ]
    learned = sum(size for size, learns in sizes if learns)
    return 2 * learned * (not only_model) + (learned if isinstance(model, PeftModel) else sum(size for size, _ in sizes))


def step_of(folder: Path) -> int:
    return int(folder.name.split("-")[1])


def _on_disk(path: Path) -> str:
    """The hash of a file that has reached the disk: the checkpoint before it may be deleted next."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return sha256(path)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
