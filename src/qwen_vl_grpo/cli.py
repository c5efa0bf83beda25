"""The command line: parse, validate, then import.

Nothing heavy is imported before every cheap refusal has had its turn, so a typo costs a blink and not a minute.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from qwen_vl_grpo import (
    __version__,
    cli_audit,
    cli_compare,
    cli_doctor,
    cli_evaluate,
    cli_infer,
    cli_launch,
    cli_probe,
    cli_publish,
    cli_runs,
    cli_studio,
    cli_validate,
)
from qwen_vl_grpo.cli_flags import AsJson, Config, Debug, Named, Overrides, load, refuse_early, show_log
from qwen_vl_grpo.errors import GrpoError

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(cli_runs.app, name="runs")
app.command()(cli_audit.audit)
app.command()(cli_compare.compare)
app.command()(cli_doctor.doctor)
app.command()(cli_evaluate.evaluate)
app.command()(cli_infer.infer)
app.command()(cli_infer.serve)
app.command()(cli_launch.launch)
app.command()(cli_probe.probe)
app.command()(cli_publish.publish)
app.command()(cli_studio.studio)
app.command()(cli_validate.validate)

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What a disk says that has no room, or has become read-only."""
UNOWNED, MISPLACED = (errno.EACCES, errno.EPERM), (errno.EISDIR, errno.ENOTDIR)
"""What a path says that belongs to somebody else, and one that is a folder in place of a file or the other way round."""


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def grpo(version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)] = False) -> None:
    """Fine-tune Qwen-VL with GRPO from one YAML file, and find every run again by its run_id."""


@app.command()
def train(
    config: Annotated[str, typer.Option("--config", help="The run's YAML file.")] = "configs/qwen_grpo.yaml",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Change one key: --set lora.r=32. Repeatable.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run of this id from its newest whole checkpoint.")] = False,
    seeds: Annotated[int | None, typer.Option("--seeds", min=2, help="Run a group of so many seeds, one after another.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry_run", help="Print the resolved config and its arithmetic, and stop.")] = False,
    debug: Debug = False,
) -> None:
    """Train one run from its config, score it, and keep it under its run_id."""
    from qwen_vl_grpo import config as configs
    from qwen_vl_grpo import data_places, hardware, registry

    run = load(config, overrides)
    if run.init_from:  # an alias may stand for another run by the time this one is resumed
        run = run.model_copy(update={"init_from": registry.actual(run.init_from)})
    arithmetic = configs.arithmetic(run)
    if dry_run:
        import yaml

        from qwen_vl_grpo.identity import digest

        places = data_places.find(run)
        print(yaml.safe_dump(run.model_dump(mode="json"), sort_keys=False), end="")
        print("\n".join(f"# {said}" for said in [*(f"data {name}: {where}" for name, where in places.items()), arithmetic]))
        print(f"# digest {digest(run)[:12]}")
        return
    if seeds:
        _train_group(run, seeds, resume, debug)
        return
    refuse_early(run, resume)
    hardware.quiet_libraries()
    show_log()
    from qwen_vl_grpo import training

    card = training.train(run, resume)
    if hardware.is_main_process():
        print(f"run {card.run_id} is finished: {run.run_dir}/run.json")


@app.command()
def prepare(config: Config = "configs/qwen_grpo.yaml", overrides: Overrides = None, debug: Debug = False) -> None:
    """Check and size the rows of a run once, keep them in the cache, and say what was kept and what dropped, and why."""
    from qwen_vl_grpo import hardware, tasks

    run = load(config, overrides)
    task = tasks.build(run.task)
    hardware.quiet_libraries()
    show_log(sys.stdout)
    from qwen_vl_grpo import policy, splits

    policy.check(run)
    parts = splits.load(run, task, policy.load_processor(run))
    held_out = f"{len(parts.held_out)} held out ({run.evaluation.part})" if parts.held_out else "none held out"
    print(f"{len(parts.train)} rows to train on, {held_out}" + f", {parts.shared} left out for a picture of theirs" * bool(parts.shared))


