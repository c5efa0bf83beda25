"""A run from the Hub into a folder, whole and checked, or not at all."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from qwen_vl_grpo import hub
from qwen_vl_grpo.checkpoints import sha256
from qwen_vl_grpo.errors import HubError

log = logging.getLogger("qwen_vl_grpo")

SAFE_NAME = re.compile(r"(?:[A-Za-z0-9][\w-]*/)?[A-Za-z0-9](?:[\w-]|\.(?!\.))*\.(?:safetensors|json|jinja|txt)")
"""What a card may name as a file of its run: in the run's folder or one below it, and nothing that can hold code."""
BESIDE = ("README.md", "config.yaml", "metrics.jsonl")
"""What is published beside the card and the checkpoint, where the run has it."""


def pull(run_id: str, into: Path) -> Path | None:
    """Bring a run to {into}/{run_id}, checked by the sha256 in its card; None if the Hub has no whole copy. Raises HubError.

    Nothing but a whole and right copy is ever at that place: files arrive in a folder beside it, where a pull that was cut off
    goes on; one of an earlier state makes room. `run_id` must have been checked, since the client does not keep a revision inside its
    folders.
    """
    from filelock import FileLock

    copy = hub.find(run_id)
    if copy is None:
        return None
    into.mkdir(parents=True, exist_ok=True)
    with FileLock(into / f".{run_id}.lock"):
        here = into / run_id
        if here.is_dir() and _card(here / "run.json", run_id).get("published") == copy.record():
            return here
        part = into / f".{run_id}.{copy.commit[:12]}"
        whole = part / "runs" / run_id
        card = _card(hub.download(copy, f"runs/{run_id}/run.json", part), run_id)
        files = checked_files(card)
        for name in files:
            hub.download(copy, f"runs/{run_id}/{name}", part)
        _bring_beside(copy, run_id, part)
        for name, expected in files.items():
            _refuse_wrong(whole / name, expected, run_id)
        (whole / "run.json").write_text(json.dumps(card | {"published": copy.record()}, indent=2) + "\n", encoding="utf-8")
        if here.is_dir():
            with suppress(FileNotFoundError):  # made here, and its lines name the weights that they are of
                os.replace(here / "evaluations", whole / "evaluations")
            os.replace(here, part / "earlier")
        os.replace(whole, here)
        shutil.rmtree(part)
    return here


def cards(into: Path) -> list[dict[str, Any]]:
    """The card of every whole run on the Hub, kept under `into` by its commit, so that only new ones are asked for.

    A broken one is a warning, so that it hides no other. Raises HubError.
    """
    found = []
    for copy in hub.copies():
        name = f"runs/{copy.run_id}/run.json"
        path = into / copy.commit / name
        if not path.is_file():
            path = hub.download(copy, name, into / copy.commit)
        try:
            found.append(_card(path, copy.run_id) | {"published": copy.record()})
        except HubError as error:
            log.warning("%s", error)
    return found


def checked_files(card: dict[str, Any]) -> dict[str, str]:
    """The files that a card names, with their sha256; raises HubError for one that could lie or do anything elsewhere."""
    files = card.get("checkpoint_files")
    if not isinstance(files, dict) or not files:
        raise HubError(f"run_id {card['run_id']}: its card on the Hub names no files, so there is nothing to load")
    for name, digest in files.items():
        if not SAFE_NAME.fullmatch(name) or not re.fullmatch(r"[0-9a-f]{64}", str(digest)):
            raise HubError(f"run_id {card['run_id']}: its card on the Hub names {name!r}, which is no file of a checkpoint")
    return files


def _card(path: Path, run_id: str) -> dict[str, Any]:
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        if card["run_id"] != run_id:
            raise ValueError(f"it is of {card['run_id']!r}")
    except (ValueError, KeyError, TypeError) as error:
        path.unlink()
        raise HubError(f"run_id {run_id}: its card on the Hub is broken ({error}); publish the run again") from None
    return card


def _bring_beside(copy: hub.Copy, run_id: str, part: Path) -> None:
    there = hub.names(copy)
    for name in BESIDE:
        if f"runs/{run_id}/{name}" in there:
            hub.download(copy, f"runs/{run_id}/{name}", part)


def _refuse_wrong(path: Path, expected: str, run_id: str) -> None:
    if sha256(path) != expected:
        path.unlink()
        raise HubError(f"run_id {run_id}: {path.name} arrived with another sha256 than its card names; try again")
