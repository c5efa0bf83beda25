"""Supervised steps before GRPO: a policy that never answers in the format earns no reward to learn from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import PrinterCallback
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from qwen_vl_grpo import processors
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.sections import WarmupSection


def check(rows: datasets.Dataset, section: WarmupSection) -> None:
    """Raise DataError if a row has no target."""
    if "target" not in rows.column_names or not all(isinstance(target, str) and target for target in rows["target"]):
        raise DataError(f"warmup.dataset_name {section.dataset_name}: every row needs a `target` text, the completion to imitate")


def run(model: Any, processor: Any, rows: datasets.Dataset, config: RunConfig, folder: Path, callbacks: list[Any]) -> None:
    """Imitate the `target` column of `rows` with all weights, then save model and processor into `folder`.

    Raises DataError if a row has no target.
    """
    section = config.warmup
    assert section is not None
    check(rows, section)
    examples = rows.map(lambda row: {"completion": [{"role": "assistant", "content": row["target"]}]})
    examples = examples.select_columns(["prompt", "completion", *["images"] * processors.sees(processor)])
    on_gpu = torch.cuda.is_available()
    settings = SFTConfig(
        output_dir=str(folder),
        max_steps=section.steps,
        per_device_train_batch_size=section.batch_size,
        learning_rate=section.learning_rate,
        seed=config.seed,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        gradient_checkpointing=on_gpu and bool(config.gradient_checkpointing),
        max_length=None,
        save_strategy="no",
        report_to=[],
        logging_steps=max(1, section.steps // 20),
        disable_tqdm=True,
        dataloader_num_workers=0,
    )
    trainer = SFTTrainer(model, args=settings, train_dataset=examples, processing_class=processor, callbacks=callbacks)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
