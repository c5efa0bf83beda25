"""`grpo launch`: one run on many cards, and on many machines."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from qwen_vl_grpo.cli_flags import Debug, load, refuse_early, show_log


def launch(
    config: Annotated[str, typer.Option("--config", help="The run's YAML file.")] = "configs/qwen_grpo.yaml",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Change one key: --set lora.r=32. Repeatable.")] = None,
    gpus: Annotated[str | None, typer.Option("--gpus", help="How many cards of this machine, or which: 0,1,2. All if not given.")] = None,
    cpu: Annotated[int, typer.Option("--cpu", min=0, help="So many processes on the CPU in place of cards.")] = 0,
    strategy: Annotated[
        Literal["auto", "single", "ddp", "zero2", "zero3", "fsdp2"],
        typer.Option("--strategy", help="What every card holds; `auto` splits the trainer only if the plan says that a card is too small."),
    ] = "auto",
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="How many machines, each with this command and as many cards.")] = 1,
    node_rank: Annotated[int, typer.Option("--node_rank", min=0, help="Which of them this is; the first is 0.")] = 0,
    main_address: Annotated[str | None, typer.Option("--main_address", help="HOST:PORT of the first machine.")] = None,
    monitor: Annotated[
        int, typer.Option("--monitor", min=0, help="Restart a run that dies from its newest whole checkpoint, so many times at most.")
    ] = 0,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run of this id if it was begun, and start it if not: for jobs that are requeued."),
    ] = False,
    debug: Debug = False,
) -> None:
    """Train one run on many cards with `accelerate launch`; the exit code is that of the rank that failed first."""
    from qwen_vl_grpo import hardware
    from qwen_vl_grpo import launch as launching
    from qwen_vl_grpo.errors import ConfigError

    machine = hardware.detect()
    if cpu and gpus:
        raise ConfigError("--cpu: takes the place of cards; leave out --gpus")
    cards = () if cpu else launching.cards(gpus, machine)
    meeting = launching.nodes(nodes, node_rank, main_address)
    if monitor and nodes > 1:
        raise ConfigError(
            "--monitor: restarts one machine, and the others would go on waiting; let the cluster requeue the job (clusters/)"
        )
    from qwen_vl_grpo import config as configs

    run = configs.load(config, overrides or ())
    memory = None if cpu else hardware.memory_gib(machine)
    planned = launching.plan(run, machine, strategy, cards, cpu, meeting, memory)
    resume = resume and (run.run_dir / "run.json").is_file()
    with planned.as_a_rank_sees_it():
        run = load(config, overrides)
        configs.arithmetic(run)
        refuse_early(run, resume)
    show_log()
    arguments = ["train", "--config", config, *(part for given in overrides or () for part in ("--set", given))]
    outcome = launching.run(run, planned, [*arguments, *(["--resume"] if resume else []), *(["--debug"] if debug else [])], monitor)
    for line in outcome.unseen:
        print(line, file=sys.stderr)
    raise typer.Exit(outcome.code)
