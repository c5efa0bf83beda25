"""Prompt enhancement: a short prompt is rewritten, drawn by a frozen diffusion model, and the picture judged by the prompt it began as.

One raw row of the prompts that come with the project (configs/prompt_enhancement/train.csv):

    {"kind": "colour", "prompt": "a blue banana on a wooden table"}

Any other set works: a text file with a prompt a line, CSV, JSON Lines, Parquet or the Hub, with the prompt's column under
`data.columns.question` where it is not called prompt, text, caption or question. A row may have `width` and `height`, in pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from qwen_vl_grpo import enhancement
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import RewardFunction, Sample, Task, Verdict
from qwen_vl_grpo.rendered_reward import RenderedReward
from qwen_vl_grpo.rendered_sections import PenaltiesSection
from qwen_vl_grpo.sections import DataSection
from qwen_vl_grpo.tasks import drawn

if TYPE_CHECKING:
    from qwen_vl_grpo.config import RunConfig

SYSTEM_PROMPT = """\
You rewrite prompts for a text-to-image model. Keep the subject of the prompt exactly as it is. Add style and light, and technical \
terms such as camera, composition, detail and quality. Stay concise: at most 60 words. Reply with the rewritten prompt alone."""

GUESSES = ("prompt", "text", "caption", "question")
"""Columns tried in this order where `data.columns.question` does not say."""


def build() -> Task:
    rewards = (("rendered_reward", 1.0),)
    own = {"rendered_reward": rendered_reward}
    return Task("prompt_enhancement", SYSTEM_PROMPT, rewards, read_row, judge, own_rewards=own, told=told, shown=shown)


def read_row(row: Mapping[str, Any], data: DataSection, system_prompt: str) -> Sample:
    """Turn one raw row into a sample; raises DataError (no prompt, or a size that is none)."""
    prompt = drawn.text(drawn.column("question", GUESSES, "prompt", row, data), "a prompt", row)
    sides = [row.get("width"), row.get("height")]
    if sides != [None, None] and not all(str(side).isdigit() and int(str(side)) > 0 for side in sides):
        raise DataError(f"holds width {sides[0]!r} and height {sides[1]!r}; give both in pixels, or neither")
    columns = {"original_prompt": prompt, "kind": str(row.get("kind") or "")}
    columns |= {} if sides[0] is None else {"width": int(str(sides[0])), "height": int(str(sides[1]))}
    id_column = data.columns.get("id", "id")
    return Sample(
        id=str(row.get(id_column) or ""),
        prompt=drawn.chat(system_prompt, prompt),
        images=[],
        answer="",
        columns=columns,
    )


def judge(completion: str, sample: Sample) -> Verdict:
    """Well-formed: there is something to draw. Right: all five points of the quality score."""
    rewritten = enhancement.enhanced(completion)
    points = enhancement.quality(sample.columns["original_prompt"], rewritten)
    return Verdict(bool(rewritten), points == 5, quality=points)


def told(question: str, completion: str) -> dict[str, Any]:
    """The rewritten prompt as the answer, and its quality score."""
    rewritten = enhancement.enhanced(completion)
    return {"answer": rewritten, "well_formed": bool(rewritten), "quality": enhancement.quality(question, rewritten)}


def shown(record: Mapping[str, Any]) -> str:
    """Original, enhanced, length in characters, and the quality score."""
    original, rewritten = record["prompt"], record["answer"]
    return (
        f"original: {original}\nenhanced: {rewritten}\nlength: {len(original)} -> {len(rewritten)} characters\n"
        f"quality: {record['quality']:.2f} / 5"
    )


def rendered_reward(config: RunConfig) -> RewardFunction:
    """The judge's score of what a completion looks like, less the penalties; raises the typed error of a part that is not there."""
    return RenderedReward(config, enhancement.enhanced, partial(penalty, config.penalties or PenaltiesSection()))


def penalty(penalties: PenaltiesSection, original: str, rewritten: str) -> float:
    """What is taken off the score of a rewritten prompt."""
    return (
        penalties.copying * enhancement.copying(original, rewritten)
        + penalties.length * enhancement.overlength(rewritten, penalties.longest)
        + penalties.painted_text * enhancement.asks_for_words(original, rewritten)
    )
