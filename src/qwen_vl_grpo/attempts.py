"""The attempts that a run takes when it is killed and resumed: which run may go on, and what its card says of each."""

from __future__ import annotations

import fcntl
import json
import math
import signal
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from qwen_vl_grpo import checkpoints, hardware, registry
from qwen_vl_grpo.config import RunConfig, check, launched
from qwen_vl_grpo.errors import ConfigError, RegistryError
from qwen_vl_grpo.identity import differences
from qwen_vl_grpo.interfaces import RunCard

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""What stops a run that then keeps its last step: Ctrl-C, a machine that is taken away, and what Slurm's --signal sends before that."""


def resumable(config: RunConfig) -> RunCard:
    """The card of the run that this config goes on with; reads no weights.

    Raises RegistryError if there is no such run, it is running or at its end, ConfigError with the keys that differ or for
    another number of processes.
    """
    card = begun(config)
    before, now = card.hardware.get("processes", 1), launched()
    if before != now:
        raise ConfigError(
            f"run_id {config.run_id}: was trained by {before} processes, and this launch has {now}: which rows a step takes and what seeds "
            f"its rollouts follow from their number; resume it with {before}, or start another run from its weights with init_from"
        )
    if ended(card, config):
        raise RegistryError(f"run_id {config.run_id}: has reached step {_reached(config)} already; raise max_steps to go on")
    if card.pruned:
        raise RegistryError(
            f"run_id {config.run_id}: was pruned, so its optimizer's state is gone; start a new run from its weights with init_from"
        )
    return card


def begun(config: RunConfig) -> RunCard:
    """The card of the run that has this config, at its end or not.

    Raises RegistryError if there is no such run or it is running, ConfigError with the keys that differ.
    """
    run_dir = config.run_dir
    if not run_dir.exists():
        raise RegistryError(f"run_id {config.run_id}: there is no run in {run_dir} to resume; leave out --resume to start it")
    hold(run_dir).close()
    card = registry.read(run_dir)
    if keys := differences(check(card.config, str(run_dir / "run.json")), config):
        raise ConfigError(
            f"run_id {config.run_id}: cannot be resumed with another {', '.join(keys)}; give what {run_dir / 'config.yaml'} has, "
            "or choose another run_id"
        )
    return card


def ended(card: RunCard, config: RunConfig) -> bool:
    """Whether nothing of a run is left to do: its steps, and the scores after them."""
    reached = _reached(config)
    if card.state != "finished" or reached != config.max_steps:
        return reached > config.max_steps
    return card.checkpoint is None or checkpoints.whole(config.run_dir / card.checkpoint)  # one that has changed on the disk is made again


def _reached(config: RunConfig) -> int:
    return max(map(checkpoints.step_of, checkpoints.in_order(config.run_dir)), default=0)


def parent(config: RunConfig) -> tuple[RunCard, Path] | None:
    """The card of the run that this one starts from, and the folder with its weights; reads none.

    Raises RegistryError if there is no such run or it has no checkpoint, ConfigError if its weights belong to another model.
    """
    if config.init_from is None:
        return None
    card, run_dir = registry.resolve(config.init_from)
    folder, old = registry.checkpoint_folder(card, run_dir), check(card.config, str(run_dir / "run.json"))
    keys = [key for key in ("model_name", "model_revision", "lora") if getattr(old, key) != getattr(config, key)]
    if keys:
        raise ConfigError(f"init_from {config.init_from}: that run has another {', '.join(keys)}; give what its config.yaml has")
    if config.lora.enabled and old.warmup:
        raise ConfigError(
            f"init_from {config.init_from}: its adapter stands on the base that it warmed up, which is not {config.model_name}; start from "
            "a run without warmup, or one with lora.enabled: false"
        )
    return card, folder


