"""`grpo studio`: a page on this machine to try runs by hand."""

from __future__ import annotations

import importlib.util
import os
from typing import Annotated

import typer

from qwen_vl_grpo.cli_flags import Debug
from qwen_vl_grpo.errors import ConfigError


def studio(
    run_ids: Annotated[list[str], typer.Argument(help="The runs to pick from: ids, patterns ('v1-*'), or all.", metavar="RUN_ID...|all")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1; 0 takes any that is free.")] = 7860,
    debug: Debug = False,
) -> None:
    """Try runs on a page of this machine: base and tuned completions side by side, with pictures and scores where a run draws them."""
    from qwen_vl_grpo import hardware, registry

    if importlib.util.find_spec("gradio") is None:
        raise ConfigError('grpo studio: Gradio is not installed here; pip install "gradio>=6.31,<7"')
    found = registry.select(",".join(run_ids))
    for card, run_dir in found:
        registry.checkpoint_folder(card, run_dir)
    hardware.quiet_libraries()
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from qwen_vl_grpo import side_by_side
    from qwen_vl_grpo import studio as pages

    pages.serve(side_by_side.SideBySide(found), port)
