"""The local registry: one card a run, found by its run_id under any output_dir.

A run lives in {output_dir}/{run_id}/ and its card is run.json there. The index holds one small pointer file a run, so
two processes never write the same file.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
import subprocess
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from pydantic import ValidationError

from qwen_vl_grpo import hub, pulling
from qwen_vl_grpo.config import RunConfig, check_run_id
from qwen_vl_grpo.errors import ConfigError, HubError, RegistryError
from qwen_vl_grpo.interfaces import RunCard

SCHEMA_VERSION = 1
PROJECT = Path(__file__).resolve().parents[2]


def home() -> Path:
    """The folder that holds the index: GRPO_HOME, else `outputs` of this project."""
    return Path(os.environ.get("GRPO_HOME") or PROJECT / "outputs")


def claim(config: RunConfig) -> Path:
    """Make the run's folder and return it; raises RegistryError if that would overwrite anything.

    Only a demonstration run makes room for a new one of the same id, and only for another demonstration run.
    """
    refuse_existing(config)
    run_dir = config.run_dir
    if run_dir.exists():
        shutil.rmtree(run_dir)
    run_dir.mkdir(parents=True)
    return run_dir


def refuse_existing(config: RunConfig) -> None:
    """Raise RegistryError if the id is taken, in this output_dir or another; writes nothing."""
    for run_dir in filter(None, (_indexed(config.run_id), config.run_dir)):
        if not run_dir.exists():
            continue
        demo = (run_dir / "run.json").is_file() and read(run_dir).demo
        same_place = run_dir.resolve() == config.run_dir.resolve()
        if not (demo and config.registry.demo and same_place):
            raise RegistryError(
                f"run_id {config.run_id}: exists already in {run_dir}, and a run is never overwritten; choose another run_id"
            )


def write(card: RunCard, run_dir: Path) -> None:
    """Write run.json and the pointer to it, each whole or not at all."""
    _replace(run_dir / "run.json", card.model_dump_json(indent=2) + "\n")
    _replace(_pointer(card.run_id), json.dumps({"path": str(run_dir.resolve())}) + "\n")


def read(run_dir: Path) -> RunCard:
    """Read the card in a run's folder; raises RegistryError if it is missing, broken, or newer than this program."""
    path = run_dir / "run.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        schema = raw.get("schema_version") if isinstance(raw, dict) else None
        if isinstance(schema, int) and schema > SCHEMA_VERSION:
            raise RegistryError(f"{path}: was written by a newer version (schema {schema}); update this program to read it")
        return RunCard.model_validate(raw)
    except OSError:
        raise RegistryError(f"{run_dir}: holds no run.json, so it is no run") from None
    except ValidationError as error:
        raise RegistryError(f"{path}: is not a run card ({error.errors()[0]['msg']}); restore it from a copy") from None
    except ValueError as error:
        raise RegistryError(f"{path}: is not a run card ({error}); restore it from a copy") from None


def resolve(run_id: str) -> tuple[RunCard, Path]:
    """Find a run by its id, here or else on the Hub, from where it is brought; raises RegistryError that names the nearest ids."""
    try:
        check_run_id(run_id)
    except ConfigError as error:
        raise RegistryError(str(error)) from None
    run_dir = _indexed(run_id) or _pulled(run_id)
    if run_dir is None:
        known = sorted(path.stem for path in _pointer(run_id).parent.glob("*.json"))
        near = difflib.get_close_matches(run_id, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {len(known)} runs; list them with `grpo runs`"
        raise RegistryError(f"run_id {run_id}: no such run; {hint}")
    if not run_dir.is_dir():
        raise RegistryError(f"run_id {run_id}: its folder {run_dir} is gone; put it back, or run `grpo runs scan FOLDER` where it lies now")
    return read(run_dir), run_dir


def list_runs() -> list[tuple[RunCard, Path]]:
    """Every run whose folder is there, newest first; broken cards are passed over."""
    found = []
    for pointer in (home() / "index").glob("*.json"):
        run_dir = _indexed(pointer.stem)
        try:
            if run_dir is not None:
                found.append((read(run_dir), run_dir))
        except RegistryError:
            continue
    return sorted(found, key=lambda run: run[0].created, reverse=True)


def list_hub() -> list[RunCard]:
    """The card of every whole run on the Hub, newest first; broken cards are passed over. Raises HubError."""
    found = []
    for card in pulling.cards(home() / "hub-cards"):
        with suppress(ValidationError):
            found.append(RunCard.model_validate(card))
    return sorted(found, key=lambda card: card.created, reverse=True)


def scan(folder: Path) -> list[str]:
    """Point the index at every run below `folder`; returns their ids."""
    found = []
    for path in sorted(folder.rglob("run.json")):
        try:
            card = read(path.parent)
            check_run_id(card.run_id)
        except (RegistryError, ConfigError):
            continue
        _replace(_pointer(card.run_id), json.dumps({"path": str(path.parent.resolve())}) + "\n")
        found.append(card.run_id)
    return found


def hash_files(run_dir: Path, folder: str) -> dict[str, str]:
    """sha256 of every file in one folder of a run that inference needs: weights, adapter, processor, settings; no pickles."""
    wanted = [path for path in sorted((run_dir / folder).iterdir()) if path.suffix in (".safetensors", ".json", ".jinja", ".txt")]
    return {f"{folder}/{path.name}": _sha256(path) for path in wanted if path.name != "trainer_state.json"}


def checkpoint_folder(card: RunCard, run_dir: Path) -> Path:
    """Where the final weights lie; raises RegistryError if the run has none. Reads no weights."""
    if card.checkpoint is None or not (run_dir / card.checkpoint).is_dir():
        raise RegistryError(f"run_id {card.run_id}: has no checkpoint (state: {card.state}); wait for it, or train it again under a new id")
    return run_dir / card.checkpoint


def verify_files(card: RunCard, run_dir: Path) -> None:
    """Raise RegistryError if a file is missing or not what the card says."""
    for name, expected in card.checkpoint_files.items():
        if not (run_dir / name).is_file() or _sha256(run_dir / name) != expected:
            raise RegistryError(f"run_id {card.run_id}: {run_dir / name} is missing or has changed since the run; restore it from a copy")


def git_state() -> dict[str, str | bool | None]:
    """Commit of the checkout and whether it holds uncommitted changes; both None outside git."""
    try:
        commit = _git("rev-parse", "HEAD").strip()
        return {"commit": commit, "dirty": bool(_git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=True, timeout=10).stdout


def _pointer(run_id: str) -> Path:
    return home() / "index" / f"{run_id}.json"


def _indexed(run_id: str) -> Path | None:
    try:
        return Path(json.loads(_pointer(run_id).read_text(encoding="utf-8"))["path"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _pulled(run_id: str) -> Path | None:
    """Bring a run here that is on the Hub alone; None if that has none of this id, or HF_REGISTRY_REPO is not set."""
    try:
        run_dir = pulling.pull(run_id, home() / "hub") if hub.repository() else None
    except HubError as error:
        raise RegistryError(f"run_id {run_id}: is not on this machine, and could not be brought from the Hub: {error}") from None
    if run_dir is not None:
        write(read(run_dir), run_dir)
    return run_dir


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
