"""The task of the signs: the policy is asked for a sign in words, what it answers is painted, and the picture is read back.

One raw row (demo/sign_words.py writes them):

    {"id": "the opposite of open", "kind": "opposite", "question": "the opposite of open", "answer": "closed", "asked_with": "open"}

Reward, cache of judgements and gallery are the product's own, with the painter and the reader that configs/demo/sign.yaml names. The reader
is imported where it is used: whoever asks a finished run by its id needs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from demo.sign_painter import paint, words_of
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import DataError, JudgeError
from qwen_vl_grpo.interfaces import Judgement, RenderRequest, Sample, Task, Verdict
from qwen_vl_grpo.rendered_reward import RenderedReward
from qwen_vl_grpo.rewards.xml import texts
from qwen_vl_grpo.tasks import drawn

SYSTEM_PROMPT = "Reply with a sign."


def build() -> Task:
    own, weights = {"rendered_reward": SignReward}, (("rendered_reward", 1.0),)
    return Task("sign", SYSTEM_PROMPT, weights, read_row, judge, examples, own_rewards=own, told=drawn.told)


class SignReward(RenderedReward):
    """The same for signs: one without words is wrong whoever reads it, and earns 0 where any other picture would have no score."""

    def __init__(self, config: RunConfig):
        super().__init__(config, words_of)

    def __call__(self, completions: Sequence[Any], *given: Any, **columns: Any) -> list[float | None]:
        earned = super().__call__(completions, *given, **columns)
        return [score if words_of(text) else 0.0 for text, score in zip(texts(completions), earned, strict=True)]


def read_row(row: Mapping[str, Any], data: Any, system_prompt: str) -> Sample:
    """Turn one raw row into a sample without a picture; raises DataError if it has no question or no answer."""
    if not row.get("question") or not row.get("answer"):
        raise DataError(f"has no question or no answer; it has {', '.join(sorted(row))}; write it with python -m demo.sign")
    columns = {"original_prompt": row["question"], "rubric": row["answer"]}
    return Sample(str(row.get("id", "")), drawn.chat(system_prompt, row["question"]), [], row["answer"], columns)


def judge(completion: str, sample: Sample) -> Verdict:
    """Well-formed: there are words to paint. Right: the sign says what was asked for. Raises JudgeError if it could not be read."""
    from demo.sign_reader import reader

    words = words_of(completion)
    sign = paint(words)
    if isinstance(sign, Exception):
        return Verdict(False, False)
    (said,) = reader().judge([(RenderRequest(sample.columns["original_prompt"], words, 0, rubric=sample.answer), sign)])
    if not isinstance(said, Judgement):
        raise JudgeError(f"{sample.id}: the sign {completion!r} could not be judged, and a score leaves none out: {said}")
    return Verdict(True, said.score == 1.0)


def examples(sample: Sample) -> tuple[str, list[str]]:
    """The words themselves, and: the prompt copied, a letter too many, and an empty sign."""
    return sample.answer, [sample.prompt[-1]["content"], f"{sample.answer}s", ""]
