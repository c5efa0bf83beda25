"""Run cards and what lies beside them -> one comparison as HTML, Markdown and CSV: offline, and years later."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from qwen_vl_grpo import registry
from qwen_vl_grpo.errors import RegistryError
from qwen_vl_grpo.interfaces import RunCard


def compare(run_ids: Sequence[str], output: Path | None = None, wandb: bool = False) -> list[str]:
    """Write comparison.html, comparison.md and comparison.csv of the runs into a folder, and return where they are.

    `all` stands for every finished run, oldest first. `wandb` adds a W&B Report, after the files. Raises RegistryError for an
    unknown run and where no run is finished, TrackingError where the W&B Report cannot be written.
    """
    runs = chosen(run_ids)
    from qwen_vl_grpo.report import comparison, page, tables, workspace, written  # a refusal needs none of this

    told = comparison.of([tables.gather(card, folder) for card, folder in runs], shlex.join(["grpo", "compare", *run_ids]))
    folder = output or registry.home() / "comparisons" / _name(run_ids)
    forms = {"comparison.html": page.page(told), "comparison.md": written.markdown(told), "comparison.csv": written.table(told)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in forms.items():
            (folder / name).write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise RegistryError(f"{folder}: the comparison cannot be written there ({error.strerror}); choose another --output") from None
    places = [str(folder / name) for name in forms]
    return [*places, workspace.write(told, forms["comparison.md"], places[0])] if wandb else places


def chosen(run_ids: Sequence[str]) -> list[tuple[RunCard, Path]]:
    """The cards and folders of the runs, each once, in the order asked for; those that `all` stands for come first."""
    found = [registry.resolve(run_id) for run_id in run_ids if run_id != "all"]
    if "all" in run_ids:
        finished = [(card, folder) for card, folder in registry.list_runs() if card.state == "finished"]
        if not finished:
            raise RegistryError("no run is finished yet, so there is nothing to compare; list the runs with `grpo runs`")
        found = [*sorted(finished, key=lambda run: (run[0].created, run[0].run_id)), *found]
    return list({card.run_id: (card, folder) for card, folder in found}.values())


def _name(run_ids: Sequence[str]) -> str:
    shown = "-and-".join(run_ids)
    return shown if len(shown) <= 100 else f"{run_ids[0]}-and-{len(run_ids) - 1}-others"
