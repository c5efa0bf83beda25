"""What a run writes as it goes: metrics.jsonl, training.log, its alarms, and a line or a bar for the person who watches."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import Trainer, TrainerCallback

from qwen_vl_grpo import hardware, tracking
from qwen_vl_grpo.alarms import Watch
from qwen_vl_grpo.errors import AlarmError

log = logging.getLogger("qwen_vl_grpo")


class Ledger(TrainerCallback):
    """Append every logged metric to metrics.jsonl, and show the step, the reward and the time left."""

    def __init__(self, run_dir: Path, steps: int, attempt: int = 1, done: Sequence[dict[str, Any]] = (), stop: Collection[str] = ()):
        """`done` are the metrics of the steps that an earlier attempt did and this one goes on from.

        An alarm of `stop` raises AlarmError where it starts: one that held already when a run is resumed does not end it again.
        """
        self.attempt, self.stop = attempt, stop
        self.metrics_path = run_dir / "metrics.jsonl"
        self.last: dict[str, Any] = {}
        self.watch = Watch()
        for line in done:
            self._remember(line)
            self.watch.update(line)
        self.progress = Bar("GRPO", steps)
        written = self.metrics_path.read_bytes() if self.metrics_path.is_file() else b""
        self._torn = "\n" if written and not written.endswith(b"\n") else ""  # a line that a kill cut short stays, by itself
        self.file = logging.FileHandler(run_dir / "training.log", encoding="utf-8")
        rank = "" if hardware.is_main_process() else f"rank {os.environ['RANK']} "
        self.file.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {rank}%(name)s: %(message)s"))
        if rank:
            self.file.setLevel(logging.WARNING)  # the rest is what the main process says, too
        else:
            _newest(run_dir / "training.log")
        logging.getLogger().addHandler(self.file)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        entry = {"step": state.global_step, "attempt": self.attempt, "time": round(time.time(), 3)} | {
            _slash(key): value for key, value in logs.items()
        }
        fatal = [alarm for alarm in self._sound(entry) if alarm["name"] in self.stop]
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(self._torn + json.dumps(entry) + "\n")
        self._torn = ""
        self._remember(entry)
        if "reward" in logs:
            self.progress.shown = f"reward {logs['reward']:.3f}"
        for alarm in fatal:
            raise AlarmError(f"alarm {alarm['name']} at step {state.global_step}: {alarm['text']}; it is one of alarms.stop")

    def _remember(self, entry: dict[str, Any]) -> None:
        if "reward" in entry:
            self.last = {key: entry[key] for key in ("reward", "loss", "grad_norm", SAMPLING_GAP) if key in entry}

    def _sound(self, entry: dict[str, Any]) -> list[dict[str, Any]]:
        """Say once that an alarm starts and once that it ends, and mark the steps between; returns those that started."""
        started, ended = self.watch.update(entry)
        for alarm in started:
            log.warning("alarm %s at step %d: %s", alarm["name"], entry["step"], alarm["text"])
            tracking.alert(f"{alarm['name']} at step {entry['step']}", alarm["text"])
        for alarm in ended:
            log.info("alarm %s is over at step %d; it held from step %d", alarm["name"], entry["step"], alarm["first_step"])
        held = self.watch.on if "reward" in entry else {}
        marks = {f"alarms/{alarm['name']}": 0.0 for alarm in ended} | {f"alarms/{name}": 1.0 for name in held}
        if started or ended:
            tracking.log_metrics(marks, entry["step"])
        entry |= marks
        return started

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.progress.on_train_begin(args, state, control, **named)

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.progress.on_step_end(args, state, control, **named)

    def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.progress.on_train_end(args, state, control, **named)

    def close(self) -> None:
        self.progress.stop()
        logging.getLogger().removeHandler(self.file)
        self.file.close()


class Beginning(TrainerCallback):
    """Do something once the trainer has put the model where it trains, before the first step."""

    def __init__(self, act: Callable[[], None]):
        self.act = act

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.act()


class Every(TrainerCallback):
    """Measure something every so many steps, the last one aside, and log it beside the step's own metrics."""

    def __init__(self, steps: int, trainer: Trainer, measure: Callable[[int], dict[str, float]]):
        self.steps, self.trainer, self.measure = steps, trainer, measure

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.steps == 0 and state.global_step < state.max_steps:
            due = control.should_log
            Trainer.log(self.trainer, self.measure(state.global_step))  # past GRPOTrainer.log, which would add its training metrics
            control.should_log = due  # logging clears it, and the step's own metrics would be lost


SAMPLING_GAP = "rollouts/logp_difference/mean"


class Bar(TrainerCallback):
    """A progress bar on a terminal, and a line every tenth of the way elsewhere."""

    def __init__(self, what: str, steps: int):
        self.what, self.steps, self.shown = what, steps, ""
        self.display: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero and sys.stderr.isatty():
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[shown]}"),
            )
            self.display = Progress(*columns, console=Console(stderr=True))
            self.display.start()
            self.task = self.display.add_task(self.what, total=self.steps, shown="")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.display is not None:
            self.display.update(self.task, completed=state.global_step, shown=self.shown)
        elif state.is_world_process_zero and state.global_step % max(1, self.steps // 10) == 0:
            log.info("%s: step %d of %d %s", self.what, state.global_step, self.steps, self.shown)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.stop()

    def stop(self) -> None:
        if self.display is not None:
            self.display.stop()
            self.display = None


def _newest(path: Path) -> None:
    """Let {output_dir}/training.log be this run's, for whoever follows the newest one; a file of someone's own stays."""
    link, beside = path.parents[1] / path.name, path.parents[1] / f".{path.name}.{os.getpid()}"
    if link.is_symlink() or not link.exists():
        with suppress(OSError):  # a file system without links
            beside.symlink_to(path.relative_to(link.parent))
            os.replace(beside, link)


def _slash(key: str) -> str:
    return "eval/" + key.removeprefix("eval_") if key.startswith("eval_") else key
