"""What commands share: flags, the log on stderr, a run's config, and what is refused before a run costs anything."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TextIO

import typer

from qwen_vl_grpo import findings

Config = Annotated[str, typer.Argument(help="The run's YAML file.", metavar="CONFIG")]
Named = Annotated[str | None, typer.Argument(help="The run's YAML file, as --config names it.", metavar="CONFIG")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="Change one key: --set data.workers=4. Repeatable.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Backend = Annotated[
    Literal["auto", "vllm", "transformers"], typer.Option("--backend", help="auto takes vLLM on a GPU where it is installed.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the whole record as JSON.")]


def show_log(stream: TextIO = sys.stderr) -> None:
    """Show what the library tells about its work."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.addFilter(logging.Filter("qwen_vl_grpo"))
    logging.getLogger().addHandler(handler)
    logging.getLogger("qwen_vl_grpo").setLevel(logging.INFO)


def heed(found: Iterable[findings.Finding]) -> None:
    """Raise HardwareError at a fault of the machine, and say on stderr what is doubtful."""
    found = list(found)
    findings.refuse(found)
    for finding in findings.warned(found):
        print(f"warning: {finding.name}: {finding}", file=sys.stderr)


def load(config: str, overrides: list[str] | None) -> Any:
    """The run config of a file, with its names known and what they name fit for each other; raises ConfigError, DataError."""
    from qwen_vl_grpo import batches, dataset_registry, tasks
    from qwen_vl_grpo import config as configs

    run = batches.fitted(configs.load(config, overrides or ()))
    dataset_registry.check(run)
    if ".py:" not in run.task.name:  # a config is read without running anyone's code
        _refuse_states(run, tasks.build(run.task), ask_hub=False)
    if run.renderer or run.judge:
        from qwen_vl_grpo import rendered_parts

        rendered_parts.check_names(run.renderer, run.judge)
        rendered_parts.check_fit(run.task.name, run.renderer, run.judge)
    return run


def _refuse_states(run: Any, task: Any, ask_hub: bool) -> None:
    if task.states and (not run.rewards or any(entry.function == "rendered_reward" for entry in run.rewards)):
        from qwen_vl_grpo.images import width

        width.check(run, ask_hub)


def refuse_early(run: Any, resume: bool) -> None:
    """Everything that can be refused without torch."""
    from qwen_vl_grpo import (
        attempts,
        checks,
        data_places,
        environment,
        hardware,
        planning,
        publishing,
        registry,
        rewards,
        solve_rates,
        strategies,
        tasks,
        tracking,
    )

    if resume:
        attempts.resumable(run)
    else:
        registry.refuse_existing(run)
        attempts.parent(run)
    task = tasks.build(run.task)
    for entry in run.rewards:
        if ".py:" not in entry.function and entry.function not in task.own_rewards:
            rewards.find(entry.function)
    _refuse_states(run, task, ask_hub=True)
    machine = hardware.detect()
    strategies.refuse(run, strategies.named(), machine.accelerated)
    strategies.refuse_engine(run)
    heed(checks.quick(run, machine) + environment.settle(machine, run))
    if not run.allow_tight_memory and (memory := hardware.memory_gib(machine)):
        planning.refuse(run, memory)
        planning.refuse_occupied(run, memory, *hardware.occupied(machine))
    tracking.refuse(run)
    publishing.refuse(run)
    solve_rates.refuse(run)
    data_places.find(run)
