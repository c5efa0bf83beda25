"""A policy whose weights lie on several processes (FSDP2, ZeRO-3): each forward and backward pass of a part takes all of them.

So every process passes through the same parts as often as the others, whatever it has to read: a vision tower that only one process
uses would wait for the others' weights for ever, and they for its gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from trl.trainer import utils as trl_utils

from qwen_vl_grpo import ranks

SEEN = ("pixel_values", "pixel_values_videos")
"""What the model takes with one pass of its tower each."""

HEAD_OF_TRL = trl_utils.maybe_gather_lm_head_ctx


def sharded(model: Any) -> bool:
    """Whether weights of a model lie on several processes: DTensors are FSDP2's, and ZeRO-3 gives each an id."""
    return ranks.count() > 1 and any(hasattr(weight, "device_mesh") or hasattr(weight, "ds_id") for weight in model.parameters())


def passes(model: Any, wanted: int) -> int:
    """How many forward passes this process makes, where it wants so many: as many as any other, if the model is sharded."""
    return max(ranks.gathered(wanted)) if sharded(model) else wanted


def whole_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Each weight of a model that FSDP2 split, once, whole, in what it computes in; all processes iterate, and part again what they pass.

    A group is gathered at once. TRL 1.16 gathers weight after weight, in float32, and wants none that a pass has left whole.
    """
    for path, group in model.named_modules():
        if isinstance(group, FSDPModule):
            group.unshard()
            for name, weight in own_weights(group, f"{path}." * bool(path)):
                if name not in model.all_tied_weights_keys:
                    yield name, weight.detach().clone()  # the group's own memory goes when it is parted
            group.reshard()


def own_weights(module: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights below a module that no FSDP2 module below it holds."""
    yield from ((path + name, weight) for name, weight in module.named_parameters(recurse=False))
    for name, child in module.named_children():
        if not isinstance(child, FSDPModule):
            yield from own_weights(child, f"{path}{name}.")


def call_the_head(causal: Any) -> None:
    """From now on a pass through TRL's fused head, which reads the head's weights without ever calling it, calls it for no words first.

    FSDP2 gathers what it holds when a module of it is called. It holds last norm and head together, with tied weights the embeddings too,
    and before torch 2.13 takes a pass to go on until each was called: it would neither part their weights again nor gather them anew.
    """
    head, fused = causal.get_output_embeddings(), []

    def before(_: Any, __: Any, named: dict[str, Any]) -> None:
        fused[:] = [None] * bool(named.get("fused_lm_head") and isinstance(head, FSDPModule))

    def after(_: Any, __: Any, output: Any) -> None:
        if fused:
            head(output.last_hidden_state[:, :0].detach())

    causal.register_forward_pre_hook(before, with_kwargs=True)
    causal.model.register_forward_hook(after)


def gathered_head(*tensors: Any) -> Any:
    """What stands in for TRL's function of this work, which gathers a head that ZeRO-3 has parted: it asks each tensor for a state, which
    our head's bias never has, nor any weight before DeepSpeed begins (trl 1.16)."""
    return HEAD_OF_TRL(*(each for each in tensors if hasattr(each, "ds_status")))


def look_alike(causal: Any, zero: bool = False) -> None:
    """From now on the tower of a sharded model passes as often here as in any process: where there is nothing to see, over black.

    What it makes of that is added to the words with a factor of 0, so that its weights have a gradient of zeros. With `zero` (DeepSpeed)
    those of a whole model have one, too: ZeRO-2 sums what gradients there are in the order in which they come, and its processes wait
    for ever or add up different weights where one has none for a tower that learns.
    """
    tower, owed = causal.get_encoder(modality="image"), []
    learns = zero and any(weight.requires_grad for weight in tower.parameters())

    def before(_: Any, __: Any, named: dict[str, Any]) -> None:
        own = [named.get(name) is not None for name in SEEN]
        if sharded(causal):
            anywhere = map(any, zip(*ranks.gathered(own), strict=True))
            owed[:] = [None for here, there in zip(own, anywhere, strict=True) if there and not here]
        else:
            owed[:] = [None] * (learns and torch.is_grad_enabled() and not any(own))

    def after(_: Any, __: Any, words: torch.Tensor) -> torch.Tensor:
        while owed:
            owed.pop()
            words = words + 0.0 * sum(part.sum().to(words.dtype) for part in tensors(nothing_seen(tower)))
        return words

    causal.model.register_forward_pre_hook(before, with_kwargs=True)
    causal.get_input_embeddings().register_forward_hook(after)


def nothing_seen(tower: Any) -> Any:
    """What a tower makes of the smallest picture there is, all zeros."""
    shape, side = tower.config, tower.spatial_merge_size
    values = shape.in_channels * shape.temporal_patch_size * shape.patch_size**2
    weight = next(tower.parameters())
    pixels = torch.zeros(side * side, values, device=weight.device, dtype=tower.dtype)
    return type(tower).forward(tower, pixels, grid_thw=torch.tensor([[1, side, side]], device=weight.device))


def tensors(output: Any) -> Iterator[torch.Tensor]:
    """Every tensor in what a module returns."""
    if isinstance(output, torch.Tensor):
        yield output
        return
    for part in output.values() if hasattr(output, "values") else output:
        if part is not None:
            yield from tensors(part)
