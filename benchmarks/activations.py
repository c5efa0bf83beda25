"""Count the activations of real Qwen-VL models in a scoring pass and a micro-step, beside what `grpo plan` estimates for them.

    OMP_NUM_THREADS=1 python benchmarks/activations.py        # a CPU is enough; a minute or two

Every storage that torch makes is counted from its birth to its death, at reduced widths and with TRL's fused head in small
tiles, so the layers are what is seen. A GPU's kernels may hold more. The constants of footprint.py were fitted to such counts.
"""

from __future__ import annotations

import weakref
from typing import Any
from unittest.mock import patch as replaced

import peft
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.utils import logging as transformers_logging
from trl.trainer import utils as trl_utils

from qwen_vl_grpo import config as configs
from qwen_vl_grpo import footprint, policy, shapes
from qwen_vl_grpo.config import RunConfig

TILE = 64
"""Vocabulary entries a tile of the head, here and in the estimate."""
TEXT = {
    "vocab_size": 64, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 128, "max_position_embeddings": 4096,
}  # fmt: skip
VISION: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"embed_dim": 160, "hidden_size": 512},
    "qwen2_5_vl": {"hidden_size": 160, "intermediate_size": 430, "out_hidden_size": 512, "fullatt_block_indexes": [3]},
    "qwen3_vl": {"hidden_size": 160, "intermediate_size": 640, "out_hidden_size": 512, "deepstack_visual_indexes": [2]},
}
CASES: dict[str, dict[str, Any]] = {
    "adapter, checkpointing": {},
    "adapter, kept": {"gradient_checkpointing": False},
    "adapter, 2 of 6 layers recomputed": {"gradient_checkpointing": 2},
    "adapter on the tower too, checkpointing": {"lora": {"r": 4, "vision": True}},
    "adapter on the tower too, kept": {"lora": {"r": 4, "vision": True}, "gradient_checkpointing": False},
    "full, checkpointing": {"lora": {"enabled": False}},
    "full, kept": {"lora": {"enabled": False}, "gradient_checkpointing": False},
}
SEQUENCES, TEXT_TOKENS, COMPLETION, SIDE = 2, 120, 200, 224


class Storages(TorchDispatchMode):
    """Bytes of the storages that are made inside and still live, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.live: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in given | self.live:
                self._count(leaf.untyped_storage())
        return made

    def _count(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        self.live.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self.live.discard(key)
        self.now -= size


def run_config(**changes: Any) -> RunConfig:
    base = {"run_id": "activations", "batch_size": SEQUENCES, "max_completion_length": COMPLETION, "dtype": "bfloat16", "lora": {"r": 4}}
    return configs.check(base | changes)


def count(family: str, config: RunConfig) -> dict[str, tuple[int, int]]:
    """Phase -> (bytes counted, bytes estimated) for one small model of a family."""
    model, known = build(family, config)
    inputs, tokens, patches = batch(known, family)

    def forward() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(**inputs, fused_lm_head=True).log_probs

    with replaced.object(trl_utils, "_CHUNKED_LOGPROB_CHUNK_SIZE", TILE), replaced.object(footprint, "VOCABULARY_TILE", TILE):
        with torch.no_grad(), Storages() as scored:
            forward()
        forward().sum().backward()
        with Storages() as learned:  # the second micro-step of a window: the gradients are there already
            forward().sum().backward()
        return {
            "score": (scored.most, footprint.scoring(config, known, tokens, patches)),
            "backward": (learned.most, footprint.backward(config, known, tokens, patches)),
        }


def build(family: str, config: RunConfig) -> tuple[Any, shapes.Shapes]:
    rope = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6}
    rope |= {"mrope_interleaved": True} if family == "qwen3_vl" else {}
    text, vision = TEXT | {"rope_parameters": rope}, VISION[family] | {"depth": 4, "num_heads": 4}
    described = AutoConfig.for_model(
        family, text_config=text, vision_config=vision, image_token_id=5, video_token_id=6, vision_start_token_id=3, vision_end_token_id=4,
        tie_word_embeddings=True,
    )  # fmt: skip
    model: Any = AutoModelForImageTextToText.from_config(described, dtype=torch.bfloat16, attn_implementation="sdpa")
    policy.freeze(model, config.lora)
    known = shapes.read(described.to_dict(), family)
    recomputed = footprint.recomputed_layers(config, known)
    policy.recompute(model, recomputed)
    trl_utils.add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    if (adapter := policy.adapter(config.lora)) is not None:
        model = peft.get_peft_model(model, adapter)
    if recomputed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train(), known


def batch(known: shapes.Shapes, family: str) -> tuple[dict[str, Any], int, int]:
    """Left-padded rows of one picture and text; returns the inputs, their tokens and their patches."""
    rows = SIDE // (known.patch * known.merge) * known.merge
    picture = known.picture_tokens((rows * known.patch) ** 2)
    ids = torch.full((SEQUENCES, TEXT_TOKENS + picture + COMPLETION), 7)
    ids[:, 9], ids[:, 10 : 10 + picture], ids[:, 10 + picture] = 3, 5, 4
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    labels = ids.clone()
    labels[:, :-COMPLETION] = -100
    patches = SEQUENCES * rows * rows
    inputs = {
        "input_ids": ids, "attention_mask": mask, "labels": labels, "mm_token_type_ids": (ids == 5).int(),
        "pixel_values": torch.randn(patches, known.patch_values), "image_grid_thw": torch.tensor([[1, rows, rows]] * SEQUENCES),
    }  # fmt: skip
    return inputs, ids.numel(), patches


def main() -> None:
    transformers_logging.set_verbosity_error()
    print(f"{'':54} {'score':>22} {'backward':>22}\n{'MiB':54} {'counted / estimated':>22} {'counted / estimated':>22}")
    for family in VISION:
        for name, changes in CASES.items():
            found = count(family, run_config(**changes))
            cells = [f"{counted / 2**20:7.1f} / {guess / 2**20:5.1f} {guess / counted - 1:+4.0%}" for counted, guess in found.values()]
            print(f"{family + ': ' + name:54} " + " ".join(f"{cell:>22}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
