"""The index of this machine: one small file a run that says where it lies, and one an alias.

Two processes never write the same file unless they mean the same run, and then only one of them may claim it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qwen_vl_grpo.errors import ConfigError, RegistryError
from qwen_vl_grpo.run_id import check_run_id

PROJECT = Path(__file__).resolve().parents[2]


def home() -> Path:
    """The folder that holds the index: GRPO_HOME, else `outputs` of this project."""
    return Path(os.environ.get("GRPO_HOME") or PROJECT / "outputs")


def queue() -> Path:
    """The folder with a file for each run that waits for the Hub."""
    return home() / "unpublished"


def known() -> list[str]:
    """The ids of every run and group in the index, in order."""
    return sorted(path.stem for path in (home() / "index").glob("*.json"))


def place(run_id: str) -> Path | None:
    """The folder that an id points to; None if there is no such id."""
    folder = _entry(home() / "index" / f"{_checked(run_id)}.json", "path")
    return None if folder is None else Path(folder)


def point(run_id: str, folder: Path) -> None:
    """Let an id stand for a folder."""
    replace(home() / "index" / f"{_checked(run_id)}.json", json.dumps({"path": str(folder.resolve())}) + "\n")


def forget(run_id: str) -> None:
    """Take an id out of the index; its folder stays."""
    (home() / "index" / f"{_checked(run_id)}.json").unlink(missing_ok=True)


def aliases() -> dict[str, str]:
    """Every alias -> the id of the run that it stands for."""
    found = {path.stem: _entry(path, "run_id") for path in sorted((home() / "aliases").glob("*.json"))}
    return {name: run_id for name, run_id in found.items() if run_id is not None}


def set_alias(name: str, run_id: str) -> None:
    """Let a name stand for a run, whatever it stood for; raises RegistryError if a run or group has that name itself."""
    with claiming():
        if place(name) is not None:
            raise RegistryError(f"alias {name}: is the id of a run, and an id stands for its own run only; choose another name")
        replace(home() / "aliases" / f"{name}.json", json.dumps({"run_id": run_id}) + "\n")


def drop_alias(name: str) -> None:
    """Forget an alias; raises RegistryError if there is none of that name."""
    try:
        (home() / "aliases" / f"{_checked(name)}.json").unlink()
    except FileNotFoundError:
        raise RegistryError(f"alias {name}: there is no such alias; list them with `grpo runs alias`") from None


@contextmanager
def claiming() -> Iterator[None]:
    """Keep every other process of this index from taking an id or an alias meanwhile."""
    try:
        home().mkdir(parents=True, exist_ok=True)
        file = (home() / ".claim").open("w")
    except OSError as error:
        raise RegistryError(f"{home()}: the index cannot be written ({error.strerror}); set GRPO_HOME to a folder that can") from None
    with file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def replace(path: Path, text: str) -> None:
    """Write a file whole or not at all; raises RegistryError if it cannot be, and then the old one is as it was."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # some file systems say only now that the disk is full
        os.replace(beside, path)
    except OSError as error:
        with suppress(OSError):  # nothing can be deleted from a disk that is read-only
            beside.unlink()
        raise RegistryError(f"{path}: cannot be written ({error.strerror}), and is as it was before; make room there") from None


def _checked(run_id: str) -> str:
    try:
        return check_run_id(run_id)
    except ConfigError as error:
        raise RegistryError(str(error)) from None


def _entry(path: Path, key: str) -> str | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else None
