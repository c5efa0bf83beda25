"""`grpo validate`: all the data of a run, before it takes a GPU."""

from __future__ import annotations

import typer

from qwen_vl_grpo.cli_flags import Config, Debug, Overrides, load


def validate(config: Config = "configs/qwen_grpo.yaml", overrides: Overrides = None, debug: Debug = False) -> None:
    """Look at all the data of a run: rows, tokens, answers and rewards, and one prompt as the policy sees it; exit code 1 on faults."""
    from qwen_vl_grpo import config as configs
    from qwen_vl_grpo import hardware, tasks

    run = load(config, overrides)
    step = configs.elsewhere(run)
    tasks.build(run.task)
    hardware.quiet_libraries()
    from qwen_vl_grpo import validation

    found = validation.validate(run)
    print("\n".join([*found.said, f"a step: {step}"]))
    for fault in found.faults[:20]:
        print(f"fault: {fault}")
    if found.faults:
        print(f"{len(found.faults)} faults" + ", the first 20 above" * (len(found.faults) > 20))
        raise typer.Exit(1)
    print("no faults")
