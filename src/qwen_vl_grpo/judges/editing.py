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
from qwen_vl_grpo.judges import prompts
from qwen_vl_grpo.judges.asking import AskingJudge, noise
from qwen_vl_grpo.judges.questions import Question
from qwen_vl_grpo.rendered_sections import JudgeSection

Grade = Literal["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]
"""Words and not numbers: a strict schema can list them, and so nothing between or beyond them is said."""
TURN = """The first picture is the one before the edit, the second the one after it. The instruction is:

{instruction}"""
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


class EditJudge(AskingJudge):
    """Scores an edit of `request.sources[0]` by `request.original`; it never sees the completion.

    The score is the weighted mean of alignment, quality and identity (judge.weights), each out of 10. Details: those three, from 0 to 10;
    `official`, their plain mean, as Complex-Edit reports it; `votes`; and with several votes `noise`, the standard error of the score.
    """

    def __init__(self, section: JudgeSection, device: Any = None):
        self._alignment, self._quality = prompts.read("edit_alignment"), prompts.read("edit_quality")
        total = sum(section.weights.values())
        self._weights = {name: weight / total for name, weight in section.weights.items()}
        self._votes = section.votes
        super().__init__(section, (self._alignment, self._quality), weights=self._weights)

    def judged(self, request: RenderRequest, image: Image) -> Judgement:
        """The judgement of one edit; raises JudgeError for a request without the picture that was edited, too."""
        if not request.sources:
            raise JudgeError(f"an edit is judged beside the picture that it began from, and {request.original[:80]!r} has none")
        shown = (request.sources[0], image, TURN.format(instruction=request.original))
        alignments = self._answers(self._alignment.text, shown, Alignment)
        qualities = self._answers(self._quality.text, (image,), Quality)
        details = scores(alignments, qualities)
        score = sum(self._weights.get(name, 0.0) * details[name] for name in ("alignment", "quality", "identity")) / 10
        counts = {"votes": float(min(len(alignments), len(qualities)))}
        reason = "\n".join(alignment.reasoning.strip() for alignment in alignments)
        return Judgement(score, details | counts | self._noise(alignments, qualities), reason)

    def _answers(self, system: str, content: tuple[Any, ...], form: type[BaseModel]) -> list[Any]:
        replies = self.endpoint.ask(Question(system, content, form, votes=self._votes, max_tokens=MOST_TOKENS))
        return [reply.parsed for reply in replies]

    def _noise(self, alignments: Sequence[Alignment], qualities: Sequence[Quality]) -> dict[str, float]:
        """Of the score; alignment and identity come from one answer and go together, the quality from another."""
        alignment, quality, identity = (self._weights.get(name, 0.0) / 10 for name in ("alignment", "quality", "identity"))
        parts = (
            noise([alignment * int(one.instruction_following) + identity * int(one.identity_preservation) for one in alignments]),
            noise([quality * int(one.perceptual_quality) for one in qualities]),
        )
        return {"noise": math.hypot(*(part["noise"] for part in parts))} if all(parts) else {}


def scores(alignments: Sequence[Alignment], qualities: Sequence[Quality]) -> dict[str, float]:
    """The means over votes, from 0 to 10, and `official`, the mean of the three (Complex-Edit's eval.py calls it overall)."""
    means = {
        "alignment": statistics.fmean(int(one.instruction_following) for one in alignments),
        "quality": statistics.fmean(int(one.perceptual_quality) for one in qualities),
        "identity": statistics.fmean(int(one.identity_preservation) for one in alignments),
    }
    return means | {"official": statistics.fmean(means.values())}
