"""Answers from transformers, for machines without vLLM: one base in memory, every adapter on it, answered in batches."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from qwen_vl_grpo import policy, processors
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.engine_prompts import forbid_vision_tokens
from qwen_vl_grpo.errors import RegistryError
from qwen_vl_grpo.interfaces import RunCard, Sample
from qwen_vl_grpo.loading import Completion, Question, RunPolicy, finished, load


class TransformersBackend:
    """The base of some runs with their adapters, under transformers and PEFT."""

    name = "transformers"

    def __init__(self, runs: Sequence[RunPolicy], batch_size: int):
        first = runs[0]
        self._batch_size = batch_size
        self._window = batch_size * len(runs)
        self._names = {run: f"run{place}" for place, run in enumerate(runs) if run.has_adapter}
        """PEFT's own names of the adapters: a run_id may hold a dot, and a module's name may not."""
        self.model: Any = policy.load_model(first.config, first.base)
        for run, name in self._names.items():
            if isinstance(self.model, PeftModel):
                self.model.load_adapter(str(run.folder), name)
            else:
                self.model = PeftModel.from_pretrained(self.model, str(run.folder), name)
        self.context = int(self.model.config.get_text_config().max_position_embeddings)

    def close(self) -> None:
        del self.model
        gc.collect()
        torch.cuda.empty_cache()

    def check(self, run: RunPolicy, canary: Question) -> float:
        """How far the run's adapter moves the log-probabilities of a canary's next token; raises RegistryError if not at all."""
        self.take(run)
        encoded = policy.encode(run.processor, [canary.sample]).to(self.model.device)
        with evaluating(self.model):
            own = torch.log_softmax(self.model(**encoded).logits[0, -1].float(), -1)
            with self.model.disable_adapter():
                base = torch.log_softmax(self.model(**encoded).logits[0, -1].float(), -1)
        moved = float((own - base).abs().max())
        if not moved > 0:
            raise RegistryError(f"run_id {run.run_id}: its adapter changes no probability of its base; nothing was asked")
        return moved

    def answer(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Completion]]:
        """Answer as the questions come, those of one run and one kind of sampling in a batch."""
        left = iter(questions)
        while window := list(islice(left, self._window)):
            alike: dict[Any, list[Question]] = defaultdict(list)
            for question in window:
                alike[question.run, question.temperature, question.max_new_tokens, question.top_p].append(question)
            for (run, temperature, longest, top_p), batch in alike.items():
                for start in range(0, len(batch), self._batch_size):
                    self.take(run)  # who was given the answers before may have asked another run since
                    part = batch[start : start + self._batch_size]
                    samples = [question.sample for question in part]
                    with torch.random.fork_rng():
                        torch.manual_seed(part[0].drawn_with)
                        rows, lengths = sampled(self.model, run.processor, samples, 1, temperature, longest, run.ends, top_p)
                    for question, ids, length in zip(part, rows, lengths, strict=True):
                        yield question, finished(ids, run.ends, length)

    def take(self, run: RunPolicy) -> None:
        """Let the model be this run's: its adapter alone is on, and none for a base."""
        layers: Any = getattr(self.model, "base_model", None)
        if run in self._names:
            layers.enable_adapter_layers()
            self.model.set_adapter(self._names[run])
        elif self._names:  # a base beside its adapters
            layers.disable_adapter_layers()


def sampled(
    model: Any,
    processor: Any,
    samples: Sequence[Sample],
    count: int,
    temperature: float,
    max_new_tokens: int,
    ends: list[int],
    top_p: float = 1.0,
) -> tuple[list[list[int]], list[int]]:
    """New ids of `count` completions for each sample (padded to one length), and the length of each prompt."""
    sampling: dict[str, Any] = {}
    if temperature:
        sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0, "num_return_sequences": count}
    encoded, ids = generate(model, processor, samples, max_new_tokens, ends, **sampling)
    return ids[:, encoded["input_ids"].shape[1] :].tolist(), encoded["attention_mask"].sum(1).tolist()


def generate(
    model: Any, processor: Any, samples: Sequence[Sample], max_new_tokens: int, ends: list[int], **sampling: Any
) -> tuple[Any, Any]:
    """The samples encoded, and what transformers' generate makes of them: greedily, unless `sampling` says otherwise."""
    how = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None} | sampling
    with evaluating(model):
        encoded = policy.encode(processor, samples).to(model.device)
        return encoded, model.generate(
            **encoded, **how, **forbid_vision_tokens(processor, use_vllm=False), max_new_tokens=max_new_tokens,
            eos_token_id=ends, pad_token_id=processors.tokenizer(processor).pad_token_id,
        )  # fmt: skip


def load_run(card: RunCard, run_dir: Path) -> tuple[Any, Any, RunConfig]:
    """A run's policy in memory, its processor and config; raises RegistryError if its files are not those of the card or say nothing."""
    run = load(card, run_dir)
    return TransformersBackend([run], 1).model, run.processor, run.config


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
