"""Build a tiny Stable Diffusion 3 pipeline and a tiny CLIP with the real classes; the weights are random and nothing is downloaded.

What they draw and score means nothing, but depends on every token that the published ones would read.
"""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel
from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import StableDiffusion3Pipeline
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from tokenizers import pre_tokenizers
from transformers import (
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPProcessor,
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    CLIPVisionConfig,
)

START, END = "<|startoftext|>", "<|endoftext|>"


def tokenizer() -> CLIPTokenizer:
    """CLIP's tokenizer without merges: a token a letter, and the end has the largest id, as in the published vocabulary."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [*letters, *(letter + "</w>" for letter in letters), START, END]
    return CLIPTokenizer(vocab={token: index for index, token in enumerate(vocabulary)}, merges=[], model_max_length=77, pad_token=END)


def text_config(tokens: CLIPTokenizer) -> CLIPTextConfig:
    return CLIPTextConfig(
        hidden_size=32, intermediate_size=37, num_attention_heads=4, num_hidden_layers=3, vocab_size=len(tokens), projection_dim=32,
        hidden_act="gelu", bos_token_id=len(tokens) - 2, eos_token_id=len(tokens) - 1, pad_token_id=len(tokens) - 1,
    )  # fmt: skip


def sd3(folder: str | Path, seed: int = 0) -> None:
    """Write a pipeline that draws pictures of 32x32 in hundredths of a second, without T5."""
    torch.manual_seed(seed)
    tokens = tokenizer()
    transformer = SD3Transformer2DModel(
        sample_size=8, patch_size=1, in_channels=4, num_layers=1, attention_head_dim=8, num_attention_heads=4, caption_projection_dim=32,
        joint_attention_dim=64, pooled_projection_dim=64, out_channels=4,
    )  # fmt: skip
    vae = AutoencoderKL(
        sample_size=32,
        block_out_channels=(4, 8, 8),  # type: ignore[arg-type]
        down_block_types=("DownEncoderBlock2D",) * 3,  # type: ignore[arg-type]
        up_block_types=("UpDecoderBlock2D",) * 3,  # type: ignore[arg-type]
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=1,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.0609,
        scaling_factor=1.5035,
    )
    StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=CLIPTextModelWithProjection(text_config(tokens)),
        tokenizer=tokens,
        text_encoder_2=CLIPTextModelWithProjection(text_config(tokens)),
        tokenizer_2=tokens,
        text_encoder_3=None,  # type: ignore[arg-type]
        tokenizer_3=None,  # type: ignore[arg-type]
    ).save_pretrained(folder)


def clip(folder: str | Path, seed: int = 0) -> None:
    """Write a CLIP of 32x32 pictures."""
    torch.manual_seed(seed)
    tokens = tokenizer()
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=37, num_attention_heads=4, num_hidden_layers=3, image_size=32, patch_size=8, projection_dim=32
    )
    config = CLIPConfig(text_config=text_config(tokens).to_dict(), vision_config=vision.to_dict(), projection_dim=32)
    CLIPModel(config).save_pretrained(folder)
    size = {"shortest_edge": 32}
    CLIPProcessor(CLIPImageProcessor(size=size, crop_size={"height": 32, "width": 32}), tokens).save_pretrained(folder)
