"""A run as one full checkpoint that any program loads: base and adapter merged, read back, and compared before it is there."""

from __future__ import annotations

import gc
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen_vl_grpo import attempts, registry
from qwen_vl_grpo.errors import RegistryError
from qwen_vl_grpo.interfaces import RunCard, Sample

if TYPE_CHECKING:
    import torch

    from qwen_vl_grpo.loading import RunPolicy

BOUNDS = {"float32": 1e-3, "bfloat16": 0.1}
"""The share of probability that the written checkpoint may give to other tokens than base and adapter do, at any place of the prompt."""
CLEARLY = 2
"""The base must be so many times further from the run than the written checkpoint is; by then that is nearer to the run than to it."""


def refuse(card: RunCard, run_dir: Path, target: Path) -> None:
    """Raise RegistryError if a run cannot be exported to `target`; reads no weights."""
    registry.checkpoint_folder(card, run_dir)
    if card.config.get("lora", {}).get("quantization"):
        raise RegistryError(
            f"run_id {card.run_id}: its adapter was trained on a base in 4 bits, and merged into any other it is another policy; load the "
            "adapter on that base, as grpo infer does"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RegistryError(f"--merged {target}: is there already, and is not written over; name a new folder")


def export(card: RunCard, run_dir: Path, target: Path, dtype: str | None = None) -> dict[str, Any]:
    """Write a run's policy to `target`, whole and compared or not at all; returns what grpo_export.json there holds.

    `dtype` is that of the weights, else the one that the run was trained in. Raises RegistryError if the run cannot be exported, the
    disk is full, or what was written is not the policy.
    """
    refuse(card, run_dir, target)
    from safetensors import SafetensorError

    from qwen_vl_grpo import policy, transformers_backend

    kept_in = dtype or card.preprocessing.get("dtype", "auto")
    model, processor, config = transformers_backend.load_run(card.model_copy(update={"config": card.config | {"dtype": kept_in}}), run_dir)
    tuned, base = probabilities(model, processor), None
    if hasattr(model, "disable_adapter"):
        with model.disable_adapter():
            base = probabilities(model, processor)
        model = plain(model)
    aside = target.with_name(f".{target.name}.exporting")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        model.save_pretrained(aside)
        processor.save_pretrained(aside)
        del model
        written = probabilities(policy.load_model(config, str(aside)), policy.load_processor(config, str(aside)))
        if base is None:
            base = probabilities(policy.load_model(config, str(run_dir / "warmup") if config.warmup else None), processor)
        record = {
            "run_id": card.run_id,
            "base_model": card.base_model,
            "checkpoint_files": card.checkpoint_files,
            "system_prompt": card.system_prompt,
            "dtype": str(policy.weight_dtype(config)).removeprefix("torch."),
            "moved_by_writing": apart(written, tuned),
            "moved_by_training": apart(base, tuned),
        }
        compare(record)
        (aside / "grpo_export.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        os.replace(aside, target)
    except (OSError, SafetensorError) as error:
        raise RegistryError(
            f"--merged {target}: cannot be written ({' '.join(str(error).split())}); make room, or name another disk"
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return record


@contextmanager
def merged(run: RunPolicy) -> Iterator[RunPolicy]:
    """The same run with its adapter merged into a full checkpoint that lasts as long as the context; raises RegistryError."""
    import torch

    from qwen_vl_grpo import policy
    from qwen_vl_grpo.loading import RunPolicy

    place = registry.home() / "merged"
    place.mkdir(parents=True, exist_ok=True)
    sweep(place)
    with tempfile.TemporaryDirectory(prefix=f"{run.run_id}-", dir=place) as folder, attempts.hold(Path(folder)):
        try:
            export(run.card, run.run_dir, Path(folder) / "whole", str(policy.weight_dtype(run.config)).removeprefix("torch."))
        except RegistryError as error:
            raise RegistryError(f"run_id {run.run_id}: no merged copy could be made ({error}); use --backend transformers") from None
        gc.collect()
        torch.cuda.empty_cache()  # the engine that comes next counts what is free
        yield RunPolicy(run.card.model_copy(update={"checkpoint": "whole"}), Path(folder), run.config)


def sweep(place: Path) -> None:
    """Delete the merged copies that no process is using: one that is killed with -9 leaves its copy behind, as large as the base."""
    for left in place.iterdir():
        try:
            with attempts.hold(left):
                shutil.rmtree(left)
        except (OSError, RegistryError):
            continue  # in use, or another process was quicker


def compare(record: dict[str, Any]) -> None:
    """Raise RegistryError if what was written is too far from the run, or not clearly nearer to it than the base model is."""
    error, effect, bound = record["moved_by_writing"], record["moved_by_training"], BOUNDS[record["dtype"]]
    if effect == 0:
        raise RegistryError(f"run_id {record['run_id']}: its policy is the base model to the last digit, so there is nothing to export")
    if not error <= bound or effect < CLEARLY * error:
        finer = "; export it with --dtype float32" if record["dtype"] != "float32" else ""
        raise RegistryError(
            f"run_id {record['run_id']}: the checkpoint moves {error:.2g} of the probability away from the run's (at most {bound:g}), and "
            f"training moved {effect:.2g}, so it is not the run's policy and was deleted{finer}"
        )


def plain(model: Any) -> Any:
    """The model without its adapter's layers, with the merged weights in place (`merging.merged_weights`: added in float32)."""
    from qwen_vl_grpo.merging import merged_weights

    weights = dict(merged_weights(model))
    bare = model.unload()
    unknown = bare.load_state_dict(weights, strict=False).unexpected_keys
    if unknown:
        raise RegistryError(f"the adapter's model has no weight {unknown[0]}; peft has changed, so nothing was exported")
    return bare


def probabilities(model: Any, processor: Any) -> torch.Tensor:
    """What a policy expects at each place of a fixed prompt, with a picture if it takes one: [tokens, vocabulary], float32 on the CPU."""
    from PIL import Image

    from qwen_vl_grpo import policy, processors
    from qwen_vl_grpo.transformers_backend import evaluating

    pictures = [Image.linear_gradient("L").resize((112, 112)).convert("RGB")] * processors.sees(processor)
    question = Sample("0", [{"role": "user", "content": "What does this picture show? Give your reasons, then answer."}], pictures, "")
    with evaluating(model):
        logits = model(**policy.encode(processor, [question]).to(model.device)).logits[0]
    return logits.float().softmax(-1).cpu()


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest total variation distance of two policies over the places of the prompt: 0 where they are equal, 1 at most."""
    return float((one - other).abs().sum(-1).max() / 2)
