"""Positions of the words after a clip, as Qwen2.5-VL was trained with them.

transformers 5.17 counts on from max(height, width) of a clip and leaves out how long it lasts, and cuts the seconds of a grid step
to whole ones, so that every pair of frames of a clip that is sampled twice a second or faster stands at one moment (transformers#45381).
vLLM counts on from the last position, as transformers 5.2 did, and so do the published weights.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel

PUBLISHED = {kind: kind.get_rope_index for kind in (Qwen2VLModel, Qwen2_5_VLModel)}


def correct() -> None:
    """Give the models of the two families the positions below, whoever makes them; Qwen3-VL's are right."""
    for kind in PUBLISHED:
        kind.get_rope_index = get_rope_index  # type: ignore[method-assign]


def get_rope_index(
    self: Any,
    input_ids: torch.Tensor,
    mm_token_type_ids: torch.Tensor,
    image_grid_thw: torch.Tensor | None = None,
    video_grid_thw: torch.Tensor | None = None,
    second_per_grid_ts: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of shape (3, rows, tokens) by time, height and width, and what each row's next token adds to its place, (rows, 1).

    The arguments are those of the published method. A picture is a clip of one moment.
    """
    merge = self.config.vision_config.spatial_merge_size
    a_second = getattr(self.config.vision_config, "tokens_per_second", None)
    grids = {1: iter(() if image_grid_thw is None else image_grid_thw), 2: iter(() if video_grid_thw is None else video_grid_thw)}
    seconds = None if second_per_grid_ts is None else iter(second_per_grid_ts)
    positions = torch.zeros(3, *input_ids.shape, dtype=input_ids.dtype, device=input_ids.device)
    deltas = []
    for row, types in enumerate(mm_token_type_ids):
        kept = torch.ones_like(types, dtype=torch.bool) if attention_mask is None else attention_mask[row].bool()
        blocks: list[torch.Tensor] = []
        start = 0
        for kind, run in groupby(types[kept].tolist()):
            if kind == 0:
                blocks.append(torch.arange(sum(1 for _ in run)).expand(3, -1) + start)
            else:
                left = sum(1 for _ in run)
                while left:  # two clips that stand side by side are one run
                    frames, height, width = (int(size) for size in next(grids[kind]))
                    step = 1.0 if kind == 1 or a_second is None or seconds is None else a_second * float(next(seconds))
                    sizes = (frames, height // merge, width // merge)
                    time, *place = torch.meshgrid(*(torch.arange(size) for size in sizes), indexing="ij")
                    blocks.append(torch.stack([(time * step).long(), *place]).flatten(1) + start)
                    start, left = int(blocks[-1].max()) + 1, left - blocks[-1].shape[1]
            start = int(blocks[-1].max()) + 1
        placed = torch.cat(blocks, 1)
        positions[:, row, kept] = placed.to(positions)
        deltas.append(start - placed.shape[1])
    return positions, torch.tensor(deltas, device=input_ids.device).unsqueeze(1)
