"""What test_zero.py runs in two processes under DeepSpeed: `zero_processes.py FOLDER CHECKPOINT`.

Each process writes what it saw to FOLDER/2-<its place>/seen.pt, and the checkpoints are in the folders of the first.
"""

import os
import sys
from pathlib import Path

import deepspeed  # pyright: ignore[reportMissingImports]
import torch
from accelerate import PartialState

from demo import digits
from qwen_vl_grpo import config as configs
from qwen_vl_grpo import ranks, training
from tests.unit import two_processes

HERE = {"use_cpu": False, "ddp_backend": "gloo"}
"""With use_cpu accelerate leaves DeepSpeed out and says nothing."""
STEP = {"seed": 12, "learning_rate": 1.0, "trl": {"optim": "sgd"}}
"""What is subtracted from the weights is the gradient. With this seed the first process has no picture."""
CASES = {
    "zero2 lora": STEP | {"lora": {"vision": True}},
    "zero2 full": STEP | {"lora": {"enabled": False, "vision": True}},
    "zero3 full": STEP | {"lora": {"enabled": False, "vision": True}, "beta": 0.1},
}


def stepped(folder, checkpoint, name, **more):
    """The gradient's norm in a step after which the weights are in checkpoint-1 of the case's folder."""
    changes = CASES[name] | {"gradient_accumulation_steps": 2 // ranks.count()}
    changes["trl"] = changes["trl"] | more
    place = folder / name.replace(" ", "-")
    place.mkdir(parents=True, exist_ok=True)
    return two_processes.gradient(place, checkpoint, **changes)[1]["grad_norm"]


def run(folder, checkpoint, steps):
    """A run from its config to its card, which is resumed for the steps that it has not made."""
    keys = {
        "run_id": "zero3", "output_dir": str(folder), "model_name": checkpoint, "dataset_name": str(folder / "digits"),
        "dataset_split": "train", "use_vllm": False, "learning_rate": 1e-3, "max_steps": steps, "save_steps": 1, "batch_size": 4,
        "num_generations": 4, "gradient_accumulation_steps": 1, "max_completion_length": 6, "gradient_checkpointing": True,
        "lora": {"enabled": False}, "data": {"limit": 8}, "rewards": [{"function": f"{folder / 'reward.py'}:said"}],
        "tracking": {"report_to": "none"}, "trl": HERE,
    }  # fmt: skip
    return training.train(configs.check(keys), resume=steps > 2).attempts[-1]


def main(folder, checkpoint):
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled for minutes
    os.environ |= {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true"}
    PartialState(backend="gloo")
    ranks.meet()
    own, seen = folder / f"2-{ranks.place()}", {}
    own.mkdir()
    for name in CASES:
        os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = name[4]
        seen[name] = stepped(folder, checkpoint, name, **HERE)
    if ranks.place() == 0:
        digits.write(folder / "digits")
        (folder / "reward.py").write_text(two_processes.REWARD, encoding="utf-8")
    seen["run"] = [run(folder, checkpoint, steps) for steps in (2, 3)]
    torch.save(seen, own / "seen.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
