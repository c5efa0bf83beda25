"""What every command has: its flags, its log on stderr, and a look at the machine."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Annotated, TextIO

import typer

from qwen_vl_grpo import findings

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
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
