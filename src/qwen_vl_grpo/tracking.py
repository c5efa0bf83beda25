"""What a run's trackers get while it runs; trackers.py starts them.

Only the main process tracks. A tracker that fails at the start stops the run that asked for it; one that fails later is a warning,
since metrics.jsonl has everything.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qwen_vl_grpo import hardware, trackers
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import ConfigError, TrackingError, briefly
from qwen_vl_grpo.interfaces import RunCard

log = logging.getLogger("qwen_vl_grpo")

PICTURE_SIDE = 512
"""Longest side of a picture in a table, in pixels: enough to see what was asked, and a PNG of a photograph stays under 0.5 MB."""

CALLBACKS = {"WandbCallback": "wandb", "TrackioCallback": "trackio", "TensorBoardCallback": "tensorboard"}
"""Transformers' callbacks, and what they report to."""

_failed: set[str] = set()


def refuse(config: RunConfig) -> None:
    """Raise ConfigError for a tracker that is not installed, and say where trackio keeps a run before TRL imports it."""
    for name in config.tracking.trackers:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"tracking.report_to: {name} is not installed here; `pip install {name}`, or leave it out")
    if "trackio" in config.tracking.trackers:
        os.environ.setdefault("TRACKIO_DIR", str(config.run_dir.resolve() / "trackio"))


def start(config: RunConfig, task: str, run_dir: Path, written: Sequence[dict[str, Any]] = (), step: int = 0) -> dict[str, Any]:
    """Start tracking and return what the card keeps of it; raises TrackingError if a tracker was asked for and does not start.

    `written` are the metrics of earlier attempts, of which this one goes on from `step`: what a tracker lacks is reported first.
    """
    record: dict[str, Any] = {"report_to": config.tracking.report_to}
    if not hardware.is_main_process():
        return record
    starts = {"wandb": trackers.start_wandb, "trackio": trackers.start_trackio, "tensorboard": trackers.start_tensorboard}
    for name in config.tracking.trackers:
        try:
            record |= starts[name](config, task, run_dir, written, step)
        except Exception as error:  # trackers raise their own and others' errors alike
            hint = "set tracking.mode: offline, or " if name == "wandb" else ""
            shown = "W&B" if name == "wandb" else name
            raise TrackingError(
                f"tracking: {shown} did not start ({' '.join(str(error).split())[:200]}); {hint}leave it out of tracking.report_to"
            ) from None
    if (run := _wandb()) is not None:
        client: Any = sys.modules["wandb"]
        client.log = run.log = _passing_over_tables(forgiving("W&B", run.log))  # transformers and TRL call the one, this file the other
    return record


