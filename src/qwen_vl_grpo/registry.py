"""The local registry: one card a run, found by its run_id under any output_dir.

A run lives in {output_dir}/{run_id}/ and its card is run.json there. The index holds one small pointer file a run, so
two processes never write the same file.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import json
import logging
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from qwen_vl_grpo import hardware, hub, index, pulling
from qwen_vl_grpo.checkpoints import sha256
from qwen_vl_grpo.errors import ConfigError, HubError, RegistryError
from qwen_vl_grpo.index import PROJECT, home
from qwen_vl_grpo.interfaces import Listed, RunCard
from qwen_vl_grpo.run_id import check_run_id

if TYPE_CHECKING:  # listing runs has no use for it, and it takes as long to import as all else
    from qwen_vl_grpo.config import RunConfig

log = logging.getLogger("qwen_vl_grpo")

Card = TypeVar("Card", RunCard, Listed)

LOCK = ".lock"
"""In a run's folder, held by the process that has the run (attempts.hold)."""

SCHEMA_VERSION = 1
GROUP = "group.json"
"""What the folder of a group of seeds has in place of run.json."""


def claim(config: RunConfig) -> Path:
    """Make the run's folder and return it; raises RegistryError if that would overwrite anything.

    Only a demonstration run makes room for a new one of the same id, and only for another demonstration run.
    """
    run_dir = config.run_dir
    with index.claiming():  # of two processes with one id, the second finds it taken
        refuse_existing(config)
        if run_dir.exists():
            shutil.rmtree(run_dir)
        run_dir.mkdir(parents=True)
        index.point(config.run_id, run_dir)
    return run_dir


def refuse_existing(config: RunConfig) -> None:
    """Raise RegistryError if the id is taken, by a run in this output_dir or another, or by an alias; writes nothing."""
    if stands_for := index.aliases().get(config.run_id):
        raise RegistryError(f"run_id {config.run_id}: is an alias of run {stands_for}; choose another run_id")
    for run_dir in filter(None, (index.place(config.run_id), config.run_dir)):
        if not run_dir.exists():
            continue
        demo = (run_dir / "run.json").is_file() and read(run_dir).demo
        same_place = run_dir.resolve() == config.run_dir.resolve()
        if not (demo and config.registry.demo and same_place):
            raise RegistryError(
                f"run_id {config.run_id}: exists already in {run_dir}, and a run is never overwritten; choose another run_id"
            )


def write(card: RunCard, run_dir: Path) -> None:
    """Write run.json and the pointer to it, each whole or not at all; of a run's processes only the main one writes."""
    if not hardware.is_main_process():
        return
    index.replace(run_dir / "run.json", card.model_dump_json(indent=2) + "\n")
    index.point(card.run_id, run_dir)


def write_group(group: dict[str, Any], folder: Path) -> None:
    """Write a group's summary and the pointer to it, each whole or not at all."""
    index.replace(folder / GROUP, json.dumps(group, indent=2) + "\n")
    index.point(group["run_id"], folder)


def read_group(run_id: str) -> dict[str, Any] | None:
    """The summary of a group of seeds; None if the id is not a group's."""
    folder = None if run_id == "latest" else index.place(run_id)
    if folder is None or not (folder / GROUP).is_file():
        return None
    return json.loads((folder / GROUP).read_text(encoding="utf-8"))


def read(run_dir: Path) -> RunCard:
    """Read the card in a run's folder; raises RegistryError if it is missing, broken, or newer than this program."""
    return _read(run_dir, RunCard)


def _read(run_dir: Path, shape: type[Card]) -> Card:
    path = run_dir / "run.json"
    try:
        content = path.read_bytes()
    except OSError:
        if (run_dir / GROUP).is_file():
            raise RegistryError(f"run_id {run_dir.name}: is a group; `grpo runs show {run_dir.name}` names its runs") from None
        raise RegistryError(f"{run_dir}: holds no run.json, so it is no run") from None
    try:
        card = shape.model_validate_json(content)
        if card.schema_version <= SCHEMA_VERSION:
            return card
    except ValidationError as error:
        if not _newer(content):
            raise RegistryError(f"{path}: is not a run card ({error.errors()[0]['msg']}); restore it from a copy") from None
    raise RegistryError(f"{path}: was written by a newer version (this one reads schema {SCHEMA_VERSION}); update this program to read it")


def config_of(card: RunCard) -> RunConfig:
    """The config that a run was started with; raises ConfigError for a card of another version."""
    from qwen_vl_grpo import config

    return config.check(card.config, f"run_id {card.run_id}: its card's config is not of this version")


