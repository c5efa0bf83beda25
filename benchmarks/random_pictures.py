"""Pipelines and judges of random weights in their published sizes, made where they are used: nothing is downloaded or read from a disk.

Noise has the memory and the speed of the published weights. What it draws and scores means nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel
from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import StableDiffusion3Pipeline
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPProcessor,
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

from demo import tiny_pictures
from qwen_vl_grpo.images.frozen import FrozenRenderer

CLIP_VOCABULARY = 49408
MEDIUM: dict[str, dict[str, Any]] = {
    "transformer": {
        "sample_size": 128, "patch_size": 2, "in_channels": 16, "out_channels": 16, "num_layers": 24, "attention_head_dim": 64,
        "num_attention_heads": 24, "joint_attention_dim": 4096, "caption_projection_dim": 1536, "pooled_projection_dim": 2048,
        "pos_embed_max_size": 192,
    },
    "vae": {"sample_size": 1024, "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "latent_channels": 16},
    "text_encoder": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "projection_dim": 768,
        "hidden_act": "quick_gelu", "vocab_size": CLIP_VOCABULARY,
    },
    "text_encoder_2": {
        "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20, "projection_dim": 1280,
        "hidden_act": "gelu", "vocab_size": CLIP_VOCABULARY,
    },
    "text_encoder_3": {"d_model": 4096, "d_ff": 10240, "d_kv": 64, "num_heads": 64, "num_layers": 24, "vocab_size": 32128},
}  # fmt: skip
"""Stable Diffusion 3 Medium as its page on the Hub has it: 2.03 billion weights, a VAE of 84 million, text encoders of 124 million,
695 million and 4.76 billion."""
_SMALL = {
    "hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 4, "projection_dim": 32, "vocab_size": 600,
}  # fmt: skip
TINY: dict[str, dict[str, Any]] = {
    "transformer": {
        "sample_size": 8, "patch_size": 1, "in_channels": 4, "out_channels": 4, "num_layers": 1, "attention_head_dim": 8,
        "num_attention_heads": 4, "joint_attention_dim": 64, "caption_projection_dim": 32, "pooled_projection_dim": 64,
    },
    "vae": {"sample_size": 32, "block_out_channels": (4, 8, 8), "layers_per_block": 1, "latent_channels": 4, "norm_num_groups": 1},
    "text_encoder": _SMALL,
    "text_encoder_2": _SMALL,
    "text_encoder_3": {"d_model": 64, "d_ff": 64, "d_kv": 8, "num_heads": 2, "num_layers": 1, "vocab_size": 300},
}  # fmt: skip


@contextmanager
def made_in_place(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Modules that are made inside lie on the device in this dtype from their first byte on."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    torch.manual_seed(0)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)


def sd3(device: torch.device, dtype: torch.dtype, tiny: bool) -> Any:
    """A whole pipeline with T5; its tokenizers read a letter a token, and pad to the lengths that the published ones pad to."""
    sizes, letters = TINY if tiny else MEDIUM, tiny_pictures.tokenizer()
    ends: dict[str, Any] = {"bos_token_id": len(letters) - 2, "eos_token_id": len(letters) - 1, "pad_token_id": len(letters) - 1}
    blocks = len(sizes["vae"]["block_out_channels"])
    fixed: dict[str, Any] = {"use_quant_conv": False, "use_post_quant_conv": False, "scaling_factor": 1.5305, "shift_factor": 0.0609}
    with made_in_place(device, dtype):
        parts: dict[str, Any] = {
            "transformer": SD3Transformer2DModel(**sizes["transformer"]),
            "vae": AutoencoderKL(
                down_block_types=("DownEncoderBlock2D",) * blocks,  # type: ignore[arg-type]
                up_block_types=("UpDecoderBlock2D",) * blocks,  # type: ignore[arg-type]
                **fixed, **sizes["vae"],
            ),
            "text_encoder": CLIPTextModelWithProjection(CLIPTextConfig(**sizes["text_encoder"], **ends)),
            "text_encoder_2": CLIPTextModelWithProjection(CLIPTextConfig(**sizes["text_encoder_2"], **ends)),
            "text_encoder_3": T5EncoderModel(T5Config(feed_forward_proj="gated-gelu", **sizes["text_encoder_3"])),
        }  # fmt: skip
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    return StableDiffusion3Pipeline(scheduler=scheduler, tokenizer=letters, tokenizer_2=letters, tokenizer_3=_bytes(), **parts)


def _bytes() -> PreTrainedTokenizerFast:
    """T5's place is taken by a tokenizer of one token a byte."""
    vocabulary = {token: index for index, token in enumerate(["<pad>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", model_max_length=512)


def clip(folder: Path, tiny: bool) -> None:
    """Write a CLIP ViT-B/32 (151 million weights), whose sizes are the defaults of its class."""
    if tiny:
        return tiny_pictures.clip(folder)
    letters = tiny_pictures.tokenizer()
    ends = {"bos_token_id": len(letters) - 2, "eos_token_id": len(letters) - 1, "pad_token_id": len(letters) - 1}
    torch.manual_seed(0)
    CLIPModel(CLIPConfig(text_config=ends)).save_pretrained(folder)
    CLIPProcessor(CLIPImageProcessor(), letters).save_pretrained(folder)


@dataclass
class Made:
    """What became of a renderer whose pipeline was made and not read."""

    weights: dict[str, int]
    seconds: float = 0.0
    gib: float = 0.0
    """Of its weights on their card."""


@contextmanager
def unread(kind: type[FrozenRenderer], folder: Path, make: Callable[[torch.device, torch.dtype], Any], width: int = 0) -> Iterator[Made]:
    """Let a renderer of the product make its pipeline where it would read it; the rest of it stays as it is.

    The folder gets what is looked at before weights are read: the pipeline's class, and the `width` of the states that it takes.
    """
    (folder / "transformer").mkdir(parents=True, exist_ok=True)
    (folder / "model_index.json").write_text(json.dumps({"_class_name": kind.draws_with}), encoding="utf-8")
    (folder / "transformer/config.json").write_text(json.dumps({"joint_attention_dim": width}), encoding="utf-8")
    made = Made({})

    def read(self: FrozenRenderer, dtype: torch.dtype) -> Any:
        started, before = time.perf_counter(), _held(self._device)
        pipeline = make(self._device, dtype)
        made.weights = {
            name: sum(weight.numel() for weight in part.parameters())
            for name, part in pipeline.components.items()
            if isinstance(part, torch.nn.Module)
        }
        made.gib, made.seconds = _held(self._device) - before, time.perf_counter() - started
        return pipeline

    with mock.patch.object(kind, "_read", read):
        yield made


def _held(device: torch.device) -> float:
    if device.type != "cuda":
        return 0.0
    torch.cuda.synchronize(device)
    return torch.cuda.memory_allocated(device) / 2**30
