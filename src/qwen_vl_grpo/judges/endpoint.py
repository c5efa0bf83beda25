"""A judge that is asked over HTTP: OpenAI, or any server with its chat completions, such as `vllm serve`.

This is the only place that asks again: a question whose answer fails for a passing reason is put `judge.attempts` times, and of several
votes only those are asked for again that are missing.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from qwen_vl_grpo.config import launched
from qwen_vl_grpo.errors import JudgeError, briefly
from qwen_vl_grpo.hub import LOOPBACK
from qwen_vl_grpo.judges import questions, replies
from qwen_vl_grpo.judges.budget import Budget
from qwen_vl_grpo.judges.failures import Failure, meaning
from qwen_vl_grpo.judges.limits import Breaker, RateLimit
from qwen_vl_grpo.judges.questions import Question
from qwen_vl_grpo.judges.replies import Reply
from qwen_vl_grpo.rendered_sections import OPENAI, JudgeSection

if TYPE_CHECKING:
    from openai import OpenAI

PAUSE = 1.0
"""Seconds before the second attempt; doubled before each further one, and up to half as much again, lest threads come together."""
LONGEST = 120.0
"""Seconds that a server may ask to be left alone; one that asks for more has failed."""
LIKELIEST = 20
"""Tokens at each place: the most that OpenAI and an unchanged vLLM tell."""


class Endpoint:
    """Puts questions; threads share one, `judge.concurrency` requests at once. The key comes from OPENAI_API_KEY alone and is never told.

    Raises ConfigError for an address that cannot be used.
    """

    def __init__(self, section: JudgeSection):
        named = section.model_dump(include={"model", "revision", "votes", "image_side", "image_format"})
        self.identity: dict[str, Any] = named | {"questions": questions.VERSION}
        """What the answers depend on beside the question: a part of the identity of every judge that asks here."""
        self._section, self._url = section, section.address
        self._key = os.environ.get("OPENAI_API_KEY", "").strip()
        self._pictures = questions.Pictures(section.image_side, section.image_format)
        self._budget = Budget(section)
        self._breaker = Breaker(section.breaker_failures, section.breaker_pause)
        self._slots = threading.BoundedSemaphore(section.concurrency)
        self._requests = RateLimit(_share(section.requests_per_minute))
        self._tokens = RateLimit(_share(section.tokens_per_minute))
        self._several = True  # until it gives fewer answers than it was asked for
        self._lock = threading.Lock()
        self._loaded: OpenAI | None = None
        self._latencies: list[float] = []
        self._failures = 0

    def check(self) -> None:
        """Raise JudgeError if the key is missing, or the endpoint is not there, refuses the key or does not have the model."""
        if not self._key and self._url == OPENAI:
            raise JudgeError(
                "OPENAI_API_KEY is not set, and the judge needs it: write it into .env, or name a server of your own with judge.base_url"
            )
        try:
            try:
                models = self._models()
            except Failure as failure:
                if failure.status != 404:
                    raise
                self._send(Question("", ("Are you there?",), max_tokens=16), 1)  # not every server lists its models
                return
            if self._section.model not in models:
                raise Failure(f"there is no such model; it has {', '.join(models[:5])}")
        except Failure as failure:
            raise JudgeError(f"{self._named}: {failure}", failure.passing) from None

    def ask(self, question: Question) -> list[Reply]:
        """The answers to a question: `question.votes` of them, or at least one where the others failed to the end.

        Raises JudgeError if there is none, and BudgetError if nothing may be spent any more.
        """
        said: list[Reply] = []
        for attempt in range(1, self._section.attempts + 1):
            failure = self._fill(said, question)
            if failure is None:
                break
            with self._lock:
                self._failures += 1
            if not failure.passing or failure.wait > LONGEST or attempt == self._section.attempts:
                if said:
                    break
                raise JudgeError(f"{self._named}: {failure}" + (f", after {attempt} attempts" if attempt > 1 else ""), failure.passing)
            time.sleep(max(failure.wait, PAUSE * 2 ** (attempt - 1)) * random.uniform(1.0, 1.5))
        return said

    def figures(self) -> dict[str, float]:
        """Totals (requests, input_tokens, output_tokens, cost); failed attempts and the median latency in seconds since the last call."""
        with self._lock:
            latencies, self._latencies = self._latencies, []
            failures, self._failures = self._failures, 0
        latency = {"latency": statistics.median(latencies)} if latencies else {}
        return self._budget.spent | {"failures": float(failures)} | latency

    def _fill(self, said: list[Reply], question: Question) -> Failure | None:
        """Add the replies that are missing, in as few requests as the server can do; returns what failed, if anything did."""
        while (missing := question.votes - len(said)) > 0:
            count = missing if self._several else 1
            try:
                choices = self._send(question, count)
            except Failure as failure:
                if count == 1 or failure.status not in (400, 422):
                    return failure
                choices = []  # some refuse to be asked for several; any other reason shows again
            self._several = self._several and len(choices) >= count
            failed = None
            for choice in choices[:count]:
                try:
                    said.append(replies.read(choice, question, self._bare))
                except Failure as failure:
                    failed = failure
            if failed is not None:
                return failed
        return None

    def _send(self, question: Question, count: int) -> list[Any]:
        """The choices that one request comes to, at least one; raises Failure and BudgetError."""
        import openai

        arguments = self._arguments(question, count)
        expected = questions.estimate(question, count, self._section.image_side)
        with self._slots:
            self._budget.check()
            self._breaker.enter()
            self._requests.take()
            taken = self._tokens.take(expected)
            started = time.perf_counter()
            try:
                completion = self._client.chat.completions.create(**arguments)
            except (openai.OpenAIError, ValueError) as error:
                failure = meaning(error, self._section.timeout, self._told)
                self._breaker.leave(failure)
                raise failure from None
            self._breaker.leave(None)
        with self._lock:
            self._latencies.append(time.perf_counter() - started)
        usage = getattr(completion, "usage", None)
        sent, answered = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
        if not isinstance(sent, int) or not isinstance(answered, int):
            sent, answered = expected, 0  # not every server says
        self._tokens.correct(taken, sent + answered)
        self._budget.spend(sent, answered)
        choices = getattr(completion, "choices", None)
        if not isinstance(choices, list) or not choices:
            raise Failure("its response holds no answer", passing=True)
        return choices

    def _models(self) -> list[str]:
        """What the server lists; raises Failure."""
        import openai

        try:
            listed = self._client.models.list().data
        except AttributeError:  # the client stumbles over a page of HTML
            listed = None
        except (openai.OpenAIError, ValueError) as error:
            raise meaning(error, self._section.timeout, self._told) from None
        if not isinstance(listed, list):
            raise Failure("it tells no models; most addresses end with /v1")
        return [str(getattr(model, "id", None)) for model in listed]

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
            asked |= {"logprobs": True, "top_logprobs": LIKELIEST}
        return asked

    @property
    def _client(self) -> OpenAI:
        if not all(33 <= ord(letter) < 127 for letter in self._key):  # the client would tell it in an error
            raise JudgeError("OPENAI_API_KEY holds characters that no key has; write it into .env again")
        near = urlsplit(self._url).hostname in LOOPBACK
        if self._key and not near and self._url.startswith("http:"):
            raise JudgeError(f"{self._named}: would get OPENAI_API_KEY in clear text; use https or a tunnel, or unset it")
        with self._lock:
            if self._loaded is None:
                import openai  # half a second, and a replay needs none of it

                self._loaded = openai.OpenAI(
                    api_key=self._key or "EMPTY",  # what a server without keys is told
                    base_url=self._url,
                    timeout=openai.Timeout(self._section.timeout, connect=10.0),
                    max_retries=0,
                    http_client=openai.DefaultHttpxClient(trust_env=False) if near else None,  # no proxy named for the Hub is asked
                )
        return self._loaded

    def _told(self, said: object) -> str:
        return briefly(self._bare(str(said)))

    def _bare(self, said: Any) -> Any:
        """What somebody else said, without the key: some gateways repeat it."""
        return said.replace(self._key, "[OPENAI_API_KEY]") if self._key and isinstance(said, str) else said

    @property
    def _named(self) -> str:
        return f"judge.model {self._section.model} at {self._url}"


def _share(limit: int | None) -> int | None:
    return limit and max(1, limit // launched())
