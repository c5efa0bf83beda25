"""Several processes of one run, one a device: one of them speaks for all, and all of them are the same run.

What they tell each other here goes over the hosts' network (gloo) and not over the cards: a process may wait for another's judge or
renderer as long as PATIENCE, which would end a collective of the cards. Where a run is one process, everything here is at hand.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from qwen_vl_grpo import hardware
from qwen_vl_grpo.config import launched
from qwen_vl_grpo.errors import RankError, briefly

T = TypeVar("T")

PATIENCE = 7200.0
"""Seconds that a process is waited for before it counts as stuck: a slow judge answers within, and a card's own limit is half an hour."""

_group: Any = None
_patience = timedelta(seconds=PATIENCE)


def meet(collective: float | None = None) -> None:
    """Join the processes that a launcher has started; returns at once where there is one. `collective` is `trl.ddp_timeout`."""
    global _group, _patience
    if _group is not None or launched() < 2:
        return
    import torch
    from accelerate import PartialState

    if not torch.cuda.is_available():  # accelerate would name it cpu:1, where torch.load finds nothing, so no run could go on
        os.environ.setdefault("ACCELERATE_TORCH_DEVICE", "cpu")
    given = {} if collective is None else {"timeout": timedelta(seconds=collective)}
    PartialState(cpu=not torch.cuda.is_available(), **given)
    _patience = timedelta(seconds=max(PATIENCE, collective or 0))
    _group = torch.distributed.new_group(backend="gloo", timeout=_patience)


def count() -> int:
    return _group.size() if _group is not None else 1


def place() -> int:
    return _group.rank() if _group is not None else 0


def gathered(value: T) -> list[T]:
    """What each process has here, in their order; every process calls this."""
    if _group is None:
        return [value]
    import torch

    values: list[Any] = [None] * count()
    with _told():
        torch.distributed.all_gather_object(values, value, group=_group)
    return values


def first(act: Callable[[], T]) -> T:
    """Let the main process act, and return its result in all; one that raises there ends, and the others with it."""
    return gathered(act() if hardware.is_main_process() else None)[0]  # type: ignore[return-value]


def in_turn(act: Callable[[], T]) -> T:
    """Act in the main process before the others do, which find in the cache what it has made."""
    if place():
        gathered(None)
    result = act()
    if not place():
        gathered(None)
    return result


def share(items: Sequence[T]) -> Sequence[T]:
    """This process's part of what all have: whole items in order, as evenly as they go."""
    return items[len(items) * place() // count() : len(items) * (place() + 1) // count()]


def joined(parts: Sequence[T]) -> list[T]:
    """The parts of all processes as one list, in the order of `share`."""
    return [item for part in gathered(parts) for item in part]


def together(what: str) -> None:
    """Wait until every process is here; raises RankError, which names those that are not within PATIENCE, or within a longer
    `trl.ddp_timeout`."""
    if _group is None:
        return
    import torch

    with _told(what):
        torch.distributed.monitored_barrier(_group, _patience, wait_all_ranks=True)


@contextmanager
def awaited(what: str) -> Iterator[None]:
    """Let TRL gather what every process has: a judge may take longer than a collective of the cards, which TRL begins at once, may."""
    from trl.trainer import grpo_trainer

    published = grpo_trainer.gather  # pyright: ignore[reportPrivateImportUsage]

    def gather(tensor: Any) -> Any:
        together(what)
        return published(tensor)

    grpo_trainer.gather = gather  # pyright: ignore[reportPrivateImportUsage]
    try:
        yield
    finally:
        grpo_trainer.gather = published  # pyright: ignore[reportPrivateImportUsage]


def agree(told: Mapping[str, Any]) -> None:
    """Raise RankError in every process if one was told another thing than the main one, and name both."""
    everyone = gathered((socket.gethostname(), dict(told)))
    main = everyone[0][1]
    for number, (host, own) in enumerate(everyone):
        if keys := sorted(key for key in main.keys() | own.keys() if main.get(key) != own.get(key)):
            first_key = keys[0]
            raise RankError(
                f"process {number} on {host} is not the run of process 0: another {', '.join(keys)} ({first_key} is {own.get(first_key)!r} "
                f"there, {main.get(first_key)!r} here); start all with one config, one environment and one kind of card"
            )


@contextmanager
def _told(what: str = "an exchange") -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankError(
            f"{what}: another process of this run has stopped, or was silent for too long; its own log says why ({briefly(error)})"
        ) from error
