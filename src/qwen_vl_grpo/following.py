"""The processes of one launch: followed to their end, stopped together, and what became of them.

torchrun, which `accelerate launch` is, stops all ranks when one dies, and returns 1 whatever happened. What is added here: signals go
straight to the ranks, which save together and as long as it takes; why the first rank failed; and no process that is left.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDS, LOGS, LAUNCHER = "GRPO_LAUNCH_RECORDS", "GRPO_LAUNCH_LOGS", "GRPO_LAUNCH_PID"
"""What a rank is told in its environment: where its end is recorded, where its output goes, and whom it does not outlive."""
ASKED = "asked"
"""The file among the records that says that the ranks were asked to stop."""
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of a run that was asked to stop."""
GRACE = 6
"""Seconds that a rank has to end once another one is gone: torchrun's own 30 would keep cards busy that wait for nobody."""
HEARTBEAT, LAST_WORDS = 1.0, 30
"""Seconds between two looks for the launcher, and what a rank may take to save and leave where it is gone or has failed."""
POLL = 0.1


@dataclass(frozen=True)
class Outcome:
    """`code` as a shell counts it, of the rank that failed first; `kind` is the name of the GrpoError that ended it, if one did."""

    code: int
    reason: str = ""
    kind: str = ""
    asked: tuple[int, ...] = ()
    """The signals that came, in order."""
    unseen: Sequence[str] = ()
    """What is still to be told of a failure: the end of the failed rank's log, unless it was shown, and the reason."""


def follow(command: Sequence[str], environment: Mapping[str, str], logs: Logs, shown: int) -> Outcome:
    """Start a launcher, show what rank `shown` writes, hand signals on, and return once no process is left."""
    with tempfile.TemporaryDirectory(prefix="grpo-launch-") as folder:
        records = Path(folder)
        told = {RECORDS: folder, LOGS: str(logs.folder.resolve()), LAUNCHER: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        asked: list[int] = []
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, lambda number, _: asked.append(number)) for number in heard}
        with (logs.folder / "launcher.log").open("ab") as log:
            process = subprocess.Popen(
                command, env={**environment, **told}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            _until_the_end(process, records, asked, lambda: logs.show(shown))
        finally:
            _clear(process, records)
            for number, handler in before.items():
                signal.signal(number, handler)
        logs.show(shown)
        return _outcome(_read(records), logs, process.returncode, tuple(asked), shown)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class Logs:
    """One file a rank, in a folder that moves into the run's own once the run has claimed it."""

    def __init__(self, folder: Path, run_dir: Path):
        self.folder, self.card = folder, run_dir / "run.json"
        self.kept = False
        self._before, self._shown = self._content(), 0

    def show(self, rank: int) -> None:
        """Write what a rank has written since the last time to stderr."""
        if (path := log_of(self.folder, rank)).is_file():
            with path.open("rb") as file:
                file.seek(self._shown)
                new = file.read()
            self._shown += len(new)
            sys.stderr.buffer.write(new)
            sys.stderr.flush()
        if not self.kept and self._content() not in (None, self._before):
            home = self.card.with_name("logs")
            home.mkdir(exist_ok=True)
            self.folder, self.kept = self.folder.rename(home / self.folder.name), True

    def end_of(self, rank: int, lines: int = 20) -> list[str]:
        path = log_of(self.folder, rank)
        return path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:] if path.is_file() else []

    def _content(self) -> bytes | None:
        return self.card.read_bytes() if self.card.is_file() else None


@contextmanager
def logs(run_dir: Path, name: str) -> Iterator[Logs]:
    """A place for the logs of one launch; those of a launch that was refused before there was a run are forgotten."""
    place = run_dir.parent / ".launching"
    folder = place / f"{run_dir.name}-{name}"
    folder.mkdir(parents=True)
    found = Logs(folder, run_dir)
    try:
        yield found
    finally:
        if not found.kept:
            shutil.rmtree(folder)
        with suppress(OSError):  # another launch has its logs there
            place.rmdir()


def log_of(folder: Path, rank: int | str) -> Path:
    return folder / f"rank-{rank}.log"


