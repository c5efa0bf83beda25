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

from qwen_vl_grpo import hardware, policy, processors, ranks, row_clips
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import ConfigError, DataError
from qwen_vl_grpo.interfaces import Sample
from qwen_vl_grpo.sections import WarmupSection


def check(rows: datasets.Dataset, section: WarmupSection) -> None:
    """Raise DataError if a row has no target, ConfigError for a batch that does not part into the processes of the run."""
    if section.batch_size % ranks.count():
        raise ConfigError(f"warmup.batch_size {section.batch_size}: does not part into {ranks.count()} processes; take a multiple of that")
    if "target" not in rows.column_names or not all(isinstance(target, str) and target for target in rows["target"]):
        raise DataError(f"warmup.dataset_name {section.dataset_name}: every row needs a `target` text, the completion to imitate")


def with_clips(processor: Any, rows: Sequence[Any]) -> Any:
    """A batch to imitate in which prompts may show clips: TRL's own would leave them out and say nothing (trl#4144)."""
    encoded = policy.encode(
        processor, [Sample("", row["prompt"], row["images"], "", videos=row_clips.Clips(row["videos"] or ())) for row in rows]
    )
    words = processor.tokenizer
    answers = words(
        [row["completion"][0]["content"] + words.eos_token for row in rows], padding=True, padding_side="right", return_tensors="pt"
    )
    ids, mask = answers["input_ids"], answers["attention_mask"]
    unlearned = torch.full_like(encoded["input_ids"], -100)
    more = {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": torch.zeros_like(ids)}
    return dict(encoded) | {key: torch.cat([encoded[key], added], 1) for key, added in more.items()} | {
        "labels": torch.cat([unlearned, ids.masked_fill(mask == 0, -100)], 1)
    }  # fmt: skip


def run(model: Any, processor: Any, rows: datasets.Dataset, config: RunConfig, folder: Path, callbacks: list[Any]) -> None:
    """Imitate the `target` column of `rows` with all weights, then save model and processor into `folder`.

    Raises DataError if a row has no target.
    """
    section = config.warmup
    assert section is not None
    check(rows, section)
    examples = rows.map(lambda row: {"completion": [{"role": "assistant", "content": row["target"]}]})
    clips = "videos" in rows.column_names and any(rows["videos"])
    examples = examples.select_columns(["prompt", "completion", *["images"] * processors.sees(processor), *["videos"] * clips])
    on_gpu = torch.cuda.is_available()
    settings = SFTConfig(
        output_dir=str(folder),
        max_steps=section.steps,
        per_device_train_batch_size=section.batch_size // ranks.count(),
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
        model, args=settings, train_dataset=examples, processing_class=processor, callbacks=callbacks,
        data_collator=partial(with_clips, processor) if clips else None,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    if hardware.is_main_process():
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
