"""Complex-Edit's protocol as a judge of edited pictures: was the instruction followed, was the rest kept, does the picture hold together?

Two questions a picture. One shows the picture before, the picture after and the instruction; the other shows the picture after alone,
so that its quality is not graded by how hard the instruction was. Protocol: UCSC-VLAA/Complex-Edit, commit 3502eaa (arXiv 2504.13143);
the prompts say the same in words of ours. tests/fixtures/complex_edit_scores.jsonl holds scores of the published code.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal

from PIL.Image import Image
from pydantic import BaseModel

from qwen_vl_grpo.errors import JudgeError
from qwen_vl_grpo.interfaces import Judgement, RenderRequest
from qwen_vl_grpo.judges import expected, prompts
from qwen_vl_grpo.judges.asking import AskingJudge, noise
from qwen_vl_grpo.judges.prompts import Prompt
from qwen_vl_grpo.judges.questions import Question
from qwen_vl_grpo.judges.replies import Reply
from qwen_vl_grpo.rendered_sections import JudgeSection

Grade = Literal["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]
"""Words and not numbers: a strict schema can list them, and so nothing between or beyond them is said."""
TURN = """The first picture is the one before the edit, the second the one after it. The instruction is:

{instruction}"""
Letter = Literal["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K"]
MOST_TOKENS = 512
"""Of an answer; the published evaluation's limit."""


class Alignment(BaseModel):
    """How an edit agrees with its instruction; the reasoning comes first."""

    reasoning: str
    instruction_following: Grade
    identity_preservation: Grade


class Quality(BaseModel):
    """How well a picture holds together."""

    perceptual_quality: Grade


class LetteredAlignment(Alignment):
    """The same, in letters."""

    instruction_following: Letter  # type: ignore[assignment]
    identity_preservation: Letter  # type: ignore[assignment]


class LetteredQuality(Quality):
    """The same, in letters."""

    perceptual_quality: Letter  # type: ignore[assignment]


class EditJudge(AskingJudge):
    """Scores an edit of `request.sources[0]` by `request.original`; it never sees the completion.

    The score is the weighted mean of alignment, quality and identity (judge.weights), each out of 10. Details: those three, from 0 to 10;
    `official`, their plain mean, as Complex-Edit reports it; `votes`; and with several votes `noise`, the standard error of the score.
    With judge.scoring: expected a grade is the mean over what the judge might have said (expected.py).
    """

    def __init__(self, section: JudgeSection, device: Any = None):
        self._alignment, self._quality = prompts.read("edit_alignment"), prompts.read("edit_quality")
        total = sum(section.weights.values())
        self._weights = {name: section.weights.get(name, 0.0) / total for name in ("alignment", "quality", "identity")}
        self._votes, self._expected = section.votes, section.scoring == "expected"
        super().__init__(section, (self._alignment, self._quality), weights=self._weights, scoring=section.scoring)

    def judged(self, request: RenderRequest, image: Image) -> Judgement:
        """The judgement of one edit; raises JudgeError for a request without the picture that was edited, too."""
        if not request.sources:
            raise JudgeError(f"an edit is judged beside the picture that it began from, and {request.original[:80]!r} has none")
        shown = (request.sources[0], image, TURN.format(instruction=request.original))
        replies = self._ask(self._alignment, shown, LetteredAlignment if self._expected else Alignment)
        alignments = [(self._grade(reply, "instruction_following"), self._grade(reply, "identity_preservation")) for reply in replies]
        others = self._ask(self._quality, (image,), LetteredQuality if self._expected else Quality)
        qualities = [self._grade(reply, "perceptual_quality") for reply in others]
        details = scores(alignments, qualities)
        score = sum(weight * details[name] for name, weight in self._weights.items()) / 10
        counts = {"votes": float(min(len(alignments), len(qualities)))}
        reason = "\n".join(reply.parsed.reasoning.strip() for reply in replies)
        return Judgement(score, details | counts | self._noise(alignments, qualities), reason)

    def _ask(self, prompt: Prompt, content: tuple[Any, ...], form: type[BaseModel]) -> list[Reply]:
        system = f"{prompt.text}\n\n{expected.TURN}" if self._expected else prompt.text
        asked = Question(system, content, form, votes=self._votes, max_tokens=MOST_TOKENS, logprobs=self._expected)
        return self.endpoint.ask(asked)

    def _grade(self, reply: Reply, name: str) -> float:
        return expected.grade(reply, name) if self._expected else float(getattr(reply.parsed, name))

    def _noise(self, alignments: Sequence[tuple[float, float]], qualities: Sequence[float]) -> dict[str, float]:
        """Of the score; alignment and identity come from one answer and go together, the quality from another."""
        weight = {name: share / 10 for name, share in self._weights.items()}
        parts = (
            noise([weight["alignment"] * following + weight["identity"] * kept for following, kept in alignments]),
            noise([weight["quality"] * quality for quality in qualities]),
        )
        return {"noise": math.hypot(*(part["noise"] for part in parts))} if all(parts) else {}


def scores(alignments: Sequence[tuple[float, float]], qualities: Sequence[float]) -> dict[str, float]:
    """The means over votes, from 0 to 10, and `official`, the mean of the three (Complex-Edit's eval.py calls it overall).

    A vote on alignment is instruction following and identity preservation.
    """
    means = {
        "alignment": statistics.fmean(following for following, _ in alignments),
        "quality": statistics.fmean(qualities),
        "identity": statistics.fmean(kept for _, kept in alignments),
    }
    return means | {"official": statistics.fmean(means.values())}
