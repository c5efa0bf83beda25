"""A judge that is asked over HTTP: OpenAI, or any server with its chat completions, such as `vllm serve`.

This is the only place that asks again: a question that fails for a passing reason (docs/judges.md) is put `judge.attempts` times, and
of several votes only those are asked for again that are missing.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from qwen_vl_grpo.errors import JudgeError, briefly
from qwen_vl_grpo.judges import questions, replies
from qwen_vl_grpo.judges.budget import Budget
from qwen_vl_grpo.judges.limits import Breaker, RateLimit
from qwen_vl_grpo.judges.questions import Question
from qwen_vl_grpo.judges.replies import Reply
from qwen_vl_grpo.rendered_sections import JudgeSection

if TYPE_CHECKING:
    from openai import OpenAI

OPENAI = "https://api.openai.com/v1"
PASSING = (408, 409, 429)
"""Statuses below 500 after which the same request may succeed."""
PAUSE = 1.0
"""Seconds before the second attempt, give or take half; doubled before each further one."""
LONGEST = 120.0
"""Seconds that are waited at most before an attempt; a server that asks for more has failed."""
TOP = 20
"""The most that OpenAI and an unchanged vLLM give."""


class Endpoint:
    """Puts questions; threads share one, `judge.concurrency` of them at once. The key comes from OPENAI_API_KEY alone and is never told."""

    def __init__(self, section: JudgeSection):
        self.identity = section.model_dump(include={"model", "revision", "image_side", "image_format"}) | {"questions": questions.VERSION}
        """What an answer depends on beside the question; a part of a judge's identity."""
        self._section = section
        self._url = section.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI
        self._key = os.environ.get("OPENAI_API_KEY", "")
        self._budget = Budget(section)
        self._pictures = questions.Pictures(section.image_side, section.image_format)
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        self._requests, self._tokens = (
            RateLimit(limit and max(1, limit // processes)) for limit in (section.requests_per_minute, section.tokens_per_minute)
        )
        self._breaker = Breaker(section.breaker_failures, section.breaker_pause)
        self._slots = threading.BoundedSemaphore(section.concurrency)
        self._lock = threading.Lock()
        self._loaded: OpenAI | None = None
        self._several = True  # until the server has answered once where it was asked for several
        self._latencies: list[float] = []
        self._failures = 0

    def check(self) -> None:
        """Raise JudgeError if the key is missing, or the endpoint is not there, refuses the key or does not have the model."""
        if not self._key and self._url.rstrip("/") == OPENAI:
            raise JudgeError(
                "OPENAI_API_KEY is not set, and the judge needs it; write it into .env, or name a server of your own with judge.base_url"
            )
        import openai

        try:
            models = [model.id for model in self._client.models.list().data]
        except openai.NotFoundError:
            return  # not every server lists its models
        except openai.OpenAIError as error:
            raise self._meaning(error)[0] from None
        if models and self._section.model not in models:
            raise JudgeError(f"judge.model {self._section.model!r}: {self._shown} does not have it; it has {', '.join(models[:5])}")

    def ask(self, question: Question) -> list[Reply]:
        """The answers to a question: `question.votes` of them, or fewer, at least one, where others failed to the end.

        Raises JudgeError if none was given, and BudgetError if nothing may be spent any more.
        """
        said: list[Reply] = []
        for attempt in range(1, self._section.attempts + 1):
            fresh, failure, wait = self._votes(question, question.votes - len(said))
            said += fresh
            if failure is None:
                break
            with self._lock:
                self._failures += 1
            wait = max(wait, PAUSE * 2 ** (attempt - 1)) * random.uniform(1.0, 1.5)
            if not failure.passing or attempt == self._section.attempts or wait > LONGEST:
                if said:
                    break
                raise JudgeError(f"judge.model {self._section.model} at {self._shown}: {failure} ({attempt} attempts)", failure.passing)
            time.sleep(wait)
        return said

    def figures(self) -> dict[str, float]:
        """What was spent so far (requests, input_tokens, output_tokens, cost), and since the last call the failures and median latency."""
        with self._lock:
            latencies, self._latencies = self._latencies, []
            failures, self._failures = self._failures, 0
        latency = {"latency": statistics.median(latencies)} if latencies else {}
        return self._budget.spent | {"failures": float(failures)} | latency

    def _votes(self, question: Question, wanted: int) -> tuple[list[Reply], JudgeError | None, float]:
        """Up to `wanted` replies; the failure that came between, if one did, and the seconds that the server asks to wait."""
        said: list[Reply] = []
        while len(said) < wanted:
            count = wanted - len(said) if self._several else 1
            try:
                choices = self._send(question, count)
            except _Failed as failed:
                return said, failed.error, failed.wait
            failure = None
            for choice in choices[:count]:
                try:
                    said.append(replies.read(choice, question))
                except JudgeError as error:
                    failure = JudgeError(self._hidden(error), error.passing)
            if failure is not None:
                return said, failure, 0.0
            self._several = self._several and len(choices) >= count
        return said, None, 0.0

    def _send(self, question: Question, count: int) -> list[Any]:
        """One request; returns its choices."""
        import openai

        with self._slots:
            self._budget.check()
            expected = questions.estimate(question, count, self._section.image_side)
            self._requests.take()
            taken = self._tokens.take(expected)
            try:
                self._breaker.enter()
            except JudgeError as error:
                raise _Failed(error, LONGEST) from None
            started = time.perf_counter()
            try:
                completion = self._client.chat.completions.create(**self._arguments(question, count))
            except openai.OpenAIError as error:
                failure, wait, down = self._meaning(error)
                self._breaker.failed(str(failure)) if down else self._breaker.succeeded()
                raise _Failed(failure, wait) from None
            except ValueError:
                self._breaker.succeeded()
                raise _Failed(JudgeError("its response is no JSON", passing=True)) from None
            self._breaker.succeeded()
        with self._lock:
            self._latencies.append(time.perf_counter() - started)
        usage = getattr(completion, "usage", None)
        sent, answered = (getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens"))
        if not isinstance(sent, int) or not isinstance(answered, int):
            sent, answered = expected, 0
        self._tokens.correct(taken, sent + answered)
        self._budget.spend(sent, answered)
        choices = getattr(completion, "choices", None)
        if not isinstance(choices, list) or not choices:
            raise _Failed(JudgeError("its response holds no answer", passing=True))
        return choices

    def _arguments(self, question: Question, count: int) -> dict[str, Any]:
        import openai

        asked: dict[str, Any] = {
            "model": self._section.model,
            "messages": questions.messages(question, self._pictures.url),
            "temperature": question.temperature,
            "max_completion_tokens": question.max_tokens,
        }
        if question.form is not None:
            schema = openai.pydantic_function_tool(question.form)["function"].get("parameters")  # strict, as structured outputs want it
            form = {"name": question.form.__name__, "strict": True, "schema": schema}
            asked["response_format"] = {"type": "json_schema", "json_schema": form}
        if count > 1:
            asked["n"] = count
        if question.logprobs:
            asked |= {"logprobs": True, "top_logprobs": TOP}
        return asked

    @property
    def _client(self) -> OpenAI:
        with self._lock:
            if self._loaded is None:
                import openai  # half a second, and a replay needs none of it

                waiting = openai.Timeout(self._section.timeout, connect=10.0)
                key = self._key or "EMPTY"  # what a server without keys is told
                self._loaded = openai.OpenAI(api_key=key, base_url=self._url, timeout=waiting, max_retries=0)
        return self._loaded

    def _meaning(self, error: Exception) -> tuple[JudgeError, float, bool]:
        """What an error of the client means, the seconds that the server asks to wait, and whether it is down."""
        import openai

        if isinstance(error, openai.APITimeoutError):
            return JudgeError(f"it did not answer within {self._section.timeout:g} s", passing=True), 0.0, True
        if isinstance(error, openai.APIConnectionError):
            return JudgeError(f"it is not reached ({self._hidden(error.__cause__ or error)})", passing=True), 0.0, True
        if not isinstance(error, openai.APIStatusError):
            return JudgeError(self._hidden(error), passing=True), 0.0, False
        if error.status_code in (401, 403):  # its message is not told: it often holds a part of the key
            refused = "refuses OPENAI_API_KEY" if self._key else "wants a key, and OPENAI_API_KEY is not set"
            return JudgeError(f"it {refused} ({error.status_code})"), 0.0, False
        told = f"it answers {error.status_code} ({self._hidden(error.message)})"
        passing = (error.status_code in PASSING or error.status_code >= 500) and error.code != "insufficient_quota"
        down = passing and error.status_code != 429
        return JudgeError(told, passing), _asked_to_wait(error.response.headers) if passing else 0.0, down

    def _hidden(self, said: object) -> str:
        """What somebody else said, on one line and without the key: some gateways repeat it."""
        text = str(said)
        return briefly(text.replace(self._key, "[OPENAI_API_KEY]") if self._key else text)

    @property
    def _shown(self) -> str:
        """The address without a name and password that may stand in it."""
        parts = urlsplit(self._url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class _Failed(Exception):
    def __init__(self, error: JudgeError, wait: float = 0.0):
        super().__init__(str(error))
        self.error, self.wait = error, wait


def _asked_to_wait(headers: Mapping[str, str]) -> float:
    """Seconds, by Retry-After (seconds or a date, RFC 9110) or OpenAI's retry-after-ms; 0 where neither says."""
    try:
        if milliseconds := headers.get("retry-after-ms"):
            return max(0.0, float(milliseconds) / 1000)
        stated = headers.get("retry-after", "0")
        return max(0.0, float(stated) if stated.replace(".", "", 1).isdigit() else parsedate_to_datetime(stated).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
