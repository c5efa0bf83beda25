"""One arm of benchmarks/overhead.py: a bare TRL script, or `grpo train` whole, that takes each step when it is told to.

An arm is a process. It writes a line of JSON when a step is at its end and waits for one on its standard input before the next.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, TextIO

import datasets
import psutil
from transformers import AutoModelForImageTextToText, TrainerCallback
from trl.trainer.grpo_trainer import GRPOTrainer

from qwen_vl_grpo import assembly, hardware, policy, training
from qwen_vl_grpo import config as configs


class Turns(TrainerCallback):
    """Report and wait where a step begins, so that logging, saving and reading the next rows belong to the step before."""

    def __init__(self, report: TextIO):
        self.report = report
        self.counts = {"decoded": 0, "preprocessed": 0}
        self.before: dict[str, float] = {}
        self.used = 0.0

    def count(self, processor: Any) -> None:
        """Count the pictures that are decoded from the rows and preprocessed from here on."""
        kind = type(processor.image_processor)
        decode, preprocess = datasets.Image.decode_example, kind._preprocess

        def decode_counted(column: Any, *arguments: Any, **named: Any) -> Any:
            self.counts["decoded"] += 1
            return decode(column, *arguments, **named)

        def preprocess_counted(published: Any, images: Any, *arguments: Any, **named: Any) -> Any:
            self.counts["preprocessed"] += len(images)
            return preprocess(published, images, *arguments, **named)

        datasets.Image.decode_example, kind._preprocess = decode_counted, preprocess_counted  # type: ignore[method-assign]

    def now(self) -> dict[str, float]:
        return {"seconds": time.perf_counter(), "cpu": time.process_time(), **self.counts}

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.hand_over({})

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        lines = [line for line in state.log_history if "completions/min_length" in line]
        shortest, longest = (pick(line[f"completions/{pick.__name__}_length"] for line in lines) for pick in (min, max))
        self.hand_over({"lengths": sorted({shortest, longest})})

    def hand_over(self, more: dict[str, Any]) -> None:
        now = self.now()
        taken = {name: value - self.before.get(name, value) for name, value in now.items()}
        beside = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
        used = sum(times.user + times.system for times in beside)  # during the other arm's turn, too
        taken["cpu"], self.used = taken["cpu"] + used - self.used, used
        print(json.dumps(taken | more), file=self.report, flush=True)
        sys.stdin.readline()
        self.before = self.now()


def bare(config: configs.RunConfig, turns: Turns) -> None:
    """What one writes with TRL alone; the rows, the rewards and every value of GRPOConfig are those of the config, tracking aside."""
    prepared = assembly.prepare(config)
    args = assembly.grpo_config(config, prepared.processor, prepared.weights, config.run_dir)
    args.gradient_checkpointing = bool(config.gradient_checkpointing)
    args.report_to, args.log_completions = [], False
    trainer = GRPOTrainer(
        model=AutoModelForImageTextToText.from_pretrained(config.model_name, dtype=policy.weight_dtype(config), attn_implementation="sdpa"),
        reward_funcs=list(prepared.functions),
        args=args,
        train_dataset=prepared.rows,
        processing_class=prepared.processor,
        peft_config=policy.adapter(config.lora),
        callbacks=[turns],
    )
    turns.count(prepared.processor)
    trainer.train()


def ours(config: configs.RunConfig, turns: Turns) -> None:
    """`grpo train` as it is: ledger, alarms, figures of the groups, rescue, offline W&B with its tables."""
    build = training.build_trainer

    def with_turns(config: configs.RunConfig, prepared: training.Prepared, *arguments: Any) -> Any:
        trainer = build(config, prepared, *arguments)
        trainer.add_callback(turns)
        turns.count(prepared.processor)
        return trainer

    training.build_trainer = with_turns
    training.train(config)


if __name__ == "__main__":
    report = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # transformers prints a bare script's metrics
    hardware.quiet_libraries()
    arm, path = sys.argv[1:]
    {"bare": bare, "ours": ours}[arm](configs.load(path), Turns(report))
