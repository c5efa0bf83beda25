"""The same runs as a W&B Report, for those who have wandb-workspaces; the page on disk needs neither."""

from __future__ import annotations

from typing import Any

from qwen_vl_grpo.errors import TrackingError
from qwen_vl_grpo.report.comparison import Comparison


def write(told: Comparison, markdown: str, page: str) -> str:
    """Save a report with the tables, live curves and configs of the runs, and return its address; `page` is what is there without W&B.

    Raises TrackingError where wandb-workspaces is not installed, no run was tracked, or W&B refuses.
    """
    try:
        import wandb_workspaces.reports.v2 as reports_v2
    except ImportError:
        raise TrackingError(f"--wandb: wandb-workspaces is not installed; `pip install wandb-workspaces`, or open {page}") from None
    reports: Any = reports_v2  # it exports its classes, and does not say so
    tracked = [run for run in told.runs if "wandb" in run.card.tracking.get("report_to", ())]
    if not tracked:
        raise TrackingError(f"--wandb: none of these runs was tracked by W&B; open {page}")
    projects = sorted({str(run.card.tracking.get("project")) for run in tracked})
    named = f"Config('run_id') in {[run.id for run in tracked]}"
    try:
        sets = [reports.Runset(project=project, filters=named) for project in projects]
        plots = [
            reports.LinePlot(title=title, x="train/global_step", y=[metric if metric.startswith("eval/") else f"train/{metric}"])
            for metric, title in told.panels
        ]
        blocks = [
            reports.MarkdownBlock(text=markdown),
            reports.PanelGrid(runsets=sets, panels=[*plots, reports.RunComparer(diff_only="split")]),
        ]
        report = reports.Report(project=projects[0], title=told.title, blocks=blocks)
        report.save()
        return str(report.url)
    except Exception as error:  # wandb raises its own and others' errors alike
        raise TrackingError(f"--wandb: W&B refused the report ({' '.join(str(error).split())[:200]}); open {page}") from None
