"""`grpo audit`: one page on whether a run's reward can be believed, from what lies on this disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qwen_vl_grpo.cli_flags import Debug


def audit(
    run_id: Annotated[str, typer.Argument(help="A run_id, an alias, or `latest`.")],
    output: Annotated[str | None, typer.Option("--output", help="The HTML file.  [default: audit.html in the run's folder]")] = None,
    ask: Annotated[int | None, typer.Option("--ask", min=2, metavar="N", help="Show a few kept pictures to the judge N times.")] = None,
    debug: Debug = False,
) -> None:
    """Write one HTML page on a run's reward: what it paid, what it may have been paid for, and its most suspicious high scores."""
    from qwen_vl_grpo.audit import audit as write

    file, standing_out = write(run_id, Path(output) if output else None, ask or 0)
    print("\n".join([str(file), *(f"stands out: {said}" for said in standing_out)]))
