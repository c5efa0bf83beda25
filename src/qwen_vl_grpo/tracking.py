"""Trackers: the only file that imports wandb, trackio or TensorBoard.

A run has its run_id as its id in each of them, and its metrics the same names. Nothing here passes `step=` to W&B or trackio: the
trainer logs its own step, and W&B drops in silence what comes with an older one. Only the main process tracks. A tracker that fails
before the first step stops the run that asked for it; one that fails later is a warning, since metrics.jsonl has everything.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from qwen_vl_grpo import hardware
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import ConfigError, TrackingError
from qwen_vl_grpo.interfaces import RunCard

log = logging.getLogger("qwen_vl_grpo")

OURS = ("step", "attempt", "time")
PICTURE_SIDE = 512
"""Longest side of a picture in a table, in pixels: enough to see what was asked, and a PNG of a photograph stays under 0.5 MB."""

SECRETS = ("token", "key", "secret", "password")
CALLBACKS = {"WandbCallback": "wandb", "TrackioCallback": "trackio", "TensorBoardCallback": "tensorboard"}
"""Transformers' callbacks, and what they report to."""

_writers: list[Any] = []
"""The TensorBoard writer of this process's run."""
_failed: set[str] = set()


def refuse(config: RunConfig) -> None:
    """Raise ConfigError for a tracker that is not installed, and say where trackio keeps a run before TRL imports it."""
    for name in config.tracking.trackers:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"tracking.report_to: {name} is not installed here; `pip install {name}`, or leave it out")
    os.environ.setdefault("TRACKIO_DIR", str(config.run_dir.resolve() / "trackio"))


def start(config: RunConfig, task: str, run_dir: Path, written: Sequence[dict[str, Any]] = (), step: int = 0) -> dict[str, Any]:
    """Start tracking and return what the card keeps of it; raises TrackingError if a tracker was asked for and does not start.

    `written` are the metrics of earlier attempts, of which this one goes on from `step`: what a tracker lacks is reported first.
    """
    record: dict[str, Any] = {"report_to": config.tracking.report_to}
    if not hardware.is_main_process():
        return record
    starts = {"wandb": _start_wandb, "trackio": _start_trackio, "tensorboard": _start_tensorboard}
    for name in config.tracking.trackers:
        try:
            record |= starts[name](config, task, run_dir, written, step)
        except Exception as error:  # trackers raise their own and others' errors alike
            hint = "set tracking.mode: offline, or " if name == "wandb" else ""
            shown = "W&B" if name == "wandb" else name
            raise TrackingError(
                f"tracking: {shown} did not start ({' '.join(str(error).split())[:200]}); {hint}leave it out of tracking.report_to"
            ) from None
    return record


def _start_wandb(config: RunConfig, task: str, run_dir: Path, written: Sequence[dict[str, Any]], step: int) -> dict[str, Any]:
    """A kill takes the last 32 KiB of an offline run with it (wandb 0.31), so there everything is reported again, tables too, and the
    earlier folder is set aside for `wandb sync`.
    """
    section = config.tracking
    mode = wandb_mode(section.mode)
    if mode == "offline":
        for folder in (run_dir / "wandb").glob("offline-run-*"):
            folder.rename(folder.with_name(folder.name.replace("offline-run", "replaced-run")))
    run = wandb_run(
        run_dir, mode, project=section.project, id=config.run_id, name=config.run_id, group=config.registry.group or task,
        job_type="train", tags=list(section.tags), resume="allow", config=scrub(config.model_dump(mode="json")),
    )  # fmt: skip
    report_again(run, written, run_dir / "completions" if mode == "offline" else None, step)
    client: Any = sys.modules["wandb"]
    client.log = run.log = _passing_over_tables(forgiving("W&B", run.log))  # transformers and TRL call the one, this file the other
    return {"project": section.project, "id": config.run_id, "mode": mode, "url": run.url}


