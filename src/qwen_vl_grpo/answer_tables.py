"""Tables of answers in W&B: what a run was scored on, and what it was asked later, each a W&B run in the group of the run_id.

Training has a W&B run of its own (tracking.py). Pictures are shrunken and rows bounded: the files on disk have everything.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

from PIL import Image

from qwen_vl_grpo import fetching, gallery, trackers, tracking
from qwen_vl_grpo.errors import DataError, TrackingError, briefly
from qwen_vl_grpo.interfaces import RunCard
from qwen_vl_grpo.items import Item
from qwen_vl_grpo.journal import Record

ROWS = 64
"""Answers in the table of one inference run."""
SCORED = ("before", "after", "blind", "without_adapter")
COLUMNS = (
    "item", "prompt", "image", "answer", "reasoning", "well_formed", "finish_reason", "prompt_tokens", "completion_tokens", "seconds",
    "error",
)  # fmt: skip
MEASURED = ("seconds", "prompt_tokens", "completion_tokens")


def evaluation(card: RunCard, run_dir: Path) -> None:
    """Send a finished run's scores, and its answers before and after, as the W&B run `eval-<run_id>`; what fails is a warning."""
    if card.tracking.get("mode") and any(when in card.metrics for when in SCORED):
        tracking.forgiving("W&B", _evaluation)(card, run_dir)


def _evaluation(card: RunCard, run_dir: Path) -> None:
    run = _open(card, run_dir, "evaluation", f"eval-{card.run_id}", card.tracking["mode"], {"held_out": card.dataset.get("held_out")})
    wandb = sys.modules["wandb"]
    columns = ["when", "completions", "correct", "low", "high", "format", "official", "n", "rows"]
    scores = [
        [when, kind, values.get("correct"), *values.get("interval", (None, None)), *(values.get(name) for name in columns[5:])]
        for when in SCORED
        for kind, values in _kinds(card.metrics.get(when)).items()
    ]
    run.log({"scores": wandb.Table(columns=columns, data=scores)})
    for when, kind, correct, *_, n, _rows in scores:
        run.summary.update({f"{when}/{kind}/correct": correct, f"{when}/{kind}/n": n})
    whens = ("before", "after")
    answers = [
        [
            item["id"], item["question"], [wandb.Image(str(run_dir / name)) for name in item["pictures"]], str(item["gold"]),
            *(value for when in whens for value in (item.get(when, {}).get("completion"), item.get(when, {}).get("correct"))),
        ]
        for item in gallery.read(run_dir)[0]
    ]  # fmt: skip
    columns = ["item", "prompt", "image", "gold", *(f"{when}/{name}" for when in whens for name in ("completion", "correct"))]
    run.log({"answers": wandb.Table(columns=columns, data=answers)})
    trackers.finish(run)


def _kinds(scores: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Scores by kind of completions; those to a white picture are of greedy ones alone."""
    return {"greedy": scores} if scores and scores.keys() & {"correct", "rewards"} else scores or {}


class Inference:
    """One W&B run `infer-<run_id>-<time>` for each run that answers; raises TrackingError if it does not start.

    What fails later is a warning: the answers are on disk.
    """

    def __init__(self, cards: Sequence[RunCard], folder: Path, items: Sequence[Item], asked: dict[str, Any], allow_private: bool):
        self._items, self._allow_private = {item.id: item for item in items}, allow_private
        self._records: dict[str, list[Record]] = defaultdict(list)
        self._runs: dict[str, Any] = {}
        time = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")[:-3]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for card in cards:
                run = _open(card, folder, "inference", f"infer-{card.run_id}-{time}", trackers.wandb_mode(), asked)
                self._runs[card.run_id] = run
                run.define_metric("infer/*", step_metric="infer/index")
        except Exception as error:  # wandb raises its own and others' errors alike
            said = briefly(error)
            raise TrackingError(
                f"--wandb: W&B did not start ({said}); leave --wandb out, or unset WANDB_API_KEY to keep it offline"
            ) from None

    def __enter__(self) -> Inference:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for run_id, run in self._runs.items():
            tracking.forgiving("W&B", self._summarize)(run_id, run)
            tracking.forgiving("W&B", trackers.finish)(run, exit_code=0 if kind is None else 1)

    def add(self, record: Record) -> None:
        """Send how long an answer took, and how many tokens it has."""
        told = self._records[record["run_id"]]
        told.append(record)
        values = {f"infer/{name}": record[name] for name in MEASURED if name in record}
        values |= {"infer/index": len(told), "infer/error": int(record["error"] is not None)}
        tracking.forgiving("W&B", self._runs[record["run_id"]].log)(values)

    def _summarize(self, run_id: str, run: Any) -> None:
        told = self._records[run_id]
        rows = [[self._cell(record, name) for name in COLUMNS] for record in told[:ROWS]]
        run.log({"answers": sys.modules["wandb"].Table(columns=list(COLUMNS), data=rows)})
        failed = sum(record["error"] is not None for record in told)
        run.summary.update({"answered": len(told) - failed, "failed": failed, "shown": len(rows)})

    def _cell(self, record: Record, name: str) -> Any:
        return (
            [sys.modules["wandb"].Image(tracking.shrunken(image)) for image in self._pictures(record)]
            if name == "image"
            else record.get(name)
        )

    def _pictures(self, record: Record) -> list[Image.Image]:
        """The pictures of an answer, opened once more; those that cannot be, or have changed since, are left out."""
        item, hashes = self._items[record["item"]], record.get("image_sha256", [])
        found = []
        for place, (source, sha256) in enumerate(zip(item.images, hashes, strict=False)):
            try:
                picture = item.opened[place] if item.opened else fetching.picture(source, item.folder, self._allow_private)
            except DataError:
                continue
            if picture.sha256 == sha256:
                found.append(picture.image)
        return found


def _open(card: RunCard, folder: Path, job_type: str, name: str, mode: str, told: dict[str, Any]) -> Any:
    """A W&B run beside others of this process, without the command line, which may hold a secret, and without what is printed."""
    section = card.config.get("tracking", {})
    about = {
        "run_id": card.run_id,
        "base_model": card.base_model,
        "base_revision": card.base_revision,
        "task": card.task,
        "digest": card.digest,
    }
    return trackers.wandb_run(
        folder, mode, project=section.get("project", "grpo"), id=name, name=name, group=card.run_id, job_type=job_type,
        tags=list(section.get("tags", ())), reinit="create_new", resume="allow", config=trackers.scrub(about | told),
        settings={"console": "off", "x_disable_meta": True, "x_disable_stats": True},
    )  # fmt: skip
