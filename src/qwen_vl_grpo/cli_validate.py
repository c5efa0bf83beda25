"""`grpo validate`: all the data of a run, before it takes a GPU."""

from __future__ import annotations

import dataclasses
import json

import typer

from qwen_vl_grpo.cli_flags import AsJson, Config, Debug, Overrides, load

SHOWN = 20
"""Sentences of a kind on the terminal; --json has all."""


def validate(config: Config = "configs/qwen_grpo.yaml", overrides: Overrides = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Look at all the data of a run: rows, tokens, answers and rewards, and one prompt as the policy sees it; exit code 1 on faults."""
    from qwen_vl_grpo import config as configs
    from qwen_vl_grpo import hardware, tasks

    run = load(config, overrides)
    step = configs.elsewhere(run)
    tasks.build(run.task)
    hardware.quiet_libraries()
    from qwen_vl_grpo import validation

    found = validation.validate(run)
    if as_json:
        print(json.dumps(dataclasses.asdict(found) | {"step": step}, indent=2))
    else:
        print(
            "\n".join([*found.said, f"a step: {step}", *_listed("doubt", found.doubts), *(_listed("fault", found.faults) or ["no faults"])])
        )
    if found.faults:
        raise typer.Exit(1)


def _listed(kind: str, sentences: list[str]) -> list[str]:
    """The first sentences, and how many there are; nothing where there are none."""
    many = f", the first {SHOWN} above" * (len(sentences) > SHOWN)
    return [*(f"{kind}: {said}" for said in sentences[:SHOWN]), f"{len(sentences)} {kind}s{many}"] if sentences else []
