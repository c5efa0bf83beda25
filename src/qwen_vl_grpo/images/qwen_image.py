"""Qwen-Image as a frozen renderer: it sees the policy's own states of a completion, and the noise follows the request's seed.

The pipeline is read without its text encoder, which is the policy itself and is held once. What the published pipeline does without a word
(diffusers 0.42, pipelines/qwenimage/pipeline_qwenimage.py) is an error here: guidance that is off because nobody gave a negative prompt,
sides that are rounded down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from PIL import Image

from qwen_vl_grpo.errors import RenderError
from qwen_vl_grpo.images.frozen import FrozenRenderer
from qwen_vl_grpo.interfaces import Conditioning, RenderRequest
from qwen_vl_grpo.rendered_sections import TOKEN_SIDE, RendererSection

log = logging.getLogger("qwen_vl_grpo")


class QwenImage(FrozenRenderer):
    """An ImageGenerator that reads states of shape (tokens, width of the policy)."""

    draws_with = "QwenImagePipeline"
    negative: Callable[[Sequence[RenderRequest]], list[Conditioning]] | None = None
    """The states of `renderer.negative_prompt` for each of some requests, as the policy's base weights encode it."""

    def __init__(self, section: RendererSection, device: torch.device):
        super().__init__(section, device)
        self.cut: set[str] = set()
        """Hashes of the states that were longer than `renderer.text_tokens`."""

    def render(self, requests: Sequence[RenderRequest]) -> list[Image.Image | RenderError]:
        """As FrozenRenderer; raises RenderError, too, for guidance without a negative prompt's states."""
        if self._guided and self.negative is None:
            raise RenderError(
                f"renderer.guidance_scale {self._section.guidance_scale:g} leads away from a negative prompt, and nobody gives its states; "
                "set guidance_scale: 1, or give the renderer what encodes it (QwenImage.negative)"
            )
        return super().render(requests)

    @property
    def _guided(self) -> bool:
        return self._section.guidance_scale > 1

    def _read(self, dtype: torch.dtype) -> Any:
        from diffusers.pipelines.qwenimage.pipeline_qwenimage import QwenImagePipeline  # seconds, and a replay needs none of it

        return self._without_encoder(QwenImagePipeline, dtype, "text_encoder", "tokenizer")

    def _without_encoder(self, kind: Any, dtype: torch.dtype, *parts: str) -> Any:
        """Read a pipeline without some parts, which are not downloaded either."""
        section = self._section
        pipeline = kind.from_pretrained(section.model, revision=section.revision, dtype=dtype, **dict.fromkeys(parts))
        pipeline.vae.enable_slicing()  # one picture at a time, or its memory would grow with the batch
        return pipeline

    def _alike(self, request: RenderRequest) -> Hashable:
        conditioned(request)
        if request.sources:
            raise RenderError(f"renderer.name {self._section.name} draws from words alone, and this row has pictures; take qwen_image_edit")
        return self._sides(request)

    def _sides(self, request: RenderRequest) -> tuple[int, int]:
        """Width and height of the picture; raises RenderError for sides that the pipeline would round down."""
        width, height = request.size or (self._section.width, self._section.height)
        if width % TOKEN_SIDE or height % TOKEN_SIDE:
            raise RenderError(f"a picture of {width}x{height} cannot be drawn: {self._section.name} takes multiples of {TOKEN_SIDE} pixels")
        return width, height

    def _given(self, pipeline: Any, requests: Sequence[RenderRequest]) -> dict[str, Any]:
        width, height = self._sides(requests[0])
        given = {"width": width, "height": height, "true_cfg_scale": self._section.guidance_scale}
        given["prompt_embeds"], given["prompt_embeds_mask"] = self._batch(pipeline, [self._states(request) for request in requests])
        if self._guided and self.negative is not None:
            states = [conditioning.states for conditioning in self.negative(requests)]
            if len(states) != len(requests):
                raise RenderError(f"the negative prompt was encoded {len(states)} times for {len(requests)} pictures; each needs its own")
            given["negative_prompt_embeds"], given["negative_prompt_embeds_mask"] = self._batch(pipeline, states)
        return given

    def _states(self, request: RenderRequest) -> torch.Tensor:
        """The states that the transformer sees: the first `text_tokens`."""
        states, most = conditioned(request).states, self._section.text_tokens
        if len(states) > most:
            if not self.cut:
                log.warning(
                    "renderer: a completion of %d tokens is cut at renderer.text_tokens %d; those after it are counted", len(states), most
                )
            self.cut.add(conditioned(request).sha256)
        return states[:most]

    def _batch(self, pipeline: Any, rows: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """States padded on the right, (rows, tokens, width), and their mask, in the transformer's dtype on the renderer's device.

        A text token's position is its index in the row, so that padding anywhere else would move the text.
        """
        has, takes = rows[0].shape[-1], pipeline.transformer.config.joint_attention_dim
        if has != takes:  # images/width.py refuses such a config; this is for requests from elsewhere
            raise RenderError(f"the policy's states are {has} wide, and renderer.model {self._section.model} takes {takes}")
        padded = torch.nn.utils.rnn.pad_sequence([row.to(self._device, pipeline.transformer.dtype) for row in rows], batch_first=True)
        lengths = torch.tensor([len(row) for row in rows], device=self._device)
        return padded, torch.arange(padded.shape[1], device=self._device) < lengths[:, None]


def conditioned(request: RenderRequest) -> Conditioning:
    """What a request is drawn from; raises RenderError if it has nothing but text."""
    if request.conditioning is None:
        raise RenderError(
            "the picture is drawn from the policy's own states of a completion, and this request has none; take a task that encodes its "
            "completions (text_to_image, image_edit), or renderer.name: sd3, which reads text"
        )
    return request.conditioning
