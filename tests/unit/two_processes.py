"""What test_ranks.py runs in two processes, and the gradients' part of it in one: `two_processes.py FOLDER CHECKPOINT`.

Each process writes what it saw to FOLDER/<number of processes>-<its place>.pt.
"""

import sys
from pathlib import Path

import datasets
import torch
from PIL import Image
from transformers import TrainerCallback

from qwen_vl_grpo import assembly, policy, ranks, tasks
from qwen_vl_grpo import config as configs
from qwen_vl_grpo.ledger import Ledger

ROWS = 16
"""Completions a step, on however many processes."""
GROUP = 16
"""All of them: the group lies on both processes."""


def say(place):
    """A completion of its own for each of the ROWS, of another length."""
    return [100 + (7 * place + i) % 50 for i in range(1 + place % 6)]


def rows():
    """Eight questions, the first half of them without a picture."""
    prompts = [[{"role": "user", "content": f"Question {i}?"}] for i in range(8)]
    images = [[Image.new("RGB", (56, 56 + 28 * (i % 3)), "red")] * (i // 4) for i in range(8)]
    features = datasets.Dataset.from_dict({"prompt": prompts}).features
    features["images"] = datasets.List(datasets.Image())
    return datasets.Dataset.from_dict({"prompt": prompts, "images": images}, features=features)


class Gradient(TrainerCallback):
    """The gradient of each step as the optimizer gets it."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.seen.append({name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None})


def odd(completions, **_):
    """A reward with a spread, and a noise that explains one group of four and not another."""
    odd.noises = [0.05] * len(completions)
    return [None if len(text) == 3 else float(len(text) % 4) for text in (completion[0]["content"] for completion in completions)]


odd.noise_gate = 1.0


def trainer_of(folder, checkpoint, **changes):
    size = ROWS // ranks.count() // changes.get("gradient_accumulation_steps", 1)
    keys = {
        "run_id": "two", "model_name": checkpoint, "use_vllm": False, "gradient_checkpointing": False, "num_generations": 4, "max_steps": 1,
        "max_completion_length": 8, "learning_rate": 1e-3, "lora": {"enabled": False, "vision": True}, "batch_size": size,
        "gradient_accumulation_steps": 1, "tracking": {"report_to": "none", "log_completions": False},
    }  # fmt: skip
    config = configs.check(keys | changes | {"trl": {"max_grad_norm": 0.0} | changes.get("trl", {})})
    prepared = assembly.Prepared(tasks.build(config.task), [odd], [1.0], policy.load_processor(config), rows(), [], None, 0)
    return assembly.build_trainer(config, prepared, assembly.load_policy(config, prepared, folder), folder, Ledger(folder, 1))


def gradient(folder, checkpoint, **changes):
    """One step on completions that are given, and log-probabilities of an engine that is a little off."""
    trainer = trainer_of(folder, checkpoint, **changes)
    start = ranks.place() * ROWS // ranks.count()

    def single_turn(prompts, *_, **__):
        completions = [say(start + i) for i in range(len(prompts))]
        return completions, [[-5.0 + 0.01 * token for token in completion] for completion in completions]

    trainer._generate_single_turn = single_turn
    trainer.use_vllm, trainer.vllm_generation = True, None
    callback = Gradient()
    trainer.add_callback(callback)
    trainer.train()
    return callback.seen[0], trainer.state.log_history[0]


def main(folder, checkpoint):
    ranks.meet()
    folder = folder / f"{ranks.count()}-{ranks.place()}"
    folder.mkdir(parents=True)
    accumulation = 2 // ranks.count()
    seen = {}
    for name, changes in CASES.items():
        seen[name] = gradient(folder, checkpoint, gradient_accumulation_steps=accumulation, **changes)
    torch.save(seen, folder / "seen.pt")


CASES = {
    "dapo": {"loss_type": "dapo"},
    "grpo": {"loss_type": "grpo", "lora": {}},
    "dr_grpo over both": {"loss_type": "dr_grpo", "num_generations": GROUP, "scale_rewards": "batch"},
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
