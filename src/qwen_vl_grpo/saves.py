"""Each checkpoint handed on while training goes on, so that a lost machine costs no more than the steps since the last one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from qwen_vl_grpo.errors import GrpoError

log = logging.getLogger("qwen_vl_grpo")


class Saves(TrainerCallback):
    """Call a function with the step of each checkpoint, in the background and one at a time; what it raises is a warning.

    A checkpoint that comes while an earlier one is still on its way is left out: a slow network must not pile them up.
    """

    def __init__(self, hand_on: Callable[[int], Any]):
        self.hand_on = hand_on
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="saves")
        self.going: Future[None] | None = None

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero and (self.going is None or self.going.done()):
            self.going = self.worker.submit(self._try, Path(args.output_dir) / f"checkpoint-{state.global_step}", state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.worker.shutdown()

    def _try(self, folder: Path, step: int) -> None:
        try:
            self.hand_on(step)
            log.info("%s is published", folder.name)
        except Exception as error:  # training goes on, whatever the Hub or its client does
            if not folder.is_dir():
                log.warning("%s gave way to newer checkpoints (save_total_limit) before it was published", folder.name)
                return
            said = str(error) if isinstance(error, GrpoError) else f"{type(error).__name__}: {error}"
            log.warning("%s is kept here, but not published: %s", folder.name, said)
