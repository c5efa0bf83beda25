"""What an endpoint answered, and why an answer is none: cut off, refused, filtered, or not in the form that was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from qwen_vl_grpo.errors import briefly
from qwen_vl_grpo.judges.failures import Failure
from qwen_vl_grpo.judges.questions import Question


@dataclass(frozen=True)
class Token:
    """One token of an answer."""

    text: str
    likely: Mapping[str, float]
    """Text -> log probability, of the likeliest 20 tokens. vLLM's are those before the form rules any out: renormalise over yours."""


@dataclass(frozen=True)
class Reply:
    """One answer. `parsed` is an instance of the question's form, or what its `read` made of the text, or None."""

    text: str
    parsed: Any = None
    logprobs: tuple[Token, ...] = ()
    """Empty unless they were asked for and the server gives them."""


def read(choice: Any, question: Question, bare: Callable[[Any], Any]) -> Reply:
    """The reply in one choice of a completion, its texts as `bare` leaves them; raises Failure, passing where another attempt may give one.

    The choice comes from a server that may break the protocol: nothing in it is taken for granted.
    """
    message = getattr(choice, "message", None)
    text, refusal = bare(getattr(message, "content", None)), bare(getattr(message, "refusal", None))
    reason = getattr(choice, "finish_reason", None)
    if refusal or reason == "content_filter":
        raise Failure(f"it refused ({briefly(refusal) if refusal else 'content filter'})")
    if reason == "length":
        raise Failure(f"its answer was cut off at {question.max_tokens} tokens", passing=True)
    if reason != "stop":
        raise Failure(f"its answer ended with {briefly(reason)!r}", passing=True)
    if not isinstance(text, str) or not text.strip():
        raise Failure("its answer is empty", passing=True)
    return Reply(text, _parsed(text, question), _tokens(choice))


def _parsed(text: str, question: Question) -> Any:
    form = question.form
    try:
        return form.model_validate_json(text) if form else question.read(text) if question.read else None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        reason = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
    except ValueError as error:
        reason = str(error)
    raise Failure(f"its answer {briefly(text)!r} cannot be used ({briefly(reason)})", passing=True)


def _tokens(choice: Any) -> tuple[Token, ...]:
    content = getattr(getattr(choice, "logprobs", None), "content", None) or ()
    return tuple(Token(one.token, _by_text(one.top_logprobs or [one])) for one in content)


def _by_text(likely: Any) -> dict[str, float]:
    """Text -> log probability; several tokens may have the same text, and then stand for it together."""
    together: dict[str, float] = {}
    for one in likely:
        together[one.token] = together.get(one.token, 0.0) + math.exp(one.logprob)
    return {text: math.log(probability) if probability else -math.inf for text, probability in together.items()}
