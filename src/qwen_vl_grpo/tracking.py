"""Weights & Biases: the only file that imports wandb.

The id of the W&B run is the run_id. Nothing here passes `step=`: the trainer logs its own step, and W&B drops in silence
what comes with an older one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import TrackingError

OURS = ("step", "attempt", "time")
PICTURE_SIDE = 512
"""Longest side of a picture in a table, in pixels: enough to see what was asked, and a PNG of a photograph stays under 0.5 MB."""

SECRETS = ("token", "key", "secret", "password")


def start(config: RunConfig, task: str, run_dir: Path, written: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Start tracking and return what the card keeps of it; raises TrackingError if W&B was asked for and does not start.

    `written` are the metrics of earlier attempts: those that W&B does not have are reported first. A kill takes the last 32 KiB of
    an offline run with it (wandb 0.31), so there everything is reported again and the earlier folder is set aside for `wandb sync`.
    """
    if config.tracking.report_to == "none":
        return {"report_to": "none"}
    mode = config.tracking.mode
    if mode == "auto":
        mode = "online" if os.environ.get("WANDB_API_KEY") else "offline"
    os.environ.setdefault("WANDB_DATA_DIR", str(run_dir / "wandb-data"))
    os.environ.setdefault("WANDB_SILENT", "true")
    try:
        import wandb

        if mode == "offline":
            for folder in (run_dir / "wandb").glob("offline-run-*"):
                folder.rename(folder.with_name(folder.name.replace("offline-run", "replaced-run")))
        run = wandb.init(
            project=config.tracking.project,
            id=config.run_id,
            name=config.run_id,
            group=config.registry.group or task,
            job_type="train",
            tags=list(config.tracking.tags),
            dir=str(run_dir),
            mode=mode,
            resume="allow",
            config=scrub(config.model_dump(mode="json")),
        )
        report_again(run, written)
    except Exception as error:  # wandb raises its own and others' errors alike
        raise TrackingError(
            f"tracking: W&B did not start ({' '.join(str(error).split())[:200]}); set tracking.mode: offline, or tracking.report_to: none"
        ) from None
    return {"report_to": "wandb", "project": config.tracking.project, "id": config.run_id, "mode": mode, "url": run.url}


def report_again(run: Any, written: Sequence[dict[str, Any]]) -> None:
    """Report the lines of metrics.jsonl that W&B does not have, each step once, as transformers' callback names them."""
    run.define_metric("train/global_step")
    run.define_metric("*", step_metric="train/global_step", step_sync=True)
    had = dict(run.summary).get("train/global_step", 0) if run.resumed else 0
    reached = had
    for attempt in sorted({line["attempt"] for line in written}):
        lines = [line for line in written if line["attempt"] == attempt and line["step"] > reached]
        for line in lines:
            values = {key: value for key, value in line.items() if key not in OURS}
            own = {key if key.startswith(("eval/", "alarms/")) else f"train/{key}": value for key, value in values.items()}
            run.log(own | {"train/global_step": line["step"]})
        reached = max([reached, *(line["step"] for line in lines)])


def pass_over(trainer: Any, written: Sequence[dict[str, Any]]) -> None:
    """Do not report the steps that are done again: the curves would run backwards."""
    reached = max((line["step"] for line in written), default=0)

    def later(on_log: Any) -> Any:
        return lambda args, state, control, **named: on_log(args, state, control, **named) if state.global_step > reached else None

    for callback in trainer.callback_handler.callbacks:
        if type(callback).__name__ == "WandbCallback":
            callback.on_log = later(callback.on_log)


def log(metrics: dict[str, float]) -> None:
    """Add metrics beside the trainer's, if there is a W&B run."""
    if (run := _run()) is not None:
        run.log(metrics)


def pictures(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The pictures of a table's rows for W&B, one shrunken file each; as they are if there is no W&B run.

    The rows of a group share their picture. As it is, W&B writes a PNG of its full size for each row while the step waits.
    """
    if _run() is None:
        return [list(row) for row in rows]
    made: dict[int, Any] = {}
    for picture in {id(picture): picture for row in rows for picture in row}.values():
        small = picture.copy()
        small.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
        made[id(picture)] = sys.modules["wandb"].Image(small)
    return [[made[id(picture)] for picture in row] for row in rows]


def alert(title: str, text: str) -> None:
    """Tell the people who follow the W&B run, if there is one; an offline run tells them when it is synced."""
    if (run := _run()) is not None:
        run.alert(title=title, text=text)


def finish() -> None:
    """Flush and close the W&B run, if there is one."""
    if (run := _run()) is not None:
        run.finish()


def _run() -> Any:
    return sys.modules["wandb"].run if "wandb" in sys.modules else None


def scrub(value: Any, key: str = "") -> Any:
    """Replace the values of keys that look like secrets; W&B stores a config in clear text."""
    if isinstance(value, dict):
        return {name: scrub(inner, name) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(inner, key) for inner in value]
    if isinstance(value, str) and any(key.lower().endswith(secret) for secret in SECRETS):
        return "***"
    return value
