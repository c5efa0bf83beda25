"""Build tiny Qwen-Image pipelines with the real classes around a tiny policy; the weights are random and nothing is downloaded.

What they draw means nothing, but depends on every state of the policy that the published ones would see. Sizes keep the published rules: a
latent for 8x8 pixels, two by two latents a token, so that pictures come in multiples of 16.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import AutoencoderKLQwenImage
from diffusers.models.transformers.transformer_qwenimage import QwenImageTransformer2DModel
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
from diffusers.pipelines.qwenimage.pipeline_qwenimage import QwenImagePipeline
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from transformers import AutoModelForImageTextToText, AutoProcessor, Qwen2VLProcessor

Kind = Literal["qwen_image", "qwen_image_edit", "qwen_image_edit_plus"]
PIPELINES: dict[Kind, Any] = {
    "qwen_image": QwenImagePipeline,
    "qwen_image_edit": pipeline_qwenimage_edit.QwenImageEditPipeline,
    "qwen_image_edit_plus": pipeline_qwenimage_edit_plus.QwenImageEditPlusPipeline,
}
HEADER = "<|im_start|>user\n"


def build(folder: str | Path, kind: Kind, policy: str | Path, seed: int = 0) -> None:
    """Write a pipeline whose text encoder is the checkpoint in the folder `policy` (demo.tiny_qwen makes one of Qwen2.5-VL)."""
    encoder = AutoModelForImageTextToText.from_pretrained(policy, dtype=torch.float32)
    processing = AutoProcessor.from_pretrained(policy)
    torch.manual_seed(seed)
    latents = 4
    transformer = QwenImageTransformer2DModel(
        patch_size=2, in_channels=4 * latents, out_channels=latents, num_layers=2, attention_head_dim=16, num_attention_heads=3,
        joint_attention_dim=encoder.config.get_text_config().hidden_size, axes_dims_rope=(8, 4, 4),
    )  # fmt: skip
    for weight in transformer.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.2)  # wide enough for a picture to show which states it was drawn from
    vae = AutoencoderKLQwenImage(
        base_dim=8, z_dim=latents, dim_mult=[1, 2, 2, 2], num_res_blocks=1, temperal_downsample=[False, True, True],  # type: ignore[arg-type]
        latents_mean=[0.0] * latents, latents_std=[1.0] * latents,
    )  # fmt: skip
    parts: dict[str, Any] = {"transformer": transformer, "vae": vae, "text_encoder": encoder, "tokenizer": processing.tokenizer}
    if kind != "qwen_image":  # the published folders name Qwen2-VL's processor, which differs from the policy's in videos alone
        processing.image_processor.size = {"shortest_edge": 56 * 56, "longest_edge": 3584 * 3584}  # as published: no limit at 1024^2
        parts["processor"] = Qwen2VLProcessor(processing.image_processor, processing.tokenizer, processing.video_processor)
    PIPELINES[kind](scheduler=FlowMatchEulerDiscreteScheduler(), **parts).save_pretrained(folder)


def load(folder: str | Path, kind: Kind) -> Any:
    """The pipeline with its own encoder, which drops the system turn of the tiny vocabulary and not the 34 or 64 tokens of the real one."""
    pipeline = PIPELINES[kind].from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    template: str = pipeline.prompt_template_encode
    before = template[: template.index(HEADER) + len(HEADER)]
    pipeline.prompt_template_encode_start_idx = len(pipeline.tokenizer(before)["input_ids"])
    return pipeline


@contextmanager
def picture_types(pipeline: Any) -> Iterator[None]:
    """Hand the encoder of an editing pipeline the token types that diffusers 0.42 leaves out (diffusers#14194).

    Without them transformers 5 counts a picture's tokens as text, and every position after the picture is another one.
    """
    encoder = pipeline.text_encoder
    published = encoder.forward

    def forward(*, input_ids: torch.Tensor, **named: Any) -> Any:
        types = (input_ids == encoder.config.image_token_id).int()
        return published(input_ids=input_ids, mm_token_type_ids=types, **named)

    encoder.forward = forward
    try:
        yield
    finally:
        del encoder.forward


@contextmanager
def small_sources(seen: int = 96, drawn_from: int = 128) -> Iterator[None]:
    """Let the editing pipelines scale a source to about `seen`^2 pixels for the encoder and `drawn_from`^2 for the VAE.

    The published 1024^2 stand in diffusers' code and cost half a minute a picture on a CPU. The Edit pipeline has one size for both.
    """
    edit, plus = pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
    scaled, scaled_plus = edit.calculate_dimensions, plus.calculate_dimensions
    with (
        mock.patch.object(edit, "calculate_dimensions", lambda area, ratio: scaled(drawn_from**2, ratio)),
        mock.patch.object(plus, "calculate_dimensions", lambda area, ratio: scaled_plus(min(area, drawn_from**2), ratio)),
        mock.patch.object(plus, "CONDITION_IMAGE_SIZE", seen**2),
        mock.patch.object(plus, "VAE_IMAGE_SIZE", drawn_from**2),
    ):
        yield
