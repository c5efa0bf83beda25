"""What a Qwen-VL or a text-only Qwen is made of, read from its config.json alone: every weight is counted and none is loaded.

Counts are exact for the five families (tests build the real classes on torch's meta device and compare), as are the
adapter's and the bytes of a 4-bit base. Nothing heavy is imported.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import PolicyError
from qwen_vl_grpo.sections import LoraSection

TEXT_KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "tie_word_embeddings",
)  # fmt: skip
PUBLISHED: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    # family, the language model in the order of TEXT_KEYS, the vision tower
    "Qwen/Qwen2-VL-2B": ("qwen2_vl", (1536, 28, 12, 2, 8960, 151936, 32768, True), {"embed_dim": 1280, "depth": 32}),
    "Qwen/Qwen2-VL-7B": ("qwen2_vl", (3584, 28, 28, 4, 18944, 152064, 32768, False), {"embed_dim": 1280, "depth": 32}),
    "Qwen/Qwen2.5-VL-3B": ("qwen2_5_vl", (2048, 36, 16, 2, 11008, 151936, 128000, True), {"intermediate_size": 3420}),
    "Qwen/Qwen2.5-VL-7B": ("qwen2_5_vl", (3584, 28, 28, 4, 18944, 152064, 128000, False), {"intermediate_size": 3420}),
    "Qwen/Qwen2.5-VL-32B": ("qwen2_5_vl", (5120, 64, 40, 8, 27648, 152064, 128000, False), {"intermediate_size": 3456}),
    "Qwen/Qwen2.5-VL-72B": ("qwen2_5_vl", (8192, 80, 64, 8, 29568, 152064, 128000, False), {"intermediate_size": 3456}),
    "Qwen/Qwen3-VL-2B": (
        "qwen3_vl", (2048, 28, 16, 8, 6144, 151936, 262144, True),
        {"hidden_size": 1024, "intermediate_size": 4096, "depth": 24, "deepstack_visual_indexes": [5, 11, 17]},
    ),
    "Qwen/Qwen3-VL-4B": (
        "qwen3_vl", (2560, 36, 32, 8, 9728, 151936, 262144, True),
        {"hidden_size": 1024, "intermediate_size": 4096, "depth": 24, "deepstack_visual_indexes": [5, 11, 17]},
    ),
    "Qwen/Qwen3-VL-8B": (
        "qwen3_vl", (4096, 36, 32, 8, 12288, 151936, 262144, False),
        {"hidden_size": 1152, "intermediate_size": 4304, "depth": 27, "deepstack_visual_indexes": [8, 16, 24]},
    ),
    "Qwen/Qwen2.5-1.5B": ("qwen2", (1536, 28, 12, 2, 8960, 151936, 32768, True), {}),
    "Qwen/Qwen2.5-3B": ("qwen2", (2048, 36, 16, 2, 11008, 151936, 32768, True), {}),
    "Qwen/Qwen2.5-7B": ("qwen2", (3584, 28, 28, 4, 18944, 152064, 32768, False), {}),
    "Qwen/Qwen3-4B": ("qwen3", (2560, 36, 32, 8, 9728, 151936, 40960, True), {}),
    "Qwen/Qwen3-4B-Instruct-2507": ("qwen3", (2560, 36, 32, 8, 9728, 151936, 262144, True), {}),
    "Qwen/Qwen3-8B": ("qwen3", (4096, 36, 32, 8, 12288, 151936, 40960, False), {}),
}  # fmt: skip
"""Shapes of the published checkpoints, for a machine that has none of them; a name may end in -Instruct or -Thinking."""

DEFAULTS: dict[str, dict[str, Any]] = {
    # what a published config.json may leave to transformers' class
    "qwen2_vl": {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "patch_size": 14},
    "qwen2_5_vl": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "patch_size": 14},
    "qwen3_vl": {
        "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 16, "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [8, 16, 24],
    },
    "qwen2": {}, "qwen3": {},
}  # fmt: skip
COMMON = {"in_channels": 3, "temporal_patch_size": 2, "spatial_merge_size": 2}


@dataclass(frozen=True)
class Linear:
    """`count` equal linear layers of one part; `name` is the module's name inside its layer."""

    part: str
    name: str
    inputs: int
    outputs: int
    bias: bool
    count: int = 1

    @property
    def matrix(self) -> int:
        return self.inputs * self.outputs

    @property
    def weights(self) -> int:
        return self.count * (self.matrix + self.bias * self.outputs)


