"""Why a question to an endpoint came to nothing, and what may be done about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime

from qwen_vl_grpo.errors import JudgeError

PASSING = (408, 409, 429)
"""Statuses below 500 after which the same request may succeed."""


class Failure(JudgeError):
    """One attempt that failed. `wait`: seconds that the server asks for before another; `down`: it gave no sign of life."""

    def __init__(self, message: str, passing: bool = False, wait: float = 0.0, down: bool = False, status: int | None = None):
        super().__init__(message, passing)
        self.wait, self.down, self.status = wait, down, status


def meaning(error: Exception, timeout: float, told: Callable[[object], str]) -> Failure:
    """What an exception of the openai client means; `told` shortens what somebody else said and takes the key out of it."""
    import openai

    if isinstance(error, openai.APITimeoutError):
        return Failure(f"it did not answer within {timeout:g} s", passing=True, down=True)
    if isinstance(error, openai.APIConnectionError):
        return Failure(f"it is not reached ({told(error.__cause__ or error)})", passing=True, down=True)
    if isinstance(error, ValueError):
        return Failure("its response is no JSON", passing=True)
    if not isinstance(error, openai.APIStatusError):
        return Failure(told(error), passing=True)
    status = error.status_code
    if status in (401, 403):  # what it says is not repeated: it often holds a part of the key
        return Failure(f"it refuses OPENAI_API_KEY, or wants one and none is set ({status})", status=status)
    passing = (status in PASSING or status >= 500) and error.code != "insufficient_quota"
    wait = asked_to_wait(error.response.headers) if passing else 0.0
    return Failure(f"it answers {told(error.message)}", passing, wait, down=passing and status != 429, status=status)


def asked_to_wait(headers: Mapping[str, str]) -> float:
    """Seconds, by OpenAI's retry-after-ms, or Retry-After in seconds or as a date (RFC 9110, 10.2.3); 0 where neither says."""
    try:
        if milliseconds := headers.get("retry-after-ms"):
            return float(milliseconds) / 1000
        stated = headers.get("retry-after", "0")
        seconds = float(stated) if stated[:1].isdigit() else parsedate_to_datetime(stated).timestamp() - time.time()
    except ValueError:
        return 0.0
    return max(0.0, seconds)
