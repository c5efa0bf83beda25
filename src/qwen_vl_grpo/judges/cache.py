"""Every judgement in one SQLite file, so that no picture is drawn and judged twice: not on resuming, not in another run, not in a replay.

The file may be shared by any number of processes and lie on a network disk (no WAL). What keeps it from being written is a warning,
for a run needs judgements and not their copies.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from filelock import FileLock

from qwen_vl_grpo.errors import JudgeError
from qwen_vl_grpo.interfaces import Judgement, RenderRequest

log = logging.getLogger("qwen_vl_grpo")

SCHEMA = """
CREATE TABLE IF NOT EXISTS judgements (
    request TEXT, renderer TEXT, judge TEXT, picture TEXT, original TEXT, completion TEXT, seed INTEGER,
    score REAL NOT NULL, details TEXT, reason TEXT, made TEXT DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (request, renderer, judge)
);
CREATE INDEX IF NOT EXISTS pictures ON judgements (picture, judge, original);
"""
T = TypeVar("T")
PATIENCE = 60.0
"""Seconds that a process waits for its turn to write."""
BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class JudgementCache:
    """Judgements by request (prompt, completion, seed, size), renderer and judge, and by picture; threads may share one.

    Raises JudgeError if the file cannot be read and `required` is set, as a replay does; otherwise it goes on without.
    """

    def __init__(self, path: Path, renderer: str, judge: str, required: bool = False):
        self.path = path
        self._renderer, self._judge, self._required = renderer, judge, required
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0
        self._told: set[str] = set()

    def find(self, requests: Sequence[RenderRequest]) -> dict[RenderRequest, Judgement]:
        """What is known of these requests, with nothing drawn."""
        asked = "SELECT score, details, reason FROM judgements WHERE request = ? AND renderer = ? AND judge = ?"

        def work(connection: sqlite3.Connection) -> dict[RenderRequest, Judgement]:
            keys = {request: (_key(request), self._renderer, self._judge) for request in requests}
            rows = {request: connection.execute(asked, key).fetchone() for request, key in keys.items()}
            return {request: _judgement(row) for request, row in rows.items() if row}

        return self._do("read", work, {})

    def same_picture(self, request: RenderRequest, picture: str) -> Judgement | None:
        """What this judge said of a picture (by its hash) for this prompt, whatever it was drawn from."""
        asked = "SELECT score, details, reason FROM judgements WHERE picture = ? AND judge = ? AND original = ?"
        key = (picture, self._judge, _asked(request))
        row = self._do("read", lambda connection: connection.execute(asked, key).fetchone(), None)
        return _judgement(row) if row else None

    def keep(self, judged: Sequence[tuple[RenderRequest, str, Judgement]]) -> None:
        """Add judgements, each with the hash of its picture; what is there already stays."""
        rows = [
            (
                _key(request), self._renderer, self._judge, picture, _asked(request), request.completion, request.seed,
                judgement.score, json.dumps(dict(judgement.details)), judgement.reason,
            )
            for request, picture, judgement in judged
        ]  # fmt: skip
        columns = "request, renderer, judge, picture, original, completion, seed, score, details, reason"

        def work(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany(f"INSERT OR IGNORE INTO judgements ({columns}) VALUES (?{', ?' * 9})", rows)  # noqa: S608

        self._do("written", work, None)

    def _do(self, what: str, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Do some work on the connection. A broken file is set aside first; an error that is left is told once, and `otherwise` given."""
        with self._lock:
            try:
                try:
                    return work(self._open())
                except sqlite3.DatabaseError as error:
                    if _code(error) not in BROKEN:
                        raise
                    self._set_aside(error)
                    return work(self._open())
            except (sqlite3.Error, OSError) as error:
                if self._required:
                    raise JudgeError(f"judge.cache {self.path}: cannot be {what} ({error}), and a replay has nothing else") from None
                if what not in self._told:
                    self._told.add(what)
                    log.warning("judge.cache %s: cannot be %s (%s); the run goes on without it", self.path, what, error)
                return otherwise

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._process != os.getpid():
            self._connection = None  # SQLite forbids one to be used after a fork
        if self._connection is None:
            self._connection, self._process = _connect(self.path, self._required), os.getpid()
        return self._connection

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        """Rename the broken file, unless another process has done it, and begin a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        with FileLock(f"{self.path}.lock"):
            try:
                with closing(_connect(self.path, read_only=False)) as connection:
                    if connection.execute("PRAGMA quick_check").fetchone()[0] == "ok":
                        return
            except sqlite3.DatabaseError as still:
                if _code(still) not in BROKEN:
                    raise
            aside = self.path.with_name(f"{self.path.name}.broken-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
            self.path.rename(aside)
            _connect(self.path, read_only=False).close()
        log.warning("judge.cache %s: is broken (%s); it is kept as %s, and a new one begun", self.path, error, aside.name)


class Told(NamedTuple):
    """One judgement as it lies in the file."""

    picture: str
    judge: str
    asked: str
    score: float


def told_of(path: Path, completions: Sequence[str]) -> list[Told]:
    """Every judgement of the pictures that were drawn for these completions, by whichever judge and in whichever run.

    Raises JudgeError if the file cannot be read.
    """
    found: dict[str, Told] = {}
    try:
        with closing(_connect(path, read_only=True)) as connection:
            for start in range(0, len(completions), 500):
                some = completions[start : start + 500]
                drawn = f"SELECT picture FROM judgements WHERE completion IN ({', '.join('?' * len(some))})"  # noqa: S608
                asked = f"SELECT request || renderer || judge, picture, judge, original, score FROM judgements WHERE picture IN ({drawn})"  # noqa: S608
                found |= {key: Told(*row) for key, *row in connection.execute(asked, some)}
    except sqlite3.Error as error:
        raise JudgeError(f"judge.cache {path}: cannot be read ({error})") from None
    return list(found.values())


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    if read_only:
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=PATIENCE, check_same_thread=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=PATIENCE, check_same_thread=False)
    try:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'pictures'").fetchone():
            connection.executescript(SCHEMA)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _key(request: RenderRequest) -> str:
    parts: list[Any] = [request.original, request.completion, request.seed, request.size]
    if request.sources or request.conditioning or request.rubric:  # keys of plain requests stay what they were
        seen = request.conditioning and request.conditioning.sha256
        parts += [[source.sha256 for source in request.sources], seen, request.rubric]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _asked(request: RenderRequest) -> str:
    """All that a judge is told beside the picture; a prompt without more stands as it is."""
    if not request.sources and not request.rubric:
        return request.original
    return json.dumps([request.original, [source.sha256 for source in request.sources], request.rubric])


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _judgement(row: Any) -> Judgement:
    return Judgement(row[0], json.loads(row[1]), row[2])
