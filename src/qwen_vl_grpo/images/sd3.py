"""Stable Diffusion 3 as a frozen renderer: the completion goes in as text, and the noise follows the request's seed.

Without T5 the pipeline reads the first 77 CLIP tokens of a completion and nothing else; with it, `text_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from qwen_vl_grpo.images.frozen import FrozenRenderer
from qwen_vl_grpo.interfaces import RenderRequest


class StableDiffusion3(FrozenRenderer):
    """An ImageGenerator that reads completions."""

    draws_with = "StableDiffusion3Pipeline"

    def _read(self, dtype: torch.dtype) -> Any:
        # seconds, and a replay needs none of it
        from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import StableDiffusion3Pipeline

        section = self._section
        without = {} if section.t5 else {"text_encoder_3": None, "tokenizer_3": None}
        return StableDiffusion3Pipeline.from_pretrained(section.model, revision=section.revision, dtype=dtype, **without)

    def _given(self, pipeline: Any, requests: Sequence[RenderRequest]) -> dict[str, Any]:
        section = self._section
        width, height = requests[0].size or (section.width, section.height)
        return {
            "prompt": [request.completion for request in requests],
            "negative_prompt": [section.negative_prompt] * len(requests),
            "guidance_scale": section.guidance_scale,
            "width": width,
            "height": height,
        }
