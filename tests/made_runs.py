"""Finished runs without training: a card, and weights that differ from the base as learned ones would."""

import json
from pathlib import Path

import torch
from peft import get_peft_model

from qwen_vl_grpo import config as configs
from qwen_vl_grpo import policy, registry
from qwen_vl_grpo.interfaces import RunCard


def make_run(folder: Path, run_id: str, base: str, seed: int = 0, spread: float = 0.2, created: str = "", **changes) -> RunCard:
    """Write a finished run below `folder` and into the index; without `lora` it is a full fine-tune. A spread of 0 learns nothing."""
    given = {"run_id": run_id, "output_dir": str(folder), "model_name": base, "use_vllm": False, "gradient_checkpointing": False}
    config = configs.check(given | {"lora": {"enabled": False}, "max_completion_length": 8, "dtype": "float32"} | changes)
    checkpoint = folder / run_id / "checkpoint-1"
    model, processor = policy.load_model(config), policy.load_processor(config)
    lora = policy.adapter(config.lora)
    torch.manual_seed(seed)
    if lora is not None:
        model = get_peft_model(model, lora)
    for name, weight in model.named_parameters():
        if "lora_B" in name or (lora is None and "norm" in name):
            weight.data.add_(torch.randn_like(weight) * spread)
    model.save_pretrained(checkpoint)
    processor.save_pretrained(checkpoint)
    card = RunCard(
        run_id=run_id, state="finished", task=config.task.name, base_model=base, config=config.model_dump(mode="json"),
        system_prompt="You are a helpful assistant.", checkpoint="checkpoint-1", created=created or f"2026-01-01T00:00:{seed:02d}",
        checkpoint_files=registry.hash_files(folder / run_id, "checkpoint-1"),
    )  # fmt: skip
    registry.write(card, folder / run_id)
    return card


def change_adapter(folder: Path, run_id: str, change) -> None:
    """Replace the tensors of a run's adapter by change(tensors), and let its card know."""
    from safetensors.torch import load_file, save_file

    path = folder / run_id / "checkpoint-1/adapter_model.safetensors"
    save_file(change(load_file(path)), path)
    card = registry.read(folder / run_id)
    registry.write(card.model_copy(update={"checkpoint_files": registry.hash_files(folder / run_id, "checkpoint-1")}), folder / run_id)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
