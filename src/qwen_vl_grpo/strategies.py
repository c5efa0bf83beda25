"""How the processes of a run share its weights, and which runs that is right for.

| | single | ddp | zero2 | zero3 | fsdp2 |
|---|---|---|---|---|---|
| holds of the weights, gradients, optimizer | all | all, all, all | all, part, part | part, part, part | part, part, part |
| LoRA, QLoRA | yes | yes | yes | no | no |
| full fine-tuning | yes | yes | yes | yes, with vLLM | yes, with vLLM |

docs/scaling.md says what was run of this, and where.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qwen_vl_grpo.config import RunConfig, launched
from qwen_vl_grpo.errors import ConfigError

WHOLE = ("single", "ddp")
"""Each process holds all weights, gradients and states of the optimizer."""
SHARDED = ("zero3", "fsdp2")
"""No process holds all weights."""


def named(environment: Mapping[str, str] = os.environ) -> str:
    """The strategy that accelerate's launcher has put into the environment."""
    if environment.get("ACCELERATE_USE_DEEPSPEED") == "true":
        return f"zero{_stage(environment)}"
    if environment.get("ACCELERATE_USE_FSDP") == "true":
        return f"fsdp{environment.get('FSDP_VERSION', '1')}"
    return "ddp" if launched() > 1 else "single"


def refuse(config: RunConfig, strategy: str, accelerated: bool, environment: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError for a run that this strategy would train wrongly or not to its end, with one that it is right for.

    `accelerated` says that this machine has a card.
    """
    if strategy not in (*WHOLE, "zero2", *SHARDED):
        raise ConfigError(f"launch: {strategy} is none of ddp, zero2, zero3 and fsdp2, which alone are known to train these runs")
    if strategy not in WHOLE and not accelerated:
        raise ConfigError(f"launch: accelerate parts no weights on a CPU and says nothing, so {strategy} is ddp here; launch with ddp")
    if config.warmup is not None and strategy not in WHOLE:
        raise ConfigError(f"warmup: cannot run under {strategy}; warm up in a run of its own under ddp, and start from it with init_from")
    if config.init_from is not None and strategy not in WHOLE and not config.lora.enabled:
        raise ConfigError(f"init_from: whole weights of another run are not read under {strategy}; launch with ddp, or train adapters")
    if strategy not in SHARDED:
        return
    if config.lora.enabled:
        raise ConfigError(
            f"lora: adapters cannot be merged for vLLM under {strategy}, where no process holds the base (trl#4589, trl#5975); launch with "
            "ddp or zero2, which hold it whole, or set lora.enabled: false"
        )
    if not config.use_vllm:
        raise ConfigError(f"use_vllm: without it a policy sharded by {strategy} is gathered for each token; set it to true, or take ddp")
    whole = {"zero3": ("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "true"), "fsdp2": ("FSDP_STATE_DICT_TYPE", "FULL_STATE_DICT")}
    name, wanted = whole[strategy]
    if environment.get(name) != wanted:
        raise ConfigError(f"launch: {strategy} would keep parts of a model, and a run is kept as one; set {name}={wanted}")


def refuse_engine(config: RunConfig) -> None:
    """Raise ConfigError for an engine on more cards than divide the processes of this launch."""
    cards = config.trl.get("vllm_tensor_parallel_size", 1)
    if config.use_vllm and config.vllm_mode == "colocate" and launched() % cards:
        raise ConfigError(
            f"trl.vllm_tensor_parallel_size {cards}: an engine takes {cards} processes and the run has {launched()}; start it with "
            f"grpo launch on a multiple of {cards} cards, or leave the key out"
        )


def _stage(environment: Mapping[str, str]) -> Any:
    """ZeRO's stage, from accelerate's own setting or from the DeepSpeed file that it was given."""
    file = environment.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")
    if file in ("", "none", "None"):
        return environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    try:
        return json.loads(Path(file).read_text(encoding="utf-8"))["zero_optimization"]["stage"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{file}: is no DeepSpeed config with zero_optimization.stage ({error}); name ddp, zero2 or zero3") from None
