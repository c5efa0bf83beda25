"""The vLLM engine made faithful: the prompt it answers is the prompt that the policy is scored on.

TRL 1.16 hands vLLM prompts whose picture tokens the processor has already expanded; vLLM expands them again, the sampled
text belongs to another prompt, the ratios underflow and the loss is 0 at every step (trl#6294, trl#6401).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer

from qwen_vl_grpo.errors import RolloutError


def collapse(ids: Sequence[int], vision_tokens: Sequence[int]) -> list[int]:
    """Keep one token of each run of equal vision tokens: the form that vLLM expands by itself."""
    return [token for i, token in enumerate(ids) if not (token in vision_tokens and i and ids[i - 1] == token)]


class FaithfulGeneration(VLLMGeneration):
    """TRL's colocated engine with one picture token a picture, and the returned prompt checked against the trainer's."""

    def generate(self, prompts: list[list[int]], images: list[Any] | None, num_generations: int, profiler: Any = None) -> tuple[Any, ...]:
        """Answers trl#6294 and trl#6401; a text-only row among rows with pictures is None here and [] in the trainer.

        Raises RolloutError if vLLM answered a prompt other than the trainer's.
        """
        vision = vision_token_ids(self.processing_class)
        short = [collapse(ids, vision) for ids in prompts]
        returned, *rest = super().generate(short, [row or None for row in images] if images else None, num_generations, profiler)
        for row, (seen, scored) in enumerate(zip(returned, prompts, strict=True)):
            if list(seen) != list(scored):
                raise RolloutError(
                    f"rollouts: in row {row} vLLM read a prompt of {len(seen)} tokens and the trainer scores one of {len(scored)}; "
                    "the pictures reach the two in different sizes, so check data.min_pixels and data.max_pixels against the model"
                )
        return prompts, *rest

    def sample(self, prompts: list[list[int]], images: list[Any] | None, count: int, temperature: float) -> list[list[list[int]]]:
        """Answer prompts outside training, `count` times each, at another temperature (0 is greedy); returns token ids."""
        if images is not None and not any(images):
            images = None
        repeated = [ids for ids in prompts for _ in range(count)]
        pictures = [row for row in images for _ in range(count)] if images is not None else None
        trained_at, self.temperature = self.temperature, temperature
        try:
            completions = self.generate(repeated, pictures, 1)[1]
        finally:
            self.temperature = trained_at
        return [completions[i : i + count] for i in range(0, len(completions), count)]


def vision_token_ids(processor: Any) -> list[int]:
    """Ids of the picture and video placeholders."""
    return [token for token in (processor.image_token_id, processor.video_token_id) if token is not None]


def forbid_vision_tokens(processor: Any, use_vllm: bool) -> dict[str, Any]:
    """Sampling arguments under which no placeholder is sampled: one in a completion would ask for a picture that is not there.

    transformers suppresses the picture's token alone and vLLM none (trl#3847). vLLM wants integer keys.
    """
    tokens = vision_token_ids(processor)
    return {"logit_bias": dict.fromkeys(tokens, -100.0)} if use_vllm else {"suppress_tokens": tokens}


@contextmanager
def injected() -> Iterator[None]:
    """Let a trainer that is built inside use FaithfulGeneration: TRL takes the class from this module by name."""
    published = grpo_trainer.VLLMGeneration  # pyright: ignore[reportPrivateImportUsage]
    grpo_trainer.VLLMGeneration = FaithfulGeneration  # pyright: ignore[reportPrivateImportUsage]
    try:
        yield
    finally:
        grpo_trainer.VLLMGeneration = published  # pyright: ignore[reportPrivateImportUsage]
