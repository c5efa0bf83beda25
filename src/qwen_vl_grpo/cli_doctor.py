"""`grpo doctor`: what would go wrong on this machine, before a run."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from qwen_vl_grpo.cli_flags import AsJson, Debug, show_log

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    config: Annotated[str, typer.Option("--config", help="The run's YAML file.")] = "configs/qwen_grpo.yaml",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Change one key: --set lora.r=32. Repeatable.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only what needs no torch and no network, as train and infer look first.")] = False,
    line: Annotated[bool, typer.Option("--line", help="Only the quick part, and its verdict in one line.")] = False,
    rollouts: Annotated[
        str | None, typer.Option("--rollouts", help="Check that the engine samples this config's own policy.", metavar="CONFIG")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Look before a run: what would go wrong on this machine, measured; exit code 1 if training may not start."""
    from qwen_vl_grpo import config as configs

    if rollouts is not None:
        _rollouts(configs.load(rollouts, overrides or ()))
        return
    run = configs.load(config, overrides or ())
    from qwen_vl_grpo import doctor as examination

    with _waiting():
        seen = examination.examine(run, quick or line)
    if line:
        print(seen.line)
    elif as_json:
        print(json.dumps(seen.record(), indent=2))
    else:
        _table(seen)
    if not seen.ready:
        raise typer.Exit(1)


def _rollouts(run: Any) -> None:
    """The parity gate on its own."""
    from qwen_vl_grpo import environment, hardware

    machine = hardware.detect()
    hardware.require(run, machine)
    environment.settle(machine, run)
    hardware.quiet_libraries()
    show_log()
    from qwen_vl_grpo import engine_check

    for when, figures in engine_check.rollouts(run).items():
        print(f"ok  {when}: " + ", ".join(f"{name.removeprefix('parity/')} {value:.2g}" for name, value in figures.items()))


def _waiting() -> Any:
    """Something that moves while it is measured, where there is a terminal to show it on."""
    from rich.console import Console

    return Console(stderr=True).status("looking and measuring")


def _table(seen: Any) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="")
    for heading in ("", "check", "found, and what to do"):
        table.add_column(heading, overflow="fold")
    for finding in seen.found:
        table.add_row(Text(finding.verdict, COLOURS[finding.verdict]), Text(finding.name), Text(str(finding)))
    console = Console()
    console.print(table)
    console.print(f"\n{seen.line} ({seen.seconds:.1f} s)", highlight=False, soft_wrap=True)