@dataclass(frozen=True)
class Shapes:
    """Widths and counts of one model; `rest` holds the weights that are in no linear layer, by part. What is vision's is 0 in a
    model that reads text alone."""

    source: str
    family: str
    hidden: int
    layers: int
    query: int
    key_value: int
    mlp: int
    vocabulary: int
    context: int
    tied: bool
    vision_hidden: int
    vision_mlp: int
    vision_depth: int
    patch: int
    merge: int
    patch_values: int
    linears: tuple[Linear, ...]
    rest: Mapping[str, int]

    def weights(self) -> dict[str, int]:
        """Part of the model -> its weights: vision, merger, language (the layers), embeddings, head (0 if tied)."""
        parts: Counter[str] = Counter({"vision": 0, "merger": 0, "language": 0, "embeddings": 0, "head": 0} | dict(self.rest))
        for linear in self.linears:
            parts[linear.part] += linear.weights
        return dict(parts)

    def total(self) -> int:
        return sum(self.weights().values())

    def learning(self, lora: LoraSection) -> int:
        """How many weights learn: the adapter's, or in full fine-tuning those of the parts that learn."""
        if lora.enabled:
            chosen = lora.parts, lora.target_modules
            return sum(one.count * lora.r * (one.inputs + one.outputs) for one in self.linears if _adapted(one.part, one.name, *chosen))
        own = {"embeddings": "language", "head": "head" if "head" in lora.parts else "language"}
        return sum(count for name, count in self.weights().items() if own.get(name, name) in lora.parts)

    def base_bytes(self, lora: LoraSection, width: int) -> int:
        """Bytes of the base model at `width` bytes a weight; a 4-bit base quantises the language layers' matrices only."""
        if lora.quantization is None:
            return self.total() * width
        quantized = [linear for linear in self.linears if linear.part == "language"]
        whole = self.total() - sum(linear.count * linear.matrix for linear in quantized)
        return whole * width + sum(linear.count * _nf4_bytes(linear.matrix) for linear in quantized)

    def picture_tokens(self, pixels: int) -> int:
        """Tokens of a picture of so many pixels in the prompt."""
        return 0 if not self.patch else max(1, pixels // (self.patch * self.merge) ** 2)


def of(config: RunConfig) -> Shapes:
    """The shapes of the config's model: from its config.json here or in the HF cache, or from the table above; raises PolicyError."""
    path = local_file(config.model_name, config.model_revision, "config.json")
    if path is not None:
        try:
            return read(json.loads(path.read_text(encoding="utf-8")), f"config.json of {config.model_name}")
        except (OSError, ValueError, TypeError, AttributeError) as error:
            cause = " ".join(str(error).split())
            raise PolicyError(f"model_name {config.model_name}: {path} cannot be read as a model's config.json ({cause})") from None
    known = published(config.model_name)
    if known is None:
        raise PolicyError(
            f"model_name {config.model_name}: its config.json is neither in a local folder nor in the HF cache, and its shapes "
            f"are not known here; download it first, or name one of {', '.join(PUBLISHED)}"
        )
    return known


def published(name: str) -> Shapes | None:
    """The shapes of a published checkpoint, kept as facts; None for a name that is not in the table."""
    base = re.sub(r"-(Instruct|Thinking)$", "", name)
    if base not in PUBLISHED:
        return None
    family, text, vision = PUBLISHED[base]
    raw = {"model_type": family, "text_config": dict(zip(TEXT_KEYS, text, strict=True)), "vision_config": vision}
    return read(raw, f"the kept shapes of {base}")


def read(raw: Mapping[str, Any], source: str) -> Shapes:
    """Understand a config.json, flat as published or nested as saved today; raises PolicyError for another family or a missing key."""
    family = raw.get("model_type")
    if family not in DEFAULTS:
        raise PolicyError(f"{source}: is of the family {family}; the families that learn here are {', '.join(DEFAULTS)}")
    text = raw.get("text_config") or raw
    tied = bool(raw.get("tie_word_embeddings") or text.get("tie_word_embeddings"))
    try:
        hidden, layers, heads = text["hidden_size"], text["num_hidden_layers"], text["num_attention_heads"]
        key_value_heads, mlp, vocabulary = text.get("num_key_value_heads") or heads, text["intermediate_size"], text["vocab_size"]
    except KeyError as missing:
        raise PolicyError(f"{source}: has no {missing}, so its weights cannot be counted") from None
    third = family.startswith("qwen3")
    head = text.get("head_dim") or 128 if third else hidden // heads
    inner_bias = outer_bias = bool(text.get("attention_bias"))
    if not third:
        inner_bias, outer_bias = True, False
    language = _language(hidden, layers, heads * head, key_value_heads * head, mlp, inner_bias, outer_bias)
    rest = {
        "language": layers * 2 * hidden + hidden + (layers * 2 * head if third else 0),
        "embeddings": vocabulary * hidden,
        "head": 0 if tied else vocabulary * hidden,
    }
    known: dict[str, Any] = {
        "source": source, "family": family, "hidden": hidden, "layers": layers, "query": heads * head, "key_value": key_value_heads * head,
        "mlp": mlp, "vocabulary": vocabulary, "context": text.get("max_position_embeddings", 32768), "tied": tied,
    }  # fmt: skip
    if not DEFAULTS[family]:
        nothing = dict.fromkeys(("vision_hidden", "vision_mlp", "vision_depth", "patch", "merge", "patch_values"), 0)
        return Shapes(**known, **nothing, linears=tuple(language), rest=rest)
    vision: dict[str, Any] = COMMON | DEFAULTS[family] | dict(raw.get("vision_config") or {})
    vision_hidden = vision["embed_dim"] if family == "qwen2_vl" else vision["hidden_size"]
    vision_mlp = int(vision_hidden * vision["mlp_ratio"]) if family == "qwen2_vl" else vision["intermediate_size"]
    patch_values = vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2
    merged = vision_hidden * vision["spatial_merge_size"] ** 2
    deepstack = len(vision["deepstack_visual_indexes"]) if family == "qwen3_vl" else 0
    tower = _tower(family, vision_hidden, vision_mlp, vision["depth"], merged, hidden, deepstack)
    norm = 1 if family == "qwen2_5_vl" else 2  # a LayerNorm has a bias, an RMSNorm none
    rest |= {
        "vision": patch_values * vision_hidden + vision["depth"] * 2 * norm * vision_hidden,
        "merger": norm * vision_hidden + deepstack * norm * merged,
    }
    if family == "qwen3_vl":
        rest["vision"] += vision_hidden + vision["num_position_embeddings"] * vision_hidden
    return Shapes(
        **known, vision_hidden=vision_hidden, vision_mlp=vision_mlp, vision_depth=vision["depth"], patch=vision["patch_size"],
        merge=vision["spatial_merge_size"], patch_values=patch_values, linears=(*language, *tower), rest=rest,
    )  # fmt: skip


def _language(hidden: int, layers: int, query: int, key_value: int, mlp: int, inner_bias: bool, outer_bias: bool) -> Iterator[Linear]:
    yield Linear("language", "self_attn.q_proj", hidden, query, inner_bias, layers)
    yield Linear("language", "self_attn.k_proj", hidden, key_value, inner_bias, layers)
    yield Linear("language", "self_attn.v_proj", hidden, key_value, inner_bias, layers)
    yield Linear("language", "self_attn.o_proj", query, hidden, outer_bias, layers)
    yield Linear("language", "mlp.gate_proj", hidden, mlp, False, layers)
    yield Linear("language", "mlp.up_proj", hidden, mlp, False, layers)
    yield Linear("language", "mlp.down_proj", mlp, hidden, False, layers)


def _tower(family: str, width: int, mlp: int, depth: int, merged: int, out: int, deepstack: int) -> Iterator[Linear]:
    yield Linear("vision", "qkv", width, 3 * width, True, depth)
    yield Linear("vision", "proj", width, width, True, depth)
    if family == "qwen2_5_vl":
        yield Linear("vision", "gate_proj", width, mlp, True, depth)
        yield Linear("vision", "up_proj", width, mlp, True, depth)
        yield Linear("vision", "down_proj", mlp, width, True, depth)
    else:
        yield Linear("vision", "fc1", width, mlp, True, depth)
        yield Linear("vision", "fc2", mlp, width, True, depth)
    yield Linear("merger", "0", merged, merged, True, 1 + deepstack)
    yield Linear("merger", "2", merged, out, True, 1 + deepstack)


@cache  # a plan asks a hundred thousand times
def _adapted(part: str, name: str, parts: tuple[str, ...], targets: tuple[str, ...]) -> bool:
    if part != "language" or "language" not in parts:
        return part in parts
    # the pattern of policy.adapter, on the name of one layer's module
    return re.fullmatch(rf"layers\.\d+\.(?:.*\.)?(?:{'|'.join(targets)})", f"layers.0.{name}") is not None


def _nf4_bytes(weights: int) -> int:
    """NF4 with double quantisation (arXiv 2305.14314) as bitsandbytes stores it: half a byte a weight, one byte for each block
    of 64, four for each 256 blocks, and two code books."""
    blocks = -(-weights // 64)
    return -(-weights // 2) + blocks + 4 * -(-blocks // 256) + 4 * (16 + 256 + 1)


def local_file(name: str, revision: str | None, file: str) -> Path | None:
    """A file of a local folder, there or not, or of the HF cache at a revision (the layout that huggingface_hub documents)."""
    folder = Path(name)
    if folder.is_dir():
        return folder / file
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser() / f"models--{name.replace('/', '--')}"
    revision = revision or "main"
    named = hub / "refs" / revision
    commit = named.read_text(encoding="utf-8").strip() if named.is_file() else revision
    cached = hub / "snapshots" / commit / file
    return cached if cached.is_file() else None
