"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): a group whose completions are all right or all wrong teaches nothing, so other
rows are drawn in its place before anything is scored.

The task's verdict decides and not the rewards: filtered on a shaped reward, a policy learns whatever gives that reward spread. The reserve
is bounded; groups that find no replacement stay.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from qwen_vl_grpo import dataset, processors, row_clips
from qwen_vl_grpo.config import RunConfig, launched
from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.interfaces import Task
from qwen_vl_grpo.pictures import SharedRows
from qwen_vl_grpo.trainer import VisionGRPOTrainer

ROUNDS = 3
"""Further generations at most: each wakes the engine and waits for its longest completion."""


def check(config: RunConfig, task: Task, rows: Any) -> None:
    """Raise ConfigError for a run that cannot have a reserve."""
    if config.dynamic_sampling is None:
        return
    if launched() > 1:
        raise ConfigError("dynamic_sampling: is for one process, as ranks that draw again would wait for each other; remove it")
    if task.judge("", dataset.to_sample(rows[0])).correct is None:
        raise ConfigError(f"dynamic_sampling: task {task.name} draws its completions before they are judged; remove it")


class Reserve:
    """Other rows of a run's own data, drawn by its seed and step, so that a resumed run draws the same."""

    def __init__(self, rows: Any, task: Task, limit: int, seed: int):
        self._rows = SharedRows(rows, row_clips.trained_on)
        self._task, self._limit, self._seed = task, limit, seed

    def refill(self, trainer: VisionGRPOTrainer, prompts: list[Any], output: tuple[Any, ...]) -> tuple[Any, ...]:
        """What TRL's `_generate` returned, `prompts` and the trainer's rows, with groups of other rows in place of level ones.

        Lengths and cut-off completions are logged of the groups as they were drawn.
        """
        _, ids, tool_mask, texts, logprobs, extra, images, tool_images = output
        size: Any = trainer.num_generations
        rows = trainer._given
        level = [start for start in range(0, len(rows), size) if self._is_level(rows[start], texts[start : start + size])]
        found, drawn, others = len(level), 0, self._others(rows, trainer._step)
        for _ in range(ROUNDS):
            if not (more := list(islice(others, min(len(level), self._limit - drawn)))):
                break
            drawn += len(more)
            asked, new_ids, new_texts, new_logprobs = self._generated(trainer, more)
            for place, row in enumerate(more):
                new = slice(place * size, (place + 1) * size)
                if self._is_level(row, new_texts[new]):
                    continue
                old = slice(start := level.pop(0), start + size)
                rows[old], prompts[old], ids[old], texts[old] = [row] * size, asked[new], new_ids[new], new_texts[new]
                if logprobs is not None:
                    logprobs[old] = new_logprobs[new]
        for name, count in {"level": found, "drawn": drawn, "replaced": found - len(level)}.items():
            trainer._metrics["train"][f"dynamic_sampling/{name}"].append(count)
        prompt_ids, images, _ = trainer._tokenize_prompts(prompts) if drawn else (output[0], images, {})
        return prompt_ids, ids, tool_mask, texts, logprobs, extra, images, tool_images

    def _generated(self, trainer: VisionGRPOTrainer, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Prompts, ids, texts and log-probabilities of a group for each row, as TRL's `_generate` makes them."""
        size: Any = trainer.num_generations
        prompts = [prompt for row in rows for prompt in [processors.filled(row)["prompt"]] * size]
        asked, images, seen = trainer._tokenize_prompts(prompts)
        ids, logprobs = trainer._generate_single_turn(asked, images, seen, size)
        trainer.state.num_input_tokens_seen += sum(map(len, asked)) + sum(map(len, ids))
        processor: Any = trainer.processing_class
        texts = processor.batch_decode(ids, skip_special_tokens=True)
        return prompts, ids, [[{"role": "assistant", "content": text}] for text in texts], logprobs

    def _is_level(self, row: Mapping[str, Any], completions: Sequence[Any]) -> bool:
        sample = dataset.to_sample(dict(row))
        return len({self._task.judge(completion[0]["content"], sample).correct for completion in completions}) == 1

    def _others(self, rows: Sequence[Mapping[str, Any]], moment: int) -> Iterator[dict[str, Any]]:
        """Rows in random order, but those that were asked already."""
        asked, chance = {row["id"] for row in rows}, random.Random(f"{self._seed}:{moment}")
        count = min(len(self._rows), self._limit + len(asked))
        for index in chance.sample(range(len(self._rows)), count):
            if (row := self._rows[index])["id"] not in asked:
                yield row
