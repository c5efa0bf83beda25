"""`grpo probe`: how often a policy solves each row of a run."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from qwen_vl_grpo.cli_flags import AsJson, Backend, Debug, Named, Overrides, heed, load, show_log


def probe(
    policy: Annotated[
        str | None, typer.Argument(help="A run_id, or a model; what the config starts from if not given.", metavar="RUN_OR_MODEL")
    ] = None,
    named: Named = None,
    config: Annotated[str, typer.Option("--config", help="The run's YAML file.")] = "configs/qwen_grpo.yaml",
    overrides: Overrides = None,
    count: Annotated[int, typer.Option("--k", min=2, help="Sampled completions for each row.")] = 8,
    backend: Backend = "auto",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Measure how often a policy solves each row of a config, for data.filter and data.curriculum; goes on where it was stopped."""
    from qwen_vl_grpo import checks, environment, hardware, solve_rates

    run = load(named or config, overrides)
    if policy:
        run = run.model_copy(update={"data": run.data.model_copy(update={"probe": policy})})
    machine = hardware.detect()
    heed(checks.machine_only(machine) + environment.settle(machine, run))
    hardware.quiet_libraries()
    show_log()
    from qwen_vl_grpo import probe as probing

    records = probing.probe(run, count, backend)
    rates, (least, most) = [record["solve_rate"] for record in records], run.data.filter or (0.1, 0.9)
    if as_json:
        print(json.dumps({"probe": str(solve_rates.place(run)), "rows": records}, indent=2))
        return
    print(f"solve rates of {len(rates)} rows, at least {count} completions each at temperature {run.temperature:g} (rate, rows):")
    print(solve_rates.histogram(rates))
    print(f"mean {sum(rates) / len(rates):.3f}; expected: {solve_rates.expected(records, run.num_generations)}")
    print(
        f"data.filter: [{least:g}, {most:g}] keeps {sum(least <= rate <= most for rate in rates)} rows; stored in {solve_rates.place(run)}"
    )
