"""A policy's weights with its adapter in them, for engines and checkpoints that know no adapters."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer


def merged_weights(model: PeftModel) -> Generator[tuple[str, torch.Tensor], None, None]:
    """Every weight of the policy under the base model's name, the LoRA product added in float32 to a copy.

    The base is never written to, so it is bit-equal however often the engine is given new weights, and there is nothing to
    undo if the engine fails halfway.
    """
    layers: dict[str, Any] = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if model.prefix in name:
                continue
            plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
            module = layers.get(name.removesuffix(".base_layer.weight"))
            base = whole(weight)
            if module is None or module.disable_adapters:
                yield plain, base
                continue
            total = base.float()
            for active in module.active_adapters:
                if active in module.lora_A:
                    total = total + module.get_delta_weight(active).float()
            yield plain, total.to(base.dtype)


def whole(weight: Any) -> torch.Tensor:
    """A weight as its layer multiplies with it: one of a 4-bit base dequantised."""
    if (state := getattr(weight, "quant_state", None)) is None:
        return weight.data
    from bitsandbytes.functional import dequantize_4bit  # pyright: ignore[reportMissingImports]

    return dequantize_4bit(weight.data, state)
