"""Prompt enhancement: a short prompt is rewritten, drawn by a frozen diffusion model, and the picture judged by the prompt it began as.

One raw row of the prompts that come with the project (configs/prompt_enhancement/train.csv):

    {"kind": "colour", "prompt": "a blue banana on a wooden table"}

Any other set works: a text file with a prompt a line, CSV, JSON Lines, Parquet or the Hub, with the prompt's column under
`data.columns.question` where it is not called prompt, text, caption or question. A row may have `width` and `height`, in pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qwen_vl_grpo import enhancement, placement, rendered_parts
from qwen_vl_grpo.errors import ConfigError, DataError
from qwen_vl_grpo.interfaces import Judgement, Mode, RenderRequest, RewardFunction, Sample, Task, Verdict
from qwen_vl_grpo.rendered_gallery import Entry, RenderedGallery
from qwen_vl_grpo.rendered_sections import PenaltiesSection, PlacementSection, RendererSection
from qwen_vl_grpo.rewards.rendered import scores, seed_of
from qwen_vl_grpo.rewards.xml import texts
from qwen_vl_grpo.sections import DataSection

if TYPE_CHECKING:
    from qwen_vl_grpo.config import RunConfig

SYSTEM_PROMPT = """\
You rewrite prompts for a text-to-image model. Keep the subject of the prompt exactly as it is. Add style and light, and technical \
terms such as camera, composition, detail and quality. Stay concise: at most 60 words. Reply with the rewritten prompt alone."""

GUESSES = ("prompt", "text", "caption", "question")
"""Columns tried in this order where `data.columns.question` does not say."""


def build(mode: Mode = "strict") -> Task:
    if mode == "documented":
        raise ConfigError("task.mode: documented is for visual_reasoning, which has published rewards; remove it")
    rewards = (("rendered_reward", 1.0),)
    own = {"rendered_reward": rendered_reward}
    return Task("prompt_enhancement", SYSTEM_PROMPT, rewards, read_row, judge, own_rewards=own, told=told, shown=shown)


def read_row(row: Mapping[str, Any], data: DataSection, system_prompt: str) -> Sample:
    """Turn one raw row into a sample; raises DataError (no prompt, or a size that is none)."""
    asked = data.columns.get("question")
    name = next((name for name in ((asked,) if asked else GUESSES) if name in row), None)
    if name is None:
        tried = repr(asked) if asked else " or ".join(map(repr, GUESSES))
        raise DataError(f"has no column {tried} for the prompt; it has {', '.join(map(str, row))}; map it with data.columns.question")
    prompt = row[name]
    if not isinstance(prompt, str) or not prompt.strip():
        raise DataError(f"column {name!r} holds {prompt!r}; a prompt is text")
    sides = [row.get("width"), row.get("height")]
    if sides != [None, None] and not all(str(side).isdigit() and int(str(side)) > 0 for side in sides):
        raise DataError(f"holds width {sides[0]!r} and height {sides[1]!r}; give both in pixels, or neither")
    columns = {"original_prompt": prompt.strip(), "kind": str(row.get("kind") or "")}
    columns |= {} if sides[0] is None else {"width": int(str(sides[0])), "height": int(str(sides[1]))}
    id_column = data.columns.get("id", "id")
    return Sample(
        id=str(row.get(id_column) or ""),
        prompt=[{"role": "system", "content": system_prompt}, {"role": "user", "content": prompt.strip()}],
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
    """The judge's score of what a completion looks like, less the penalties; raises the typed error of a part that is not there.

    The score is None for a completion that is empty, and for one that could not be drawn or judged.
    """
    judging, placing = config.judging, config.placement or PlacementSection()
    penalties = config.penalties or PenaltiesSection()
    score = rendered_parts.build(config.renderer or RendererSection(), judging, placing)
    kept = RenderedGallery(config.run_dir, config.max_steps)

    def rendered_reward(
        completions: Sequence[Any],
        original_prompt: Sequence[str],
        width: Sequence[int | None] | None = None,
        height: Sequence[int | None] | None = None,
        log_metric: Callable[..., Any] | None = None,
        log_extra: Callable[..., Any] | None = None,
        trainer_state: Any = None,
        moment: str | None = None,
        **_: Any,
    ) -> list[float | None]:
        rewritten = [enhancement.enhanced(text) for text in texts(completions)]
        sizes = [
            size if all(size) else None for size in zip(width or [None] * len(rewritten), height or [None] * len(rewritten), strict=True)
        ]
        requests = [
            RenderRequest(original, text, seed_of(config.seed, original), size) if text else None  # type: ignore[arg-type]
            for original, text, size in zip(original_prompt, rewritten, sizes, strict=True)
        ]
        outcomes, pictures = scores(score, requests, judging.most_failures, log_metric)
        judged = [outcome if isinstance(outcome, Judgement) else None for outcome in outcomes]
        off = [penalty(penalties, original, text) for original, text in zip(original_prompt, rewritten, strict=True)]
        if log_metric is not None:
            log_metric("rendered/penalty", sum(off) / len(off))
        if log_extra is not None:
            log_extra("judge_score", [judgement and judgement.score for judgement in judged])
            log_extra("cosine", [judgement and judgement.details.get("cosine") for judgement in judged])
        if trainer_state is not None and trainer_state.global_step % placing.empty_cache_every == 0:
            placement.release()
        rewards = [None if judgement is None else judgement.score - less for judgement, less in zip(judged, off, strict=True)]
        entries = list(map(Entry, original_prompt, rewritten, requests, outcomes, rewards))
        if trainer_state is not None:
            kept.keep_step(trainer_state.global_step + 1, entries, pictures)
        elif moment is not None:
            kept.keep_held_out(moment, entries, pictures)
        return rewards

    return rendered_reward


def penalty(penalties: PenaltiesSection, original: str, rewritten: str) -> float:
    """What is taken off the score of a rewritten prompt."""
    return (
        penalties.copying * enhancement.copying(original, rewritten)
        + penalties.length * enhancement.overlength(rewritten, penalties.longest)
        + penalties.painted_text * enhancement.asks_for_words(original, rewritten)
    )
