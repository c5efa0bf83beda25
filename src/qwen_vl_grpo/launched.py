"""One process of a launched run: its output in a file of its own, its end on record, and it does not outlive its launcher.

`accelerate launch` starts this module in place of the package, and every argument is `grpo`'s.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from qwen_vl_grpo import cli, following, index
from qwen_vl_grpo.errors import GrpoError


def main() -> None:
    """Run `grpo` as one rank; a stop that the launcher asked for counts as a good end, or torchrun would kill the ranks that still save."""
    rank, records = int(os.environ.get("RANK", "0")), Path(os.environ[following.RECORDS])
    with following.log_of(Path(os.environ[following.LOGS]), rank).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    _record(records, rank)
    threading.Thread(target=_die_with, args=(int(os.environ[following.LAUNCHER]), records), daemon=True).start()
    error: BaseException | None = None
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        error, code = end.__context__, end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as fault:
        traceback.print_exc()
        error, code = fault, 1
    named = isinstance(error, GrpoError)
    said = " ".join(str(error).split()) if named else f"{type(error).__name__}: {error}"
    _record(records, rank, code=code, error=said if code else "", kind=type(error).__name__ if named else "")
    sys.exit(0 if code in following.STOPPED and (records / following.ASKED).exists() else code)


def _record(records: Path, rank: int, **end: object) -> None:
    known = {"rank": rank, "pid": os.getpid(), "group": os.getpgid(0)}
    index.replace(records / f"rank-{rank}.json", json.dumps(known | end | ({"ended": time.time()} if end else {})))


def _die_with(launcher: int, records: Path) -> None:
    """Stop like a run that is asked to once the launcher is gone, and be gone after a while whatever holds it.

    Its process id tells: a pipe or the death signal of the kernel would hang on torchrun, which stands between the two.
    """
    while following.alive(launcher):
        time.sleep(following.HEARTBEAT)
    with open(records / following.ASKED, "a"):
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(following.LAST_WORDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