def _passing_over_tables(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same `log`, without tables once it has failed: a table waits 20 s for a service that is gone (wandb 0.31), at each step."""
    return lambda metrics, **named: None if "completions" in metrics and "W&B" in _failed else call(metrics, **named)


def take_up(trainer: Any, written: Sequence[dict[str, Any]]) -> None:
    """Put transformers' callbacks on what was started here.

    They do not report the steps that are done again, since the curves would run backwards, and what they raise is a warning.
    """
    reached = max((line["step"] for line in written), default=0)

    def later(name: str, on_log: Any) -> Any:
        call = forgiving(name, on_log)
        return lambda args, state, control, **named: call(args, state, control, **named) if state.global_step > reached else None

    for callback in trainer.callback_handler.callbacks:
        name = CALLBACKS.get(type(callback).__name__)
        if name is None:
            continue
        callback.on_log = later(name, callback.on_log)
        callback.on_train_begin, callback.on_train_end = forgiving(name, callback.on_train_begin), forgiving(name, callback.on_train_end)
        if name == "trackio":
            callback._initialized = True  # its own start would take the group and the config away again
        if name == "tensorboard" and trackers.writers:
            callback.tb_writer = trackers.writers[-1]


def forgiving(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, that only warns, once, where it fails; what it prints goes to stderr."""

    def tried(*arguments: Any, **named: Any) -> Any:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                return call(*arguments, **named)
        except Exception as error:
            if name not in _failed:
                log.warning(
                    "%s: %s; it has gaps from here on, the files here have none",
                    name,
                    ": ".join(filter(None, (type(error).__name__, briefly(error)))),
                )
            _failed.add(name)

    return tried


def log_metrics(metrics: dict[str, float], step: int) -> None:
    """Add metrics beside the trainer's, to every tracker that runs."""
    if (run := _wandb()) is not None:
        run.log(metrics)
    if (run := _trackio()) is not None:
        run.log(metrics | {"train/global_step": step})
    if trackers.writers:
        trackers.write_scalars(metrics, step)


def pictures(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The pictures of a table's rows, shrunken once each, for W&B one file each; as they are if no tracker shows them.

    The rows of a group share their picture. As it is, W&B writes a PNG of its full size for each row while the step waits.
    """
    if _wandb() is None and _trackio() is None:
        return [list(row) for row in rows]
    made: dict[int, Any] = {}
    for picture in {id(picture): picture for row in rows for picture in row}.values():
        small = shrunken(picture)
        made[id(picture)] = small if _trackio() else sys.modules["wandb"].Image(small)  # trackio takes no picture of W&B's
    return [[made[id(picture)] for picture in row] for row in rows]


def log_pictures(shown: Mapping[str, Sequence[tuple[Sequence[Path], str]]], step: int | None) -> None:
    """Send pictures with their captions to W&B, under these names; without a step they belong to the last one that was logged.

    The files of one caption become one picture, from left to right.
    """
    if (run := _wandb()) is not None and shown:
        at = {} if step is None else {"train/global_step": step}

        def send() -> None:
            image = sys.modules["wandb"].Image
            one = {name: [_shown(image, files, said) for files, said in pictures] for name, pictures in shown.items()}
            run.log(one | at)

        forgiving("W&B", send)()


def _shown(image: Any, files: Sequence[Path], said: str) -> Any:
    """A kept file as it is, and several as one JPEG: W&B would write a PNG, which is ten times as large for a photograph."""
    return image(str(files[0]), caption=said) if len(files) == 1 else image(beside(files), caption=said, file_type="jpg")


def beside(files: Sequence[Path]) -> Any:
    """Pictures in a row, each as large as fits into the widest and the highest of them: W&B lays a list out by the size of its first."""
    from PIL import Image, ImageOps

    found = [Image.open(file).convert("RGB") for file in files]
    box = max(picture.width for picture in found), max(picture.height for picture in found)
    row = Image.new("RGB", (box[0] * len(found), box[1]))
    for place, picture in enumerate(found):
        row.paste(ImageOps.pad(picture, box, color="white"), (place * box[0], 0))
    return row


def shrunken(picture: Any) -> Any:
    small = picture.copy()
    small.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    return small


def alert(title: str, text: str) -> None:
    """Tell the people who follow the run in W&B or trackio; an offline W&B run tells them when it is synced."""
    for name, run in (("W&B", _wandb()), ("trackio", _trackio())):
        if run is not None:
            forgiving(name, run.alert)(title=title, text=text)


def refer(card: RunCard, run_dir: Path) -> None:
    """Point from the W&B run, if there is one, to the weights that the run keeps: their place and their sha256, not their bytes."""
    if (run := _wandb()) is None:
        return

    def name_weights() -> None:
        kept = {"base_model": card.base_model, "base_revision": card.base_revision, "sha256": card.checkpoint_files}
        artifact = sys.modules["wandb"].Artifact(f"weights-{card.run_id}", type="model", metadata=kept)
        for name in card.checkpoint_files:
            artifact.add_reference((run_dir / name).resolve().as_uri(), name=name, checksum=False)
        run.log_artifact(artifact)

    forgiving("W&B", name_weights)()


def finish() -> None:
    """Flush and close what tracks the run; W&B gives up after a minute if its service is gone, and `wandb sync` sends the rest later."""
    if (run := _wandb()) is not None:
        forgiving("W&B", trackers.finish)(run)
    if _trackio() is not None:
        forgiving("trackio", sys.modules["trackio"].finish)()
    while trackers.writers:
        trackers.writers.pop().close()


def _wandb() -> Any:
    return sys.modules["wandb"].run if "wandb" in sys.modules else None


def _trackio() -> Any:
    return sys.modules["trackio"].context_vars.current_run.get() if "trackio" in sys.modules else None