@app.command()
def plan(
    named: Named = None,
    config: Annotated[str, typer.Option("--config", help="The run's YAML file.")] = "configs/qwen_grpo.yaml",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Change one key: --set batch_size=4. Repeatable.")] = None,
    card: Annotated[str | None, typer.Option("--card", help="Only this card: MI300X, H200, H100, 24GB, or its GiB.")] = None,
    text_tokens: Annotated[int, typer.Option("--text_tokens", min=1, help="Tokens of text in the longest prompt.")] = 256,
    pictures: Annotated[int, typer.Option("--pictures", min=0, help="Pictures in the longest prompt.")] = 1,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="Share the trainer among so many of each card.")] = 1,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say whether a config fits each card, and which knob to turn if not; exit code 1 if the card of --card is too small."""
    from qwen_vl_grpo import config as configs
    from qwen_vl_grpo import hardware, plan_text, planning

    run = load(named or config, overrides)
    configs.elsewhere(run)
    cards = [planning.named(card)] if card and card != "all" else list(planning.CARDS.values())
    machine = hardware.detect()
    if card in (None, "all") and (own := hardware.memory_gib(machine)):
        cards.append((f"here: {machine.name}", own))
    planned = planning.plan(run, cards, planning.Prompt(text_tokens, pictures), ranks=gpus)
    print(json.dumps(dataclasses.asdict(planned), indent=2) if as_json else plan_text.text(planned))
    if card and card != "all" and not planned.cards[0].fits:
        raise typer.Exit(1)


@app.command()
def export(
    run_id: Annotated[str, typer.Argument(help="A run_id, an alias, or `latest`.")],
    merged: Annotated[str, typer.Option("--merged", help="The new folder that the full checkpoint is written to.")],
    dtype: Annotated[
        Literal["bfloat16", "float32"] | None, typer.Option("--dtype", help="Of the weights; the run's own if not given.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Write a run as one full checkpoint for transformers and vLLM, compared with base and adapter before it is there."""
    from qwen_vl_grpo import exporting, hardware, registry

    card, run_dir = registry.resolve(run_id)
    exporting.refuse(card, run_dir, Path(merged))
    hardware.quiet_libraries()
    record = exporting.export(card, run_dir, Path(merged), dtype)
    print(
        f"{card.run_id} is in {merged} ({record['dtype']}): writing moved {record['moved_by_writing']:.2g} of the probability of a token, "
        f"training {record['moved_by_training']:.2g}"
    )


def main(arguments: list[str] | None = None) -> None:
    """Run a command; an error that a user can mend becomes one line on stderr and exit code 1."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _load_env_file()
    try:
        app(args=arguments, prog_name="grpo")
    except GrpoError as error:
        if "--debug" in arguments:
            raise
        sys.exit(f"error: {' '.join('; '.join([str(error), *getattr(error, '__notes__', [])]).split())}")
    except OSError as error:
        place = error.filename or "a file"
        if "--debug" in arguments or error.errno not in (*UNOWNED, *MISPLACED, *UNWRITABLE):
            raise
        if error.errno in UNOWNED:
            sys.exit(f"error: {place}: user {os.getuid()} may not open it; hand it to this user (chown), or name another folder")
        if error.errno in MISPLACED:
            sys.exit(f"error: {place}: cannot be used ({error.strerror}); name another place, or change what is there")
        sys.exit(f"error: {place}: cannot be written ({error.strerror}); make room on that disk, or make it writable")
    except SystemExit as end:  # typer turns Ctrl-C into it, and a run the other signals that stop it
        if isinstance(end.code, int) and end.code > 128 and _tells_of_a_stop(end.code):
            print("interrupted", file=sys.stderr)
        raise


def _train_group(run: Any, count: int, resume: bool, debug: bool) -> None:
    """Train one run a seed, each by this same command, and say how their scores spread."""
    from qwen_vl_grpo import seeds

    todo = seeds.left(run, count, resume)
    for first, begun in todo[:1]:
        refuse_early(first, begun)
    show_log()
    print(seeds.text(seeds.train(run, count, todo, debug)))


def _tells_of_a_stop(code: int) -> bool:
    """Whether a run was stopped, and it is for this process to say so: of several ranks for the main one, or for what started it."""
    from qwen_vl_grpo import attempts, following, hardware

    return code - 128 in attempts.STOPS and hardware.is_main_process() and following.LAUNCHER not in os.environ


def _load_env_file() -> None:
    if Path(".env").is_file():
        from dotenv import load_dotenv

        load_dotenv(Path(".env"))


if __name__ == "__main__":
    main()
