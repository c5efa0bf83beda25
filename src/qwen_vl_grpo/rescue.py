"""Keep what a run has learned when it is stopped, or when something dies under it.

transformers' `enable_jit_checkpoint` answers SIGTERM alone, waits for the end of a step and knows no other way to end. Here a
step that is under way is abandoned, and the checkpoint is that of the last finished step, so that it resumes as if nothing had
happened. On several cards the step is finished: the ranks save together or not at all.
"""

from __future__ import annotations

import logging
import random
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy
import torch
from transformers import Trainer, TrainerCallback

from qwen_vl_grpo import attempts, checkpoints, ranks
from qwen_vl_grpo.errors import HardwareError, briefly

log = logging.getLogger("qwen_vl_grpo")


class Terminated(SystemExit):
    """A signal of attempts.STOPS as an exception that the run can answer; its exit code is the shell's, 143 for SIGTERM."""


class Rescue(TrainerCallback):
    """Stops a run between two steps' updates, and writes the checkpoint that `trainer.train(resume_from_checkpoint=…)` takes."""

    def __init__(self) -> None:
        self.trainer: Trainer | None = None
        self.asked: signal.Signals | None = None
        self._updating = self._settling = self._together = False
        self._before: dict[signal.Signals, Any] = {}
        self._start: dict[str, Any] = {}

    def listen(self) -> None:
        """Answer the signals of attempts.STOPS from now on; without this all but Ctrl-C end Python before anything can be written."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._signalled) for number in attempts.STOPS}

    def release(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def watch(self, trainer: Trainer) -> None:
        self.trainer = trainer
        trainer.add_callback(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._together = args.world_size > 1

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._start = {"tokens": state.num_input_tokens_seen, "generators": generators()}
        self._settled()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._updating = self._settling = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._updating = False
        self._start = {"tokens": state.num_input_tokens_seen, "generators": generators()}
        if self._together and self._agreed():
            control.should_save = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._together = False
        self._settled()

    def keep(self) -> str | None:
        """Write the last finished step's checkpoint and return its folder's name; where that cannot be, the newest one that is whole.

        None where no step was finished, or none is left. Further signals are passed over until `release`.
        """
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)
        trainer = self.trainer
        if trainer is None or trainer.state.global_step == 0:
            return None
        folder = Path(str(trainer.args.output_dir)) / f"checkpoint-{trainer.state.global_step}"
        if not checkpoints.sealed(folder):
            try:
                self._write(trainer)
            except Exception as error:  # a card that died takes the trainer's weights with it
                log.warning("the checkpoint of step %d cannot be written: %s", trainer.state.global_step, " ".join(str(error).split()))
        kept = checkpoints.in_order(folder.parent)
        return kept[-1].name if kept else None

    def _write(self, trainer: Trainer) -> None:
        if self._updating:
            raise RuntimeError("the next update had begun to change the weights")
        if trainer.args.world_size > 1:
            raise RuntimeError("it needs every process of the run, and the others may be gone")
        trainer.state.num_input_tokens_seen = self._start["tokens"]
        restore(self._start["generators"])
        model: Any = trainer.model
        trainer._save_checkpoint(model, trial=None)

    def _agreed(self) -> bool:
        """Whether any rank was asked to stop; then all of them stop once they have saved, and no signal keeps one from that."""
        if asked := max(ranks.gathered(int(self.asked or 0))):
            self.asked, self._together = signal.Signals(asked), False
            for number in self._before:
                signal.signal(number, signal.SIG_IGN)
        return bool(asked)

    def _settled(self) -> None:
        self._settling = False
        if self.asked is not None and not self._together:
            _stop(self.asked)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        """Stop at once, but not within an update or the logging and saving after it, nor in a step that other ranks take part in; a
        second signal does not wait for these.
        """
        if (self._settling or self._together) and self.asked is None:
            self.asked = signal.Signals(number)
            log.info("%s: the run stops as soon as this step is kept", self.asked.name)
            return
        _stop(number)


def in_one_sentence(error: BaseException) -> BaseException:
    """What ends a run, with torch's pages on memory that is used up made one error of ours."""
    if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "can't allocate memory" not in str(error):
        return error
    meant = HardwareError(f"out of memory ({briefly(error)}); `grpo plan` says what this run needs, and which knob to turn first")
    meant.__cause__ = error
    return meant


def generators() -> dict[str, Any]:
    """The state of every random generator that a step draws from, as transformers saves it."""
    state = {"python": random.getstate(), "numpy": numpy.random.get_state(), "cpu": torch.random.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def restore(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    numpy.random.set_state(state["numpy"])
    torch.random.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def _stop(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Terminated(128 + number)
