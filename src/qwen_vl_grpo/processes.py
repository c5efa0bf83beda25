"""Many small jobs in several processes, in order."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from qwen_vl_grpo.errors import DataError

FEW = 256
"""Rows that one process prepares sooner than several could start."""


def each(job: Callable[[int], Any], count: int, workers: int | None = None) -> Iterator[Any]:
    """job(0), job(1), … in order, from forked processes (none: as many as there are CPUs, 8 at most) where that is worth it.

    A forked process has the rows and the processor at once, where a new one would import for seconds; Linux alone forks safely.
    """
    processes = workers or (1 if count < FEW else min(8, len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1))
    if processes == 1 or sys.platform != "linux":
        yield from map(job, range(count))
        return
    global _job
    _job = job
    try:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), _quiet_tokenizer) as pool:
            yield from pool.map(_do, range(count), chunksize=4)
    except BrokenProcessPool:
        raise DataError("a process that prepared rows was killed, most likely for its memory; lower data.workers") from None
    finally:
        _job = None


def progress(made: Iterator[Any], count: int, what: str) -> Iterator[Any]:
    """The same, with a bar on stderr while they come if they are many."""
    from rich.console import Console
    from rich.progress import track

    return iter(track(made, what, count, console=Console(stderr=True), transient=True, disable=count < FEW))


_job: Callable[[int], Any] | None = None
"""What the forked processes find to do."""


def _do(number: int) -> Any:
    assert _job is not None
    return _job(number)


def _quiet_tokenizer() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