def alive(pid: int) -> bool:
    """Whether a process of this user's runs; one that only waits for its parent to ask what became of it does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:  # no /proc here, or gone just now, which the next look will tell
        return True
    except OSError:
        return False


def _until_the_end(process: subprocess.Popen[bytes], records: Path, asked: Sequence[int], show: Callable[[], None]) -> None:
    """Until launcher and ranks are gone: each rank is told each signal once, and has GRACE seconds after the second one and after the end
    of another rank or the launcher, and LAST_WORDS after its own failure."""
    told: dict[int, int] = {}
    deadline = None
    while True:
        show()
        known = _read(records)
        ranks = [rank for rank in known if alive(rank["pid"])]
        lost = any(rank.get("code", 1) not in (0, *STOPPED) for rank in known if rank not in ranks)
        if process.poll() is not None and not ranks:
            return
        if asked:
            (records / ASKED).touch()
            if process.poll() is None and not known:
                process.terminate()  # no rank is there yet, so nothing is lost
        for rank in ranks:
            for number in asked[told.get(rank["pid"], 0) :]:
                _send(os.kill, rank["pid"], signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
            told[rank["pid"]] = len(asked)
        if process.poll() is not None and deadline is None:
            for rank in ranks:
                _send(os.kill, rank["pid"], signal.SIGTERM)
        if process.poll() is not None or lost or len(asked) > 1:
            deadline = deadline or time.monotonic() + GRACE
        stuck = [rank for rank in ranks if rank.get("code") and time.time() - rank["ended"] > LAST_WORDS]
        for rank in ranks if deadline and time.monotonic() > deadline else stuck:
            _send(os.killpg, rank["group"], signal.SIGKILL)
        time.sleep(POLL)


def _clear(process: subprocess.Popen[bytes], records: Path) -> None:
    """Kill what a rank or the launcher has left behind: a loader of pictures, an engine."""
    for group in {process.pid, *(rank["group"] for rank in _read(records))}:
        _send(os.killpg, group, signal.SIGKILL)
    process.wait()


def _send(how: Callable[[int, int], None], target: int, number: int) -> None:
    with suppress(ProcessLookupError):
        how(target, number)


def _read(records: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(records.glob("rank-*.json"))]


FAILED = re.compile(r"^  rank +: (\d+) .*\n  exitcode +: (-?\d+) +\(pid: (\d+)\)", re.MULTILINE)
CLOSED = re.compile(r"Sending process (\d+) closing signal")


def _outcome(ranks: Sequence[dict[str, Any]], logs: Logs, returned: int, asked: tuple[int, ...], shown: int) -> Outcome:
    """What the launch came to; torchrun's own words say which rank died by what, and which it has stopped for that."""
    path = logs.folder / "launcher.log"
    said = path.read_text(encoding="utf-8", errors="replace")
    stopped = {int(pid) for pid in CLOSED.findall(said)}
    died = {int(pid): (int(rank), int(code)) for rank, code, pid in FAILED.findall(said)}
    ends = {rank["pid"]: rank for rank in ranks}
    failed = [pid for pid in ends.keys() | died.keys() if pid not in stopped and ends.get(pid, {}).get("code", 1)]
    if all(rank.get("code") == 0 for rank in ranks) and (ranks or returned == 0):
        return Outcome(0)
    if asked and not any(ends.get(pid, {}).get("kind") for pid in failed):
        return Outcome(STOPPED[asked[0] != signal.SIGINT], f"asked to stop by {signal.Signals(asked[0]).name}", asked=asked)
    if not failed:
        reason = f"accelerate launch ended with {returned} and started no rank"
        return Outcome(returned if returned > 0 else 128 - returned, reason, unseen=[*said.splitlines()[-20:], f"error: {reason}"])

    def first(pid: int) -> tuple[bool, bool, bool, float]:
        """One that was killed, then one that knows why it ended; those that only lost another come last."""
        end = ends.get(pid, {})
        named = end.get("kind")
        return "code" in end, named == "RankError", not named, float(end["rank"] != shown) if named else end.get("ended", 0.0)

    pid = min(failed, key=first)
    end = ends.get(pid, {})
    rank, code = died.get(pid, (end.get("rank", 0), end.get("code", -signal.SIGKILL)))
    by_itself = "code" in end
    last = logs.end_of(rank)
    reason = f"rank {rank}: {end['error'] or (last or ['?'])[-1]}" if by_itself else f"rank {rank} was killed ({_named(code)})"
    unseen = [] if by_itself and rank == shown else [*([] if end.get("kind") else last), f"error: {reason}"]
    return Outcome(code if code > 0 else 128 - code, reason, end.get("kind", ""), asked, unseen)


def _named(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