def _passing_over_tables(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same `log`, without tables once it has failed: a table waits 20 s for a service that is gone (wandb 0.31), at each step."""
    return lambda metrics, **named: None if "completions" in metrics and "W&B" in _failed else call(metrics, **named)


def wandb_mode(asked: str = "auto") -> str:
    """`online` or `offline`."""
    return asked if asked != "auto" else "online" if os.environ.get("WANDB_API_KEY") else "offline"


def wandb_run(folder: Path, mode: str, **named: Any) -> Any:
    """A new W&B run with its files in `folder`; raises whatever wandb does."""
    os.environ.setdefault("WANDB_DATA_DIR", str(folder / "wandb-data"))
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_FINISH_TIMEOUT", "60")  # wandb would wait for a service that is gone for ever
    os.environ.setdefault("WANDB_FINISH_TIMEOUT_RAISES", "true")
    import wandb

    return wandb.init(dir=str(folder), mode=mode, **named)  # type: ignore[arg-type]


def report_again(run: Any, written: Sequence[dict[str, Any]], tables: Path | None = None, step: int = 0) -> None:
    """Report the lines of metrics.jsonl that W&B does not have, and of steps up to `step` the completions in the folder `tables`.

    A step's pictures are not kept beside its completions, so these tables have none.
    """
    run.define_metric("train/global_step")
    run.define_metric("*", step_metric="train/global_step", step_sync=True)
    had = dict(run.summary).get("train/global_step", 0) if run.resumed else 0
    for line in lacking(written, had):
        run.log(line)
        reached = line["train/global_step"]
        path = tables and tables / f"completions_{reached:05d}.parquet"
        if path and "train/reward" in line and reached <= step and path.is_file():
            import pandas

            run.log({"completions": sys.modules["wandb"].Table(dataframe=pandas.read_parquet(path))})


def lacking(written: Sequence[dict[str, Any]], had: int) -> Iterator[dict[str, Any]]:
    """The metrics after step `had`, each step's once, as transformers' callbacks name them."""
    reached = had
    for attempt in sorted({line["attempt"] for line in written}):
        lines = [line for line in written if line["attempt"] == attempt and line["step"] > reached]
        for line in lines:
            values = {key: value for key, value in line.items() if key not in OURS}
            own = {key if key.startswith(("eval/", "alarms/")) else f"train/{key}": value for key, value in values.items()}
            yield own | {"train/global_step": line["step"]}
        reached = max([reached, *(line["step"] for line in lines)])


def _start_trackio(config: RunConfig, task: str, run_dir: Path, written: Sequence[dict[str, Any]], step: int) -> dict[str, Any]:
    """A kill takes at most the last half second with it (trackio 0.43)."""
    import trackio  # type: ignore[import-not-found]
    from trackio.sqlite_storage import SQLiteStorage  # type: ignore[import-not-found]

    section = config.tracking
    with contextlib.redirect_stdout(sys.stderr):  # stdout is the command's own
        run = trackio.init(
            section.project,
            config.run_id,
            group=config.registry.group or task,
            resume="allow",
            config=scrub(config.model_dump(mode="json")),
        )
        had = [line.get("train/global_step", 0) for line in SQLiteStorage.get_logs(section.project, config.run_id)]
        for line in lacking(written, max(had, default=0)):
            run.log(line)
    return {"trackio": {"project": section.project, "folder": os.environ.get("TRACKIO_DIR")}}


def _start_tensorboard(config: RunConfig, task: str, run_dir: Path, written: Sequence[dict[str, Any]], step: int) -> dict[str, Any]:
    """The events lie in the run's own folder, which TensorBoard takes for the run's name; earlier ones are written again."""
    from torch.utils.tensorboard import SummaryWriter

    for events in run_dir.glob("events.out.tfevents.*"):
        events.unlink()
    writer = SummaryWriter(str(run_dir))
    _writers.append(writer)
    for line in lacking(written, 0):
        _write_scalars(line, line["train/global_step"])
    writer.flush()
    return {}


def _write_scalars(metrics: dict[str, Any], step: int) -> None:
    for name, value in metrics.items():
        if isinstance(value, int | float) and name != "train/global_step":
            _writers[-1].add_scalar(name, value, step)


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
        if name == "tensorboard" and _writers:
            callback.tb_writer = _writers[-1]


def forgiving(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, that only warns, once, where it fails; what it prints goes to stderr."""

    def tried(*arguments: Any, **named: Any) -> Any:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                return call(*arguments, **named)
        except Exception as error:
            if name not in _failed:
                log.warning("%s: %s; it has gaps from here on, the files here have none", name, f"{type(error).__name__}: {error}"[:200])
            _failed.add(name)

    return tried


def log_metrics(metrics: dict[str, float], step: int) -> None:
    """Add metrics beside the trainer's, to every tracker that runs."""
    if (run := _wandb()) is not None:
        run.log(metrics)
    if (run := _trackio()) is not None:
        run.log(metrics | {"train/global_step": step})
    if _writers:
        _write_scalars(metrics, step)


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
        forgiving("W&B", run.finish)()
    if _trackio() is not None:
        forgiving("trackio", sys.modules["trackio"].finish)()
    while _writers:
        _writers.pop().close()


def _wandb() -> Any:
    return sys.modules["wandb"].run if "wandb" in sys.modules else None


def _trackio() -> Any:
    return sys.modules["trackio"].context_vars.current_run.get() if "trackio" in sys.modules else None


def scrub(value: Any, key: str = "") -> Any:
    """Replace the values of keys that look like secrets; trackers store a config in clear text."""
    if isinstance(value, dict):
        return {name: scrub(inner, name) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(inner, key) for inner in value]
    if isinstance(value, str) and any(key.lower().endswith(secret) for secret in SECRETS):
        return "***"
    return value
