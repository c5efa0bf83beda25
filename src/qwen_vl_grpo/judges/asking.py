"""What judges that put questions to an endpoint have in common: one picture a call, and what makes their judgements theirs."""

from __future__ import annotations

import json
import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from PIL.Image import Image

from qwen_vl_grpo.errors import JudgeError
from qwen_vl_grpo.interfaces import Judgement, RenderRequest
from qwen_vl_grpo.judges.endpoint import Endpoint
from qwen_vl_grpo.judges.prompts import Prompt
from qwen_vl_grpo.rendered_sections import JudgeSection


class AskingJudge(ABC):
    """A Judge whose questions go through an Endpoint, which asks again and keeps to the budget."""

    batch_size = 1

    def __init__(self, section: JudgeSection, prompts: Sequence[Prompt], **more: Any):
        self.endpoint = Endpoint(section)
        self.concurrency = section.concurrency
        versions = {prompt.name: prompt.version for prompt in prompts}
        named = self.endpoint.identity | {"name": section.name, "prompts": versions} | more
        self.identity = json.dumps(named, sort_keys=True)

    def check(self) -> None:
        """Raise JudgeError if the endpoint cannot be asked: no key, no answer, or no such model."""
        self.endpoint.check()

    def figures(self) -> dict[str, float]:
        """What asking has cost so far, and how it went since the last call (Endpoint.figures)."""
        return self.endpoint.figures()

    def judge(self, pictures: Sequence[tuple[RenderRequest, Image]]) -> list[Judgement | JudgeError]:
        """Score pictures one by one; raises BudgetError if nothing may be spent any more."""
        said: list[Judgement | JudgeError] = []
        for request, image in pictures:
            try:
                said.append(self.judged(request, image))
            except JudgeError as error:
                said.append(error)
        return said

    @abstractmethod
    def judged(self, request: RenderRequest, image: Image) -> Judgement:
        """The judgement of one picture; raises JudgeError if there is none."""


def noise(votes: Sequence[float]) -> dict[str, float]:
    """The standard error of the mean of some votes, as `noise`; nothing where a single vote cannot tell."""
    return {"noise": statistics.stdev(votes) / math.sqrt(len(votes))} if len(votes) > 1 else {}
