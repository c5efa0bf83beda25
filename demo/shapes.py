"""The demonstration of a policy that drives a DiT: its hidden states are all that the frozen DiT sees of its words, and pixels are judged.

    make demo-shapes       # or: python -m demo.shapes --seed 1

Policy and DiT are tiny and learned here, with the real classes of Qwen2.5-VL and Qwen-Image; trainer, encoder, renderer, evaluator,
registry and inference are the product's own. The same run is made again with the states of an empty completion in place of the policy's.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from demo.__main__ import OUTPUTS, arguments, console, in_one_line, seeded, speak, train  # sets the CPU first
from qwen_vl_grpo import config
from qwen_vl_grpo.interfaces import RunCard, Sample

MOMENTS = ("before", "after", "control")
VOCABULARY = 700
"""Entries of the tokenizer: every word of the prompts is one token."""


def warmed_config(seed: int, overrides: Sequence[str]) -> config.RunConfig:
    """The config of the warm-up, whose result is the policy that everything else starts from."""
    return seeded("shapes", run_id(seed), f"shapes-base-s{seed}", f"shapes-s{seed}", seed, overrides)


def shapes_config(seed: int, overrides: Sequence[str] = (), said: bool = True) -> config.RunConfig:
    """The config of GRPO, from the warmed-up policy; without `said`, of the control."""
    own = [f"model_name={policy_of(seed)}", f"renderer.model={painter_of(seed)}", f"run_id={run_id(seed, 'demo' if said else 'unsaid')}"]
    task = f"task.name=demo/shapes_task.py:{'build' if said else 'build_unsaid'}"
    return warmed_config(seed, [*own, task, *overrides, "warmup=null"])


def painter_of(seed: int) -> Path:
    """The pipeline that was taught to read that policy."""
    return Path(f"{policy_of(seed)}-painter")


def policy_of(seed: int) -> Path:
    """The warmed-up policy, which the DiT was taught to read."""
    return OUTPUTS / f"shapes-policy-s{seed}"


def run_id(seed: int, kind: str = "demo") -> str:
    return f"shapes-{kind}" + ("" if seed == 0 else f"-s{seed}")


def main() -> None:
    given = arguments("make demo-shapes", "Train a tiny policy through a frozen DiT that sees its states.", "shapes")
    speak()
    started = time.perf_counter()
    prepare(given.seed, given.set)
    taught = time.process_time()
    run = shapes_config(given.seed, given.set)
    card, unsaid = train(run), train(shapes_config(given.seed, given.set, said=False))
    moments = zip(MOMENTS, (Path(run.model_name), checkpoint(run, card), checkpoint(run, unsaid)), strict=True)
    ends = {"drawn": measured(run, dict(moments)), "seconds": round(time.perf_counter() - started)}
    ends |= {"cpu_seconds": round(time.process_time()), "taught_cpu_seconds": round(taught)}
    ends_file(given.seed).write_text(json.dumps(ends, indent=2), encoding="utf-8")
    show(card, ends)
    ask(run)


def prepare(seed: int, overrides: Sequence[str]) -> None:
    """Write the prompts, warm the policy up, and teach the DiT to draw from its states."""
    import torch
    from transformers.utils import logging as transformers_logging

    from demo import shapes_words, tiny_painter, tiny_qwen
    from demo.shapes_task import SYSTEM_PROMPT
    from qwen_vl_grpo import dataset, policy, tasks, warmup

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    transformers_logging.disable_progress_bar()
    run = warmed_config(seed, overrides)
    assert run.warmup is not None
    rows = shapes_words.write(Path(run.dataset_name), seed)
    console.print(f"data: {', '.join(f'{count} {name}' for name, count in rows.items())} prompts in {run.dataset_name}")
    asked = [row["question"] for row in shapes_words.splits()["train"]]
    phrases = [*asked, *shapes_words.drawings(), "system", "user", "assistant", SYSTEM_PROMPT]
    weights = tiny_qwen.build(run.model_name, seed=seed, phrases=phrases, vocabulary=VOCABULARY, tied=False)
    console.print(f"model: a random Qwen2.5-VL of {weights / 1e6:.2f} million weights in {run.model_name}")
    processor, model, task = policy.load_processor(run), policy.load_model(run), tasks.build(run.task)
    console.print(f"warm-up: {run.warmup.steps} supervised steps of {run.warmup.batch_size}")
    targets = dataset.load(run, task, processor, run.warmup.dataset_name, run.warmup.dataset_split)
    warmup.run(model, processor, targets, run, policy_of(seed), [])
    model = policy.load_model(run, str(policy_of(seed)))
    console.print(f"DiT: {tiny_painter.TRANSFORMER_STEPS} steps on the states of that policy, then frozen")
    tiny_painter.teach(painter_of(seed), model, processor, asked, seed)


def checkpoint(run: config.RunConfig, card: RunCard) -> Path:
    """The folder of the weights that a run of this demonstration ended with."""
    return run.run_dir.parent / card.run_id / str(card.checkpoint)


def measured(run: config.RunConfig, places: dict[str, Path]) -> dict[str, Any]:
    """Points of the held-out prompts' pictures for the policy in each of `places`: drawn from its own words, from no words, and from the
    right words as that policy reads them.
    """
    from demo import shapes_task
    from qwen_vl_grpo import answering, policy, tasks

    processor, task = policy.load_processor(run), tasks.build(run.task)
    samples = [task.read_row(row, run.data, task.system_prompt) for row in rows_of(run)]
    rewards = {"its words": shapes_task.StatesReward(run, kind="qwen_image"), "no words": shapes_task.UnsaidReward(run, kind="qwen_image")}
    found: dict[str, Any] = {name: {} for name in (*rewards, "the right words")}
    for moment, place in places.items():
        model = policy.load_model(run, str(place))
        generate = answering.with_transformers(model, processor, run.max_completion_length, run.evaluation.batch_size, run.seed)
        said = {"greedy": generate(samples, 1, 0.0), "sampled": generate(samples, run.evaluation.samples, run.temperature)}
        for name, reward in rewards.items():
            reward.hold(model, processor)
            found[name][moment] = {kind: points(samples, texts, reward) for kind, texts in said.items()}
        found["the right words"][moment] = points(samples, [[sample.answer] for sample in samples], rewards["its words"])
    return found


def points(samples: Sequence[Sample], completions: Sequence[Sequence[str]], reward: Any) -> dict[str, Any]:
    """Share of answers whose picture is right in colour and shape, with its 95 % interval of one answer a prompt, and the mean score of
    those that could be drawn and judged.
    """
    from qwen_vl_grpo import evaluation

    pairs = [(sample, text) for sample, texts in zip(samples, completions, strict=True) for text in texts]
    scores = [score for score in evaluation.judged(reward, pairs) if score is not None]
    right = sum(score == 1.0 for score in scores) / len(pairs)
    mean = round(sum(scores) / len(scores), 4) if scores else None
    return {"right": round(right, 4), "interval": evaluation.wilson(right, len(samples)), "score": mean, "n": len(pairs)}


def rows_of(run: config.RunConfig) -> list[dict[str, str]]:
    """The held-out rows."""
    path = Path(run.dataset_name) / f"{run.evaluation.dataset_split}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def show(card: RunCard, ends: dict[str, Any]) -> None:
    """Lead with what reinforcement did; below it what became of the same pictures where the completion was not seen."""
    table = Table(title=f"{card.run_id}: held-out prompts, before and after GRPO", title_style="bold")
    for column in ("colour and shape are what was asked for", "n", "before", "after", "after the control"):
        table.add_column(column, justify="left" if column.startswith("colour") else "right")
    for drawn_from, kind in (("its words", "sampled"), ("its words", "greedy"), ("no words", "greedy")):
        found = ends["drawn"][drawn_from]
        shares = (f"{found[moment][kind]['right']:.3f}" for moment in MOMENTS)
        table.add_row(f"drawn from the states of {drawn_from}, {kind}", str(found["after"][kind]["n"]), *shares)
    found = ends["drawn"]["the right words"]
    table.add_section()
    table.add_row("  of the right words", str(found["after"]["n"]), *(f"{found[moment]['right']:.3f}" for moment in MOMENTS))
    console.print(table)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
    console.print(
        f"{ends['seconds']} s in all ({ends['cpu_seconds']} s of them on a CPU), {card.metrics['train_seconds']:.0f} s of them GRPO; "
        f"{memory:.1f} GiB of memory at most."
    )


def ask(run: config.RunConfig) -> None:
    """Ask one held-out prompt the way a user would, in a new process that knows only the run_id."""
    command = ["src/inference/inference.py", "--run_id", run.run_id, "--prompt", rows_of(run)[0]["question"]]
    console.print(f'\n$ python3 {" ".join(command[:-1])} "{command[-1]}"', soft_wrap=True)
    subprocess.run([sys.executable, *command], check=True)


def ends_file(seed: int) -> Path:
    """What a card does not hold."""
    return OUTPUTS / f"shapes-s{seed}.json"


if __name__ == "__main__":
    in_one_line(main)