def resolve(name: str) -> tuple[RunCard, Path]:
    """Find a run by its id, an alias of it, or `latest`, here or else on the Hub, from where it is brought.

    Raises RegistryError that names the nearest ids.
    """
    run_id = actual(name)
    run_dir = index.place(run_id)
    if run_dir is None or not run_dir.is_dir():
        try:
            run_dir = _pulled(run_id) or run_dir
        except HubError as error:
            near = _nearest(run_id, index.known())
            hint = f"; near it is {' or '.join(near)}" if near else ""
            raise RegistryError(f"run_id {run_id}: is not on this machine, and could not be brought from the Hub: {error}{hint}") from None
    if run_dir is None:
        known = {*index.known(), *(copy.run_id for copy in _on_the_hub())}
        near = _nearest(run_id, known)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {len(known)} runs; list them with `grpo runs`"
        raise RegistryError(f"run_id {run_id}: no such run; {hint}")
    if not run_dir.is_dir():
        raise RegistryError(f"run_id {run_id}: its folder {run_dir} is gone; put it back, or run `grpo runs scan FOLDER` where it lies now")
    card = read(run_dir)
    if _is_save(card, run_dir):
        try:
            card = read(_pulled(run_id) or run_dir)
        except HubError as error:
            log.warning("run_id %s: is here as it was at %s, and there may be more of it: %s", run_id, card.published["tag"], error)
    return card, run_dir


def _nearest(run_id: str, known: Iterable[str]) -> list[str]:
    """The runs and aliases that may have been meant."""
    return difflib.get_close_matches(run_id, sorted({*known, *index.aliases()}), n=3, cutoff=0.5)


def _on_the_hub() -> list[hub.Copy]:
    with suppress(HubError):
        return hub.copies() if hub.repository() else []
    return []


def actual(name: str) -> str:
    """The id that a word for a run stands for: the newest run's for `latest`, the run's for an alias, else the word itself."""
    if name != "latest":
        return index.aliases().get(name, name)
    if not (runs := listed()):
        raise RegistryError(f"latest: there is no run yet (index: {home() / 'index'})")
    return runs[0][0].run_id


def names_run(word: str) -> bool:
    """Whether a word is for a run and not for a model, which has a / in its name or lies in a folder of that name."""
    return "/" not in word and (not Path(word).is_dir() or index.place(actual(word)) is not None)


def without_config(model: str) -> ConfigError:
    """What is said of a model that is to be asked something, and nothing says what."""
    return ConfigError(f"{model}: is a model and no run, so --config has to say what it is asked; name a run's YAML file")


def list_runs() -> list[tuple[RunCard, Path]]:
    """Every run whose folder is there, newest first; a broken card is a warning and passed over."""
    return _listed(RunCard)


def listed() -> list[tuple[Listed, Path]]:
    """The same runs in the same order, with no more of their cards than a list shows."""
    return _listed(Listed)


def _listed(shape: type[Card]) -> list[tuple[Card, Path]]:
    found = []
    for run_id in index.known():
        run_dir = None
        try:
            if (run_dir := index.place(run_id)) is not None:
                found.append((_read(run_dir, shape), run_dir))
        except RegistryError as error:
            if run_dir is not None and (run_dir / "run.json").exists():  # and no group or run whose folder is gone
                log.warning("%s; it is passed over", error)
    return sorted(found, key=lambda run: run[0].created, reverse=True)


def as_seen(card: Any, run_dir: Path | None) -> Any:
    """The card, `killed` where it says running and no process has the run: one that is killed by -9 can write nothing.

    Only where a process of this machine's file system began it (attempts.hold): of a copy from the Hub nothing is known.
    """
    if card.state != "running" or run_dir is None:
        return card
    try:
        with (run_dir / LOCK).open(encoding="utf-8") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return card
    return card.model_copy(update={"state": "killed"})


def list_hub() -> list[RunCard]:
    """The card of every whole run on the Hub, newest first; broken cards are passed over. Raises HubError."""
    found = []
    for card in pulling.cards(home() / "hub-cards"):
        with suppress(ValidationError):
            found.append(RunCard.model_validate(card))
    return sorted(found, key=lambda card: card.created, reverse=True)


