"""The control: what the same time buys without reinforcement, from the same warmed-up policy.

    make demo-control    # needs `make demo` of the same seed

Two rivals get GRPO's own training time: more supervised steps on the same noisy targets, and best-of-8 supervised steps
(sample eight, imitate the one with the highest reward; the same rewards, the same number of completions a step). GRPO's
settings were chosen on the validation part; the rivals' learning rate was not tuned at all. Whatever comes out is printed.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from demo.__main__ import OUTPUTS, console, demo_config, in_one_line, prepare, run_id  # sets the CPU first

LEARNING_RATE = 5e-4
PROMPTS, GROUP = 32, 8

Example = tuple[Any, str]
"""A sample and the completion to imitate."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="make demo-control", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="time for each rival (default: GRPO's own)")
    parser.add_argument("--split", default="test", help="the held-out part to score on")
    given = parser.parse_args()
    from qwen_vl_grpo import hardware, registry

    hardware.quiet_libraries()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    card, run_dir = registry.resolve(run_id(given.seed))
    run = demo_config(given.seed, [])
    prepare(run, given.seed)
    seconds = given.seconds or card.metrics["train_seconds"]

    from qwen_vl_grpo import answering, dataset, evaluation, policy, rewards, tasks

    task = tasks.build(run.task)
    processor = policy.load_processor(run, str(run_dir / "warmup"))
    functions = [(rewards.find(entry.function), entry.weight) for entry in run.rewards]

    def samples(split: str) -> list[Any]:
        return [dataset.to_sample(row) for row in dataset.load(run, task, processor, run.dataset_name, split)]  # type: ignore[arg-type]

    held_out, noisy, clean = samples(given.split), samples("warmup"), samples("train")
    choose = random.Random(run.seed)

    def more_targets(model: Any) -> Iterator[list[Example]]:
        while True:
            yield [(sample, sample.columns["target"]) for sample in choose.sample(noisy, PROMPTS)]

    def best_of_eight(model: Any) -> Iterator[list[Example]]:
        while True:
            prompts = choose.sample(clean, PROMPTS)
            generate = answering.with_transformers(
                model, processor, run.max_completion_length, PROMPTS * GROUP, choose.randrange(2**31), show=False
            )
            yield [(sample, best(texts, sample, functions)) for sample, texts in zip(prompts, generate(prompts, GROUP, 1.0), strict=True)]

    table = {"GRPO": card.metrics["after"], "before": card.metrics["before"]} if given.split == "test" else {}
    rivals: dict[str, Callable[[Any], Iterator[list[Example]]]] = {
        "more supervised steps": more_targets,
        "best-of-8 supervised steps": best_of_eight,
    }
    for name, batches in rivals.items():
        model = policy.load_model(run, str(run_dir / "warmup"))
        steps = imitate(model, processor, batches(model), seconds)
        generate = answering.with_transformers(model, processor, run.max_completion_length, 360, run.seed)
        table[f"{name} ({steps})"] = evaluation.evaluate(held_out, task, [], generate, run.evaluation.samples, run.temperature)
    (OUTPUTS / f"control-s{given.seed}.json").write_text(json.dumps(table, indent=2), encoding="utf-8")
    show(table, seconds, given.seed)


def imitate(model: Any, processor: Any, batches: Iterator[list[Example]], seconds: float) -> int:
    """Supervised steps until the time is used, the learning rate falling to 0 with it; returns how many."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    started, steps = time.perf_counter(), 0
    model.train()
    while (used := (time.perf_counter() - started) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 - used)
        loss = completion_loss(model, processor, next(batches))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps += 1
    return steps


def completion_loss(model: Any, processor: Any, examples: list[Example]) -> Any:
    """Mean cross-entropy over the tokens of the completions, the end-of-turn token included."""
    import torch

    from qwen_vl_grpo import policy

    encoded = policy.encode(processor, [sample for sample, _ in examples])
    completions = processor.tokenizer(
        [text + processor.tokenizer.eos_token for _, text in examples], padding=True, padding_side="right", return_tensors="pt"
    )
    labels = completions["input_ids"].masked_fill(completions["attention_mask"] == 0, -100)
    prompt = encoded["input_ids"]
    encoded["input_ids"] = torch.cat([prompt, completions["input_ids"]], 1)
    encoded["attention_mask"] = torch.cat([encoded["attention_mask"], completions["attention_mask"]], 1)
    encoded["mm_token_type_ids"] = torch.cat([encoded["mm_token_type_ids"], torch.zeros_like(completions["input_ids"])], 1)
    return model(**encoded, labels=torch.cat([torch.full_like(prompt, -100), labels], 1)).loss


def best(texts: list[str], sample: Any, functions: list[tuple[Any, float]]) -> str:
    """The completion with the highest weighted reward; the first of equals."""
    scores = [0.0] * len(texts)
    for function, weight in functions:
        values = function(completions=texts, answer=[sample.answer] * len(texts))
        scores = [score + weight * (value or 0.0) for score, value in zip(scores, values, strict=True)]
    return texts[scores.index(max(scores))]


def show(table: dict[str, Any], seconds: float, seed: int) -> None:
    from rich.table import Table

    shown = Table(title=f"seed {seed}: {seconds:.0f} s each, from the same warmed-up policy", title_style="bold")
    for column in ("", "sampled: right and well-formed", "greedy: right and well-formed", "sampled: well-formed"):
        shown.add_column(column, justify="right" if column else "left")
    for name, scores in table.items():
        shown.add_row(
            name, f"{scores['sampled']['correct']:.3f}", f"{scores['greedy']['correct']:.3f}", f"{scores['sampled']['format']:.3f}"
        )
    console.print(shown)


if __name__ == "__main__":
    in_one_line(main)
