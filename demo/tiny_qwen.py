"""Build a tiny Qwen-VL or text-only Qwen checkpoint with the real classes, the real processor and a small tokenizer of its own.

Nothing is downloaded. The weights are random: warm it up before you expect an answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedTokenizerFast,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
TAGS = ["<reasoning>", "</reasoning>", "<answer>", "</answer>"]
PHRASES = [
    "system", "user", "assistant", "You are a helpful assistant.", "Which digit is this?", "The digit in the picture is ",
    "The shape looks like ", "Reply in this form: reasoning, then answer.", *"0123456789",
]  # fmt: skip
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
TEXT_FAMILIES = ("qwen2", "qwen3")
SIZES = {
    # about one million weights: wide enough to read a digit, small enough for a laptop
    "tiny": {
        "hidden": 128, "intermediate": 256, "layers": 3, "heads": 4, "kv_heads": 2, "head": 32, "rotary": [4, 6, 6], "spread": 0.06,
        "vision": {"hidden": 96, "intermediate": 192, "depth": 2, "heads": 4, "spread": 0.06},
    },
    # 115 million, for a GPU: heads of 64, which every attention kernel knows; the spread falls with the width
    "100m": {
        "hidden": 768, "intermediate": 3072, "layers": 12, "heads": 12, "kv_heads": 4, "head": 64, "rotary": [8, 12, 12], "spread": 0.02,
        "vision": {"hidden": 384, "intermediate": 1024, "depth": 4, "heads": 6, "spread": 0.03},
    },
}  # fmt: skip


def tokenizer(chat_template: str, phrases: Sequence[str] = PHRASES, size: int = 340) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on the demo's phrases; it can spell any text. The tags are single tokens, but not special ones."""
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=1,
        special_tokens=SPECIAL_TOKENS,
    )
    backend.train_from_iterator(phrases, trainer)
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left", model_max_length=4096,
        chat_template=chat_template,
    )  # fmt: skip


def processor(family: str, phrases: Sequence[str] = PHRASES, vocabulary: int = 340):
    """The family's real processor with TRL's copy of its chat template, and a tokenizer of so many tokens; for text that one alone."""
    patch = 16 if family == "qwen3_vl" else 14
    template = {"qwen3_vl": "qwen3_vl", "qwen2": "qwen2_5", "qwen3": "qwen3_instruct_2507"}.get(family, "qwen2_5_vl")
    chat_template = resources.files("trl").joinpath(f"chat_templates/{template}.jinja").read_text()
    if family in TEXT_FAMILIES:
        return tokenizer(chat_template, phrases, vocabulary)
    limits = {"shortest_edge": 56 * 56, "longest_edge": 1280 * 28 * 28}
    images = Qwen2VLImageProcessor(patch_size=patch, temporal_patch_size=2, merge_size=2, size=limits)
    kind = {"qwen2_vl": Qwen2VLProcessor, "qwen2_5_vl": Qwen2_5_VLProcessor, "qwen3_vl": Qwen3VLProcessor}[family]
    video = Qwen3VLVideoProcessor() if family == "qwen3_vl" else Qwen2VLVideoProcessor()
    return kind(images, tokenizer(chat_template, phrases, vocabulary), video, chat_template=chat_template)


def config(family: str, processing, size: str = "tiny", tied: bool = True, theta: float = 1e6):
    """The family's config in one of SIZES; untied, the head has weights of its own. A small `theta` tells near places further apart."""
    words = getattr(processing, "tokenizer", processing)
    ids = {token: words.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    shape: Any = SIZES[size]
    seen: Any = shape["vision"]
    interleaved = {"mrope_interleaved": True} if family == "qwen3_vl" else {}
    text = {
        "vocab_size": len(words), "hidden_size": shape["hidden"], "intermediate_size": shape["intermediate"],
        "num_hidden_layers": shape["layers"], "num_attention_heads": shape["heads"], "num_key_value_heads": shape["kv_heads"],
        "head_dim": shape["head"], "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "mrope_section": shape["rotary"], "rope_theta": theta} | interleaved,
        "initializer_range": shape["spread"], "tie_word_embeddings": tied,
        "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"],
    }  # fmt: skip
    if family in TEXT_FAMILIES:
        return AutoConfig.for_model(family, **text | {"rope_parameters": {"rope_type": "default", "rope_theta": theta}})
    vision = {"depth": seen["depth"], "num_heads": seen["heads"], "in_channels": 3, "spatial_merge_size": 2, "temporal_patch_size": 2}
    vision |= {"initializer_range": seen["spread"]}
    last = seen["depth"] - 1
    vision |= {
        "qwen2_vl": {"embed_dim": seen["hidden"], "hidden_size": shape["hidden"], "mlp_ratio": 2, "patch_size": 14},
        "qwen2_5_vl": {
            "hidden_size": seen["hidden"], "intermediate_size": seen["intermediate"], "out_hidden_size": shape["hidden"], "patch_size": 14,
            "window_size": 112, "fullatt_block_indexes": [last], "tokens_per_second": 2,
        },
        "qwen3_vl": {
            "hidden_size": seen["hidden"], "intermediate_size": seen["intermediate"], "out_hidden_size": shape["hidden"], "patch_size": 16,
            "num_position_embeddings": 256, "deepstack_visual_indexes": [last],
        },
    }[family]  # fmt: skip
    return AutoConfig.for_model(
        family, text_config=text, vision_config=vision, image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"], tie_word_embeddings=tied,
    )  # fmt: skip


def build(
    folder: str | Path,
    family: str = "qwen2_5_vl",
    seed: int = 0,
    size: str = "tiny",
    phrases: Sequence[str] = PHRASES,
    vocabulary: int = 340,
    tied: bool = True,
    theta: float = 1e6,
) -> int:
    """Write a random checkpoint of `family` into `folder`; returns the number of its weights."""
    processing = processor(family, phrases, vocabulary)
    torch.manual_seed(seed)
    kind = AutoModelForCausalLM if family in TEXT_FAMILIES else AutoModelForImageTextToText
    model = kind.from_config(config(family, processing, size, tied, theta), dtype=torch.float32)
    words = getattr(processing, "tokenizer", processing)
    model.generation_config.eos_token_id = words.eos_token_id
    model.generation_config.pad_token_id = words.pad_token_id
    processing.save_pretrained(folder)
    model.save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build a tiny random Qwen checkpoint.")
    parser.add_argument("folder")
    parser.add_argument("--family", choices=(*FAMILIES, *TEXT_FAMILIES), default="qwen2_5_vl")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(f"{build(given.folder, given.family, given.seed, given.size) / 1e6:.2f} M weights in {given.folder}")
