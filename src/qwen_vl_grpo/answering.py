"""Completions from a policy: for the evaluator, and for a person who knows only a run_id."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from qwen_vl_grpo import answers, dataset, policy, registry
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import RegistryError
from qwen_vl_grpo.interfaces import Generate, RunCard, Sample
from qwen_vl_grpo.rollouts import vision_token_ids
from qwen_vl_grpo.tasks.visual_reasoning import open_picture


def with_transformers(model: Any, processor: Any, max_new_tokens: int, batch_size: int, seed: int, show: bool = True) -> Generate:
    """A Generate that samples from `model` as it is at each call.

    The ids that end an answer are those of TRL's rollouts: the trainer adds the tokenizer's to the model's only when it starts.
    """

    own = model.generation_config.eos_token_id
    ends = sorted({processor.tokenizer.eos_token_id, *(own if isinstance(own, list) else [own] if own is not None else [])})

    def generate(samples: Sequence[Sample], count: int, temperature: float) -> list[list[str]]:
        sampling: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if temperature:
            sampling = {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0, "num_return_sequences": count}
        results: list[list[str]] = []
        batches = range(0, len(samples), max(1, batch_size // count))
        with torch.random.fork_rng(), evaluating(model):
            torch.manual_seed(seed)
            for start in progress(batches, "answering", show and len(batches) > 2):
                encoded = policy.encode(processor, samples[start : start + batches.step]).to(model.device)
                ids = model.generate(
                    **encoded, **sampling, max_new_tokens=max_new_tokens, suppress_tokens=vision_token_ids(processor),
                    eos_token_id=ends, pad_token_id=processor.tokenizer.pad_token_id,
                )  # fmt: skip
                texts = processor.batch_decode(ids[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
                results += [texts[i : i + count] for i in range(0, len(texts), count)]
        return results

    return generate


def progress(items: Any, what: str, show: bool) -> Any:
    from rich.progress import track

    return track(items, what, disable=not show, transient=True)


class evaluating:
    """Put a model into evaluation mode without gradients, and back as it was."""

    def __init__(self, model: Any):
        self.model = model

    def __enter__(self) -> None:
        self.was_training = self.model.training
        self.model.eval()
        self.no_grad = torch.no_grad()
        self.no_grad.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.no_grad.__exit__(*error)
        self.model.train(self.was_training)


def load_run(card: RunCard, run_dir: Path) -> tuple[Any, Any, RunConfig]:
    """Load a run's policy, processor and config; raises RegistryError if its files are not those of the card."""
    folder = registry.checkpoint_folder(card, run_dir)
    registry.verify_files(card, run_dir)
    config = RunConfig.model_validate(card.config)
    processor = policy.load_processor(config, str(folder))
    if not (folder / "adapter_config.json").is_file():
        return policy.load_model(config, str(folder)), processor, config
    from peft import PeftModel

    base = policy.load_model(config, str(run_dir / "warmup") if config.warmup else None)
    model = PeftModel.from_pretrained(base, str(folder))
    if not any(weight.abs().max() > 0 for name, weight in model.named_parameters() if "lora_B" in name):
        raise RegistryError(f"run_id {card.run_id}: its adapter is all zeros, so its answers would be the base model's")
    return model, processor, config


def infer(
    run_id: str,
    prompt: str,
    image_paths: Sequence[str],
    system_prompt: str | None = None,
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
) -> dict[str, Any]:
    """Answer one question with a run's policy; returns the whole record.

    The run's own system prompt, chat template and pixel limits are used. Raises RegistryError (no such run, changed files)
    and DataError (a picture that cannot be opened).
    """
    card, run_dir = registry.resolve(run_id)
    images = [open_picture(path) for path in image_paths]
    started = time.perf_counter()
    model, processor, config = load_run(card, run_dir)
    loaded = time.perf_counter()
    system = card.system_prompt if system_prompt is None else system_prompt
    sample = Sample(
        "0", [{"role": "system", "content": system}, {"role": "user", "content": prompt}],
        [dataset.fit(image, processor, config) for image in images], "",
    )  # fmt: skip
    generate = with_transformers(model, processor, max_new_tokens or config.max_completion_length, 1, config.seed, show=False)
    completion = generate([sample], 1, temperature)[0][0]
    reasoning, answer = answers.parts(completion)
    return {
        "run_id": run_id,
        "prompt": prompt,
        "images": list(image_paths),
        "answer": answer,
        "reasoning": reasoning,
        "completion": completion,
        "well_formed": answers.strict_answer(completion) is not None,
        "checkpoint_sha256": card.checkpoint_files,
        "load_seconds": round(loaded - started, 2),
        "answer_seconds": round(time.perf_counter() - loaded, 2),
    }