def hold(run_dir: Path) -> IO[str]:
    """Keep every other process from this run until the file is closed or this process dies, by whatever hand.

    Of a run's own processes the main one has it for all. Raises RegistryError if another process has it.
    """
    file = (run_dir / registry.LOCK).open("w", encoding="utf-8")
    if not hardware.is_main_process():
        return file
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise RegistryError(f"{run_dir}: another process is running this run; wait for it, or stop it first") from None
    return file


def begin(card: RunCard, run_dir: Path, step: int) -> RunCard:
    """The card with one attempt more, which goes on from `step`; one that never ended was killed."""
    past = list(card.attempts)
    if past and past[-1]["end"] is None:
        lines = [line for line in metrics(run_dir) if line.get("attempt") == len(past)]
        seen = {"last_step": lines[-1]["step"], "end": _moment(lines[-1]["time"])} if lines else {"end": past[-1]["start"]}
        past[-1] = past[-1] | {"state": "killed"} | seen
    now = {"start": registry.now(), "end": None, "state": "running", "first_step": step + 1, "last_step": step}
    return card.model_copy(update={"attempts": [*past, now], "state": "running", "error": None, "finished": None})


def end(card: RunCard, state: str, step: int) -> RunCard:
    """The card with its last attempt ended in a state, after `step`."""
    last = card.attempts[-1] | {"end": registry.now(), "state": state, "last_step": step}
    return card.model_copy(update={"attempts": [*card.attempts[:-1], last]})


def died(run_dir: Path, reason: str) -> None:
    """Put on record why the processes of a run ended, which a process that is killed cannot say: on its card and in its log."""
    card = registry.read(run_dir)
    if card.state == "running":
        lines = [line["step"] for line in metrics(run_dir) if line.get("attempt") == len(card.attempts)]
        card = end(card, "failed", max([card.attempts[-1]["last_step"], *lines]))
        card = card.model_copy(update={"state": "failed", "finished": registry.now()})
    past = [*card.attempts[:-1], card.attempts[-1] | {"reason": reason}]
    registry.write(card.model_copy(update={"attempts": past, "error": card.error or reason}), run_dir)
    with (run_dir / "training.log").open("a", encoding="utf-8") as file:
        file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S},000 WARNING qwen_vl_grpo: {reason}\n")


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl in the order they were written, without one that a kill cut short."""
    path, lines = run_dir / "metrics.jsonl", []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def standing(lines: Sequence[dict[str, Any]], step: float = math.inf) -> list[dict[str, Any]]:
    """The lines of metrics of the steps up to `step`; of a step that was done again, those of its last attempt."""
    kept: list[dict[str, Any]] = []
    for line in lines:
        if kept and begins_anew((line["step"], line.get("attempt")), (kept[-1]["step"], kept[-1].get("attempt"))):
            kept = [earlier for earlier in kept if earlier["step"] < line["step"]]
        kept.append(line)
    return [line for line in kept if line["step"] <= step]


def best(run_dir: Path, metric: str | None) -> tuple[Path, float] | None:
    """The checkpoint at whose step a metric had last been highest, and its value; a metric that begins with - is best where it is lowest.

    Of equal ones the earliest, which the value was measured for. None where no line of metrics up to a checkpoint has the metric.
    """
    if metric is None:
        return None
    name, sign = metric.removeprefix("-"), -1 if metric.startswith("-") else 1
    lines = [line for line in standing(metrics(run_dir)) if line.get(name) is not None]
    known = [(line["step"], line[name]) for line in lines if math.isfinite(line[name])]
    there = [(folder, [value for step, value in known if step <= checkpoints.step_of(folder)]) for folder in checkpoints.in_order(run_dir)]
    found = [(folder, values[-1]) for folder, values in there if values]
    return max(found, key=lambda pair: sign * pair[1], default=None)


def begins_anew(line: tuple[float, Any], before: tuple[float, Any]) -> bool:
    """Whether a line of metrics at (step, attempt) does steps again, so that lines before it stand up to its step only.

    `before` is the place of the line before it. Runs from before there were attempts have None, and their steps tell.
    """
    return line[1] != before[1] or line[0] < before[0]


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
