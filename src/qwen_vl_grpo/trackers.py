"""How each tracker starts: the only file that imports wandb, trackio or TensorBoard.

A run has its run_id as its id in each of them, and its metrics the same names. Nothing here passes `step=` to W&B or trackio: the
trainer logs its own step, and W&B drops in silence what comes with an older one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from qwen_vl_grpo.config import RunConfig

OURS = ("step", "attempt", "time")
SECRETS = ("token", "key", "secret", "password")

writers: list[Any] = []
"""The TensorBoard writer of this process's run."""


def start_wandb(config: RunConfig, task: str, run_dir: Path, written: Sequence[dict[str, Any]], step: int) -> dict[str, Any]:
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
    return {"project": section.project, "id": config.run_id, "mode": mode, "url": run.url}


def wandb_mode(asked: str = "auto") -> str:
    """What the config asks for, else WANDB_MODE, which wandb does not read beside an argument, else `online` where there is a key."""
    if asked == "auto":
        asked = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
    return {"dryrun": "offline", "run": "online"}.get(asked, asked)


def wandb_run(folder: Path, mode: str, **named: Any) -> Any:
    """A new W&B run with its files in `folder`; raises whatever wandb does."""
    os.environ.setdefault("WANDB_DATA_DIR", str(folder / "wandb-data"))
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_FINISH_TIMEOUT", "60")  # wandb would wait for a service that is gone for ever
    os.environ.setdefault("WANDB_FINISH_TIMEOUT_RAISES", "true")
    import wandb

    return wandb.init(dir=str(folder), mode=mode, **named)  # type: ignore[arg-type]


def finish(run: Any, longer: float = 15.0, **how: Any) -> None:
    """Let a W&B run finish in WANDB_FINISH_TIMEOUT and `longer` seconds, or take its process away, which wandb says as an error.

    Its own limit does not hold for an artifact that was on its way when the service went: that is tried again for ever (wandb 0.31).
    """
    limit = float(os.environ["WANDB_FINISH_TIMEOUT"])
    timer = threading.Timer(limit + longer, _take_away)
    timer.daemon = True
    if limit > 0:  # 0 waits for ever
        timer.start()
    try:
        run.finish(**how)
    finally:
        timer.cancel()


def _take_away() -> None:
    import psutil  # only for a service that is gone

    for process in psutil.Process().children():
        if process.name().startswith("wandb-core"):
            process.kill()


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


def start_trackio(config: RunConfig, task: str, run_dir: Path, written: Sequence[dict[str, Any]], step: int) -> dict[str, Any]:
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


def start_tensorboard(config: RunConfig, task: str, run_dir: Path, written: Sequence[dict[str, Any]], step: int) -> dict[str, Any]:
    """The events lie in the run's own folder, which TensorBoard takes for the run's name; earlier ones are written again."""
    from torch.utils.tensorboard import SummaryWriter

    for events in run_dir.glob("events.out.tfevents.*"):
        events.unlink()
    writer = SummaryWriter(str(run_dir))
    writers.append(writer)
    for line in lacking(written, 0):
        write_scalars(line, line["train/global_step"])
    writer.flush()
    return {}


def write_scalars(metrics: dict[str, Any], step: int) -> None:
    for name, value in metrics.items():
        if isinstance(value, int | float) and name != "train/global_step":
            writers[-1].add_scalar(name, value, step)


def scrub(value: Any, key: str = "") -> Any:
    """Replace the values of keys that look like secrets; trackers store a config in clear text."""
    if isinstance(value, dict):
        return {name: scrub(inner, name) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(inner, key) for inner in value]
    if isinstance(value, str) and any(key.lower().endswith(secret) for secret in SECRETS):
        return "***"
    return value
