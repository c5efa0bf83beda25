"""What keeps a judge from being asked too much: requests and tokens a minute, and a breaker for one that is down. Threads share them."""

from __future__ import annotations

import math
import threading
import time
from collections import deque

from qwen_vl_grpo.judges.failures import Failure


class RateLimit:
    """At most `limit` units in any `window` seconds; None sets no limit."""

    def __init__(self, limit: int | None, window: float = 60.0):
        self._limit, self._window = limit, window
        self._taken: deque[list[float]] = deque()
        self._lock = threading.Lock()

    def take(self, amount: int = 1) -> list[float]:
        """Wait until `amount` fits, and take it; one that is more than the limit waits until nothing else is taken."""
        taken = [time.monotonic(), float(amount)]
        while self._limit is not None:
            with self._lock:
                now = time.monotonic()
                while self._taken and self._taken[0][0] <= now - self._window:
                    self._taken.popleft()
                if not self._taken or sum(one[1] for one in self._taken) + amount <= self._limit:
                    taken[0] = now
                    self._taken.append(taken)
                    break
                wait = self._taken[0][0] + self._window - now
            time.sleep(wait)
        return taken

    def correct(self, taken: list[float], amount: int) -> None:
        """What was taken turned out to be `amount`."""
        taken[1] = float(amount)


class Breaker:
    """After `failures` in a row lets nothing through for `pause` seconds, then one call to try, and all once that one is answered."""

    def __init__(self, failures: int, pause: float):
        self._most, self._pause = failures, pause
        self._failures = 0
        self._until = 0.0
        self._reason = ""
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Raise Failure if calls fail at once; `leave` must follow otherwise."""
        with self._lock:
            if self._failures < self._most:
                return
            if time.monotonic() < self._until:
                told = f"it is not asked, since {self._failures} requests in a row had no answer; the last: {self._reason}"
                raise Failure(told, passing=True, wait=math.inf)
            self._until = time.monotonic() + self._pause  # this call is the one that tries

    def leave(self, failure: Failure | None) -> None:
        """Count what a call came to; a failure that is an answer counts as one."""
        with self._lock:
            if failure is None or not failure.down:
                self._failures = 0
                return
            self._failures += 1
            self._reason = str(failure)
            self._until = time.monotonic() + self._pause
