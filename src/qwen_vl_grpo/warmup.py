"""Supervised steps before GRPO: a policy that never answers in the format earns no reward to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import PrinterCallback
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from qwen_vl_grpo import dataset, policy, processors
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
    clips = "videos" in rows.column_names
    examples = rows
    if not clips:
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
        remove_unused_columns=not clips,
    )
    trainer = SFTTrainer(
        model,
        args=settings,
        data_collator=partial(with_clips, processor) if clips else None,
        train_dataset=examples,
        processing_class=processor,
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def with_clips(processor: Any, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows with their targets as a batch to imitate, clips and pictures included; TRL's own collator knows no clips.

    The prompt is encoded as GRPO encodes it, padded on the left, and the target follows it with the end of the turn.
    """
    batch = dict(policy.encode(processor, [dataset.to_sample(row) for row in rows]))
    words = processors.tokenizer(processor)
    targets = words([row["target"] + words.eos_token for row in rows], padding=True, padding_side="right", return_tensors="pt")
    ids, kept = targets["input_ids"], targets["attention_mask"]
    ignored = torch.full_like(batch["input_ids"], -100)
    batch["labels"] = torch.cat([ignored, ids.masked_fill(kept == 0, -100)], 1)
    for name, follows in (("input_ids", ids), ("attention_mask", kept), ("mm_token_type_ids", torch.zeros_like(ids))):
        batch[name] = torch.cat([batch[name], follows], 1)
    return batch