def select(asked: str) -> list[tuple[RunCard, Path]]:
    """The runs that `asked` names, each once: ids, patterns with * or ?, and `all`, parted by commas.

    Patterns and `all` find finished runs, here and on the Hub, from where they are brought; a Hub that fails is a warning, and the runs
    of this machine go on. Raises RegistryError for an id or a pattern that names none.
    """
    names = [part.strip() for part in asked.split(",") if part.strip()]
    finished = _finished() if any(map(_is_pattern, names)) else {}
    found: dict[str, tuple[RunCard, Path]] = {}
    for name in names:
        if not _is_pattern(name):
            card, run_dir = resolve(name)
            found[card.run_id] = card, run_dir
            continue
        matching = [run_id for run_id in finished if name == "all" or fnmatchcase(run_id, name)]
        if not matching:
            raise RegistryError(f"run_id {name}: no finished run; there are {len(finished)}, list them with `grpo runs`")
        for run_id in matching:
            try:
                found[run_id] = finished[run_id] or resolve(run_id)
            except RegistryError as error:
                log.warning("%s; the other runs go on", error)
    if not found:
        raise RegistryError(f"run_id {asked!r}: names no run" + " that could be brought here" * bool(names))
    return list(found.values())


def _is_pattern(name: str) -> bool:
    return name == "all" or bool(set(name) & set("*?["))


def _finished() -> dict[str, tuple[RunCard, Path] | None]:
    """The ids of all finished runs, oldest first: those of this machine with card and folder, then with None those on the Hub alone."""
    here = list_runs()[::-1]
    found: dict[str, tuple[RunCard, Path] | None] = {card.run_id: (card, run_dir) for card, run_dir in here if card.state == "finished"}
    try:
        if hub.repository() is None:
            log.info("HF_REGISTRY_REPO is not set, so runs of this machine alone are taken")
            return found
        elsewhere = [card.run_id for card in reversed(list_hub()) if card.state == "finished"]
    except HubError as error:
        log.warning("runs of this machine alone are taken: %s", error)
        return found
    known = {card.run_id for card, run_dir in here if not _is_save(card, run_dir)}
    return found | {run_id: None for run_id in elsewhere if run_id not in known}


def _is_save(card: RunCard, run_dir: Path) -> bool:
    """Whether a run was brought here while it was running elsewhere, so that the Hub may have more of it by now."""
    return run_dir.parent == (home() / "hub").resolve() and card.published.get("tag", "").startswith("save/")


def scan(folder: Path) -> list[str]:
    """Point the index at every run and group below `folder`; returns their ids. Raises RegistryError if there is no such folder."""
    if not folder.is_dir():
        raise RegistryError(f"{folder}: there is no such folder; name the one that the runs lie below")
    found = []
    for path in sorted([*folder.rglob("run.json"), *folder.rglob(GROUP)]):
        try:
            run_id = json.loads(path.read_text(encoding="utf-8"))["run_id"] if path.name == GROUP else read(path.parent).run_id
            check_run_id(run_id)
        except (RegistryError, ConfigError, OSError, ValueError, KeyError, TypeError):
            continue
        index.point(run_id, path.parent)
        found.append(run_id)
    return found


def hash_files(run_dir: Path, folder: str) -> dict[str, str]:
    """sha256 of every file in one folder of a run that inference needs: weights, adapter, processor, settings; no pickles."""
    wanted = [path for path in sorted((run_dir / folder).iterdir()) if path.suffix in (".safetensors", ".json", ".jinja", ".txt")]
    return {f"{folder}/{path.name}": sha256(path) for path in wanted if path.name != "trainer_state.json"}


def checkpoint_sha(card: RunCard) -> str:
    """One hash for all files that a run answers with."""
    return hashlib.sha256(json.dumps(card.checkpoint_files, sort_keys=True).encode()).hexdigest()


def checkpoint_folder(card: RunCard, run_dir: Path) -> Path:
    """Where the final weights lie; raises RegistryError if the run has none. Reads no weights."""
    if card.checkpoint is None or not (run_dir / card.checkpoint).is_dir():
        raise RegistryError(f"run_id {card.run_id}: has no checkpoint (state: {card.state}); wait for its end, or resume it")
    return run_dir / card.checkpoint


def verify_files(card: RunCard, run_dir: Path) -> None:
    """Raise RegistryError if a file is missing or not what the card says."""
    for name, expected in card.checkpoint_files.items():
        if not (run_dir / name).is_file() or sha256(run_dir / name) != expected:
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


def _newer(content: bytes) -> bool:
    """Whether a card that cannot be read says that a newer program wrote it."""
    with suppress(ValueError):
        raw = json.loads(content)
        return isinstance(raw, dict) and isinstance(raw.get("schema_version"), int) and raw["schema_version"] > SCHEMA_VERSION
    return False


def _pulled(run_id: str) -> Path | None:
    """Bring a run here from the Hub; None if that has none of this id, or HF_REGISTRY_REPO is not set. Raises HubError."""
    run_dir = pulling.pull(run_id, home() / "hub") if hub.repository() else None
    if run_dir is not None:
        write(read(run_dir), run_dir)
    return run_dir
