"""Disk given back: what a run can do without, and whole runs. Each says what goes and what stays before anything is deleted."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from qwen_vl_grpo import attempts, checkpoints, hub, index, registry
from qwen_vl_grpo.errors import HubError, RegistryError
from qwen_vl_grpo.interfaces import RunCard

TO_RESUME = (".pt", ".pth", ".bin")
"""Suffixes of what a checkpoint holds only to be resumed: optimizer, schedule, random generators, TRL's arguments."""
SHARDED = ("global_step", "optimizer")
"""How the folders begin in which DeepSpeed and FSDP keep the same."""


@dataclass(frozen=True)
class Spare:
    """What a run can do without."""

    card: RunCard
    run_dir: Path
    paths: tuple[Path, ...]
    keeps: str

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(size(path) for path in self.paths)

    def text(self) -> str:
        names = ", ".join(path.relative_to(self.run_dir).as_posix() for path in self.paths)
        return f"{self.card.run_id} ({self.card.state}): frees {gib(self.size)} ({names}); keeps {self.keeps}"


def spare(card: RunCard, run_dir: Path) -> Spare:
    """What a run can do without; raises RegistryError if a process is running it.

    A finished run keeps the weights that answer, and its best. One that was stopped, or whose weights have changed on the disk, keeps
    what it would be resumed from, read and found whole.
    """
    attempts.hold(run_dir).close()
    found = checkpoints.in_order(run_dir)
    kept = {run_dir / name for name in (card.checkpoint, card.metrics.get("best", {}).get("checkpoint")) if name}
    finished = card.state == "finished" and all(map(checkpoints.whole, kept))
    if not finished and found and (newest := checkpoints.newest_whole(run_dir)) is not None:
        kept.add(newest)
    if not any(path.is_dir() for path in kept):
        return Spare(card, run_dir, (), "everything, as no checkpoint of it is whole")
    gone = [path for path in found if path not in kept]
    gone += [path for path in (run_dir / checkpoints.ASIDE, run_dir / ".warmup") if path.is_dir()]
    if finished:
        gone += sorted(path for folder in kept for path in folder.iterdir() if to_resume(path))
    names = " and ".join(sorted(path.name for path in kept))
    return Spare(card, run_dir, tuple(gone), f"the weights of {names}" if finished else f"{names} to resume from")


def to_resume(path: Path) -> bool:
    """Whether a file or folder of a checkpoint is there only to be resumed from."""
    return path.name.startswith(SHARDED) if path.is_dir() else path.suffix in TO_RESUME


def prune(found: Spare) -> None:
    """Delete what a run can do without. The card of a finished run says first that it cannot go on any more."""
    with attempts.hold(found.run_dir):
        if registry.read(found.run_dir) != found.card:
            raise RegistryError(f"run_id {found.card.run_id}: has changed since it was looked at; prune again")
        if found.card.state == "finished":
            registry.write(found.card.model_copy(update={"pruned": True}), found.run_dir)
        for path in found.paths:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for folder in {path.parent for path in found.paths} & set(checkpoints.in_order(found.run_dir)):
            checkpoints.forget_missing(folder)


def refuse_last_copy(card: RunCard, run_dir: Path, force: bool) -> None:
    """Raise RegistryError if a run may not be deleted: a process runs it, another run lies in its folder, or it is the last copy."""
    attempts.hold(run_dir).close()
    for other in index.known():
        place = index.place(other)
        if place is not None and other != card.run_id and place.resolve().is_relative_to(run_dir.resolve()):
            raise RegistryError(f"run_id {card.run_id}: run {other} lies in its folder {run_dir}; move that one out first")
    if force:
        return
    if not elsewhere(card):
        raise RegistryError(
            f"run_id {card.run_id}: this is its last copy, as its card names no other; publish it first, or add --force to lose it for good"
        )
    try:
        there = hub.repository() == card.published["repo"] and hub.find(card.run_id)
    except HubError as error:
        raise RegistryError(f"run_id {card.run_id}: the Hub cannot tell whether it has a copy ({error}); or add --force") from None
    if not there or there.tag != card.published["tag"]:
        raise RegistryError(
            f"run_id {card.run_id}: this may be its last copy, as HF_REGISTRY_REPO is not or no longer where it was published "
            f"({card.published['repo']}); publish it again, or add --force to lose it for good"
        )


def elsewhere(card: RunCard) -> bool:
    """Whether the card records a published copy of the whole run."""
    return bool(card.published.get("commit")) and card.published.get("tag", "").startswith("run/")


def delete(card: RunCard, run_dir: Path) -> None:
    """Delete a run with the aliases that stand for it and its place in the queue for the Hub.

    It goes from the index first, so that no half a run is ever found.
    """
    run_dir = run_dir.resolve()
    aside = run_dir.with_name(f".deleted-{card.run_id}")
    with attempts.hold(run_dir), index.claiming():
        run_dir.rename(aside)
        index.forget(card.run_id)
        (index.queue() / f"{card.run_id}.json").unlink(missing_ok=True)
        for alias in names_of(card.run_id):
            index.drop_alias(alias)
    shutil.rmtree(aside)


def names_of(run_id: str) -> list[str]:
    """The aliases that stand for a run."""
    return [name for name, stands_for in index.aliases().items() if stands_for == run_id]


def size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    return sum(each.lstat().st_size for each in [path, *path.rglob("*")] if not each.is_dir())


def gib(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 / 10 else f"{count / 2**20:.1f} MiB"
