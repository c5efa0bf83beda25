"""The task of the signs: the policy is asked for a sign in words, what it answers is painted, and the picture is read back.

One raw row (demo/sign_words.py writes them):

    {"id": "the opposite of open", "kind": "opposite", "question": "the opposite of open", "answer": "closed", "asked_with": "open"}

Painter and reader are imported where they are used: whoever asks a finished run by its id needs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from qwen_vl_grpo.errors import DataError, JudgeError
from qwen_vl_grpo.interfaces import Judgement, RenderRequest, Sample, Task, Verdict
from qwen_vl_grpo.rewards.rendered import RenderedScores, scores
from qwen_vl_grpo.rewards.xml import texts

SYSTEM_PROMPT = "Reply with a sign."
MEMORY = Path("outputs/demo/sign-judgements.sqlite")
MOST_FAILURES = 0.05
"""The run stops when a larger share of a step's signs could not be painted or read."""


def build() -> Task:
    rewards = (("sign_reward", 1.0),)
    return Task("sign", SYSTEM_PROMPT, rewards, read_row, judge, examples, own_rewards={"sign_reward": lambda config: sign_reward})


def read_row(row: Mapping[str, Any], data: Any, system_prompt: str) -> Sample:
    """Turn one raw row into a sample without a picture; raises DataError if it has no question or no answer."""
    if not row.get("question") or not row.get("answer"):
        raise DataError(f"has no question or no answer; it has {', '.join(sorted(row))}; write it with python -m demo.sign")
    prompt = [{"role": "system", "content": system_prompt}, {"role": "user", "content": row["question"]}]
    return Sample(str(row.get("id", "")), prompt, [], row["answer"])


def sign_reward(
    completions: Sequence[Any], answer: Sequence[str], log_metric: Callable[..., Any] | None = None, **_: Any
) -> list[float | None]:
    """1 if the words that were asked for are read on the sign, else 0; None for a sign that could not be painted or read.

    A completion without words is a sign without words, which is wrong whoever reads it: 0.
    """
    from demo.sign_painter import words_of

    words = [words_of(text) for text in texts(completions)]
    requests = [RenderRequest(gold, sign, seed=0) if sign else None for gold, sign in zip(answer, words, strict=True)]
    outcomes, _pictures = scores(signs(), requests, MOST_FAILURES, log_metric)
    return [
        0.0 if request is None else outcome.score if isinstance(outcome, Judgement) else None
        for request, outcome in zip(requests, outcomes, strict=True)
    ]


def judge(completion: str, sample: Sample) -> Verdict:
    """Well-formed: there are words to paint. Right: the sign says what was asked for. Raises JudgeError if it could not be read."""
    from demo.sign_painter import words_of

    (score,) = sign_reward([completion], [sample.answer])
    if score is None:
        raise JudgeError(f"{sample.id}: the sign {completion!r} could not be judged, and a score leaves none out")
    return Verdict(bool(words_of(completion)), score == 1.0)


def examples(sample: Sample) -> tuple[str, list[str]]:
    """The words themselves, and: the prompt copied, a letter too many, and an empty sign."""
    return sample.answer, [sample.prompt[-1]["content"], f"{sample.answer}s", ""]


@cache
def signs() -> RenderedScores:
    """Painter, reader and the memory of what was read; nothing is loaded before the first sign."""
    from demo.sign_painter import SignPainter
    from demo.sign_reader import SignReader
    from qwen_vl_grpo.judges.cache import JudgementCache

    painter, reader = SignPainter(), SignReader()
    return RenderedScores(painter, reader, JudgementCache(MEMORY, painter.identity, reader.identity))
