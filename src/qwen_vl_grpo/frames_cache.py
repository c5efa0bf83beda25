"""Decoded frames on disk, so that a second epoch decodes nothing; any number of processes may share the folder.

A file is whole or not there, and what is read is checked by the archive's own CRC-32. The least recently used files leave first. What
keeps a file from being written is a warning, for a run needs frames and not their copies.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy
from filelock import FileLock

log = logging.getLogger("qwen_vl_grpo")

SPARE = 0.1
"""Share of the limit that processes may fill without a look at the folder."""
WRITERS = 16
"""Processes that share it; with more of them writing at once the limit may be passed a little."""
ABANDONED = 3600.0
"""Seconds after which a file that was never finished belongs to a process that is gone."""


class FramesCache:
    """Arrays of frames by key, `limit` bytes in all; a clip that is larger alone is not kept."""

    def __init__(self, folder: Path, limit: int):
        self.folder, self.limit = folder, limit
        self._left = 0.0
        """Bytes that this process may still write before it looks at the folder again."""
        self._told = False

    def get(self, key: Any) -> numpy.ndarray | None:
        """The frames with this key (anything that JSON can hold), or None; what is broken is removed."""
        path = self._path(key)
        try:
            with numpy.load(path) as archive:
                frames = archive["frames"]
        except OSError:
            return None
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the time of its last use; many disks note no reads
        return frames

    def put(self, key: Any, frames: numpy.ndarray) -> None:
        """Keep frames, and let others leave if there is no room."""
        needed = frames.nbytes + 1024
        if needed > self.limit * (1 - SPARE):
            return
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if needed <= self._left:
                self._write(path, frames)
                self._left -= needed
            else:
                with FileLock(self.folder / ".lock"):
                    self._make_room(needed)
                    self._write(path, frames)
                self._left = self.limit * SPARE / WRITERS
        except OSError as error:
            if not self._told:
                self._told = True
                log.warning("video cache %s: cannot be written (%s); clips are decoded each time", self.folder, error)

    def _path(self, key: Any) -> Path:
        name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:40]
        return self.folder / name[:2] / f"{name}.npz"

    def _write(self, path: Path, frames: numpy.ndarray) -> None:
        file, aside = tempfile.mkstemp(prefix=".", dir=path.parent)
        try:
            with os.fdopen(file, "wb") as opened:
                numpy.savez(opened, frames=frames)
            os.replace(aside, path)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise

    def _make_room(self, needed: int) -> None:
        """Remove what was used least recently until so many bytes and every process's share of the spare ones fit."""
        held = []
        for file in (entry for part in os.scandir(self.folder) if part.is_dir() for entry in os.scandir(part)):
            try:
                state = file.stat()
            except FileNotFoundError:
                continue
            if file.name.startswith(".") and time.time() - state.st_mtime > ABANDONED:
                Path(file.path).unlink(missing_ok=True)
            else:
                held.append((state.st_mtime_ns, state.st_size, file.path))
        used = sum(size for _, size, _ in held)
        for _, size, path in sorted(held):
            if used + needed <= self.limit * (1 - SPARE):
                break
            Path(path).unlink(missing_ok=True)
            used -= size
