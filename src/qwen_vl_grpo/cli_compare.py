"""`grpo compare`: one page of several runs, from what lies on this disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qwen_vl_grpo.cli_flags import Debug


def compare(
    runs: Annotated[list[str], typer.Argument(help="The runs, or `all` that are finished.", metavar="RUN_ID...|all")],
    output: Annotated[str | None, typer.Option("--output", help="The folder to write to.  [default: outputs/comparisons/RUN_IDS]")] = None,
    wandb: Annotated[bool, typer.Option("--wandb", help="Write a W&B Report too; needs wandb-workspaces and a key.")] = False,
    debug: Debug = False,
) -> None:
    """Compare runs: scores, curves, cost, answers and configs as one HTML page, Markdown and CSV."""
    from qwen_vl_grpo import report

    print("\n".join(report.compare(runs, Path(output) if output else None, wandb)))
