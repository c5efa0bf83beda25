"""The command line: parse, validate, then import.

Nothing heavy is imported before every cheap refusal has had its turn, so a typo costs a blink and not a minute.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from qwen_vl_grpo import __version__
from qwen_vl_grpo.errors import ConfigError, DataError, GrpoError, HubError

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
runs_app = typer.Typer(rich_markup_mode=None, help="List runs, show one, or find runs that were moved.")
app.add_typer(runs_app, name="runs")

RunId = Annotated[str, typer.Option("--run_id", help="The run that answers.")]
Config = Annotated[str, typer.Argument(help="The run's YAML file.", metavar="CONFIG")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="Change one key: --set data.workers=4. Repeatable.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the whole record as JSON.")]


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
    dry_run: Annotated[bool, typer.Option("--dry_run", help="Print the resolved config and its arithmetic, and stop.")] = False,
    debug: Debug = False,
) -> None:
    """Train one run from its config, score it, and keep it under its run_id."""
    from qwen_vl_grpo import config as configs
    from qwen_vl_grpo import hardware

    run = configs.load(config, overrides or ())
    arithmetic = configs.arithmetic(run)
    if dry_run:
        import yaml

        print(yaml.safe_dump(run.model_dump(mode="json"), sort_keys=False), end="")
        print(f"# {arithmetic}\n# digest {configs.digest(run)[:12]}")
        return
    _refuse_early(run)
    hardware.quiet_libraries()
    _show_log()
    from qwen_vl_grpo import training

    card = training.train(run)
    print(f"run {card.run_id} is finished: {run.run_dir}/run.json")


@app.command()
def prepare(config: Config = "configs/qwen_grpo.yaml", overrides: Overrides = None, debug: Debug = False) -> None:
    """Check and size the rows of a run once, keep them in the cache, and say what was kept and what dropped, and why."""
    from qwen_vl_grpo import config as configs
    from qwen_vl_grpo import hardware, tasks

    run = configs.load(config, overrides or ())
    task = tasks.build(run.task)
    hardware.quiet_libraries()
    _show_log(sys.stdout)
    from qwen_vl_grpo import policy, splits

    policy.check(run)
    parts = splits.load(run, task, policy.load_processor(run))
    held_out = f"{len(parts.held_out)} held out ({run.evaluation.part})" if parts.held_out else "none held out"
    print(f"{len(parts.train)} rows to train on, {held_out}" + f", {parts.shared} left out for a picture of theirs" * bool(parts.shared))


@app.command()
def validate(config: Config = "configs/qwen_grpo.yaml", overrides: Overrides = None, debug: Debug = False) -> None:
    """Look at all the data of a run: rows, tokens, answers and rewards, and one prompt as the policy sees it; exit code 1 on faults."""
    from qwen_vl_grpo import config as configs
    from qwen_vl_grpo import hardware, tasks

    run = configs.load(config, overrides or ())
    configs.arithmetic(run)
    tasks.build(run.task)
    hardware.quiet_libraries()
    from qwen_vl_grpo import validation

    found = validation.validate(run)
    print("\n".join(found.said))
    for fault in found.faults[:20]:
        print(f"fault: {fault}")
    if found.faults:
        print(f"{len(found.faults)} faults" + ", the first 20 above" * (len(found.faults) > 20))
        raise typer.Exit(1)
    print("no faults")


@app.command()
def plan(
    config: Annotated[str, typer.Option("--config", help="The run's YAML file.")] = "configs/qwen_grpo.yaml",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Change one key: --set batch_size=4. Repeatable.")] = None,
    card: Annotated[str | None, typer.Option("--card", help="Only this card: MI300X, H200, H100, 24GB, or its GiB.")] = None,
    text_tokens: Annotated[int, typer.Option("--text_tokens", min=1, help="Tokens of text in the longest prompt.")] = 256,
    pictures: Annotated[int, typer.Option("--pictures", min=0, help="Pictures in the longest prompt.")] = 1,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say whether a config fits each card, and which knob to turn if not; exit code 1 if the card of --card is too small."""
    from qwen_vl_grpo import config as configs
    from qwen_vl_grpo import hardware, planning

    run = configs.load(config, overrides or ())
    configs.arithmetic(run)
    cards = [planning.named(card)] if card else list(planning.CARDS.values())
    machine = hardware.detect()
    if not card and (own := hardware.memory_gib(machine)):
        cards.append((f"here: {machine.name}", own))
    planned = planning.plan(run, cards, planning.Prompt(text_tokens, pictures))
    print(json.dumps(dataclasses.asdict(planned), indent=2) if as_json else planning.text(planned))
    if card and not planned.cards[0].fits:
        raise typer.Exit(1)


@app.command()
def infer(
    run_id: RunId,
    prompt: Annotated[str, typer.Option("--prompt", help="The question.")],
    image_path: Annotated[list[str] | None, typer.Option("--image_path", help="A picture. Repeatable.")] = None,
    system_prompt: Annotated[str | None, typer.Option("--system_prompt", help="Replace the run's own system prompt.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option("--max_new_tokens", min=1, help="Longest answer, in tokens.")] = None,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")] = 0.0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Answer one question with the policy of a run, found by its run_id."""
    from qwen_vl_grpo import hardware, registry

    card, run_dir = registry.resolve(run_id)
    registry.checkpoint_folder(card, run_dir)
    for path in image_path or ():
        if not Path(path).is_file():
            raise DataError(f"--image_path {path}: there is no such file")
    hardware.quiet_libraries()
    from qwen_vl_grpo import answering

    record = answering.infer(run_id, prompt, image_path or (), system_prompt, max_new_tokens, temperature)
    if as_json:
        print(json.dumps(record, indent=2))
        return
    print(record["answer"])
    if record["reasoning"]:
        print(f"reasoning: {record['reasoning']}", file=sys.stderr)
    print(f"{run_id}: loaded in {record['load_seconds']} s, answered in {record['answer_seconds']} s", file=sys.stderr)


@app.command()
def publish(
    run_id: Annotated[str | None, typer.Argument(help="The run to publish.")] = None,
    pending: Annotated[bool, typer.Option("--pending", help="Publish every run that waits because the Hub failed.")] = False,
    public: Annotated[bool, typer.Option("--public", help="Publish even if anyone can read the repository.")] = False,
    debug: Debug = False,
) -> None:
    """Put a run into the repository of HF_REGISTRY_REPO, where every node finds it by its run_id."""
    from qwen_vl_grpo import publishing

    if (run_id is None) != pending:
        raise ConfigError("grpo publish: name one run, or say --pending")
    waiting = publishing.pending() if run_id is None else [(run_id, public)]
    failed = []
    for name, anyone in waiting:
        try:
            where = publishing.by_id(name, public or anyone).published
            print(f"{name}: published in {where['repo']} at {where['commit']}")
        except GrpoError as error:
            if run_id is not None:
                raise
            failed.append(str(error))
    if failed:
        raise HubError(f"{len(failed)} of {len(waiting)} runs still wait: {'; '.join(failed)}")
    if not waiting:
        print("no run waits for the Hub")


@app.command()
def doctor(
    rollouts: Annotated[str, typer.Option("--rollouts", help="Check that the engine samples this config's own policy.", metavar="CONFIG")],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Change one key: --set lora.r=32. Repeatable.")] = None,
    debug: Debug = False,
) -> None:
    """Look before a run: what would go wrong on this machine, measured."""
    from qwen_vl_grpo import config as configs
    from qwen_vl_grpo import hardware

    run = configs.load(rollouts, overrides or ())
    hardware.require(run, hardware.detect())
    hardware.quiet_libraries()
    _show_log()
    from qwen_vl_grpo import doctor as checks

    for when, figures in checks.rollouts(run).items():
        print(f"ok  {when}: " + ", ".join(f"{name.removeprefix('parity/')} {value:.2g}" for name, value in figures.items()))


@runs_app.callback(invoke_without_command=True)
def list_runs(
    context: typer.Context,
    on_hub: Annotated[bool, typer.Option("--hub", help="The runs in the repository of HF_REGISTRY_REPO instead of those here.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    if context.invoked_subcommand:
        return
    from qwen_vl_grpo import registry

    found = [(card, None) for card in registry.list_hub()] if on_hub else registry.list_runs()
    if as_json:
        print(json.dumps([card.model_dump(mode="json") | ({"folder": str(folder)} if folder else {}) for card, folder in found], indent=2))
        return
    if not found:
        print("no runs on the Hub yet" if on_hub else f"no runs yet (index: {registry.home() / 'index'})")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("run_id", "state", "sampled answers right", "created", "base model", box=None)
    rows = [(card.run_id, card.state, _correct(card.metrics), card.created[:10], card.base_model) for card, _ in found]
    for row in rows:
        table.add_row(*row)
    for column, values in zip(table.columns[:-1], zip(*rows, strict=True), strict=False):  # a narrow terminal cuts the base model alone
        column.min_width, column.no_wrap = max(len(value) for value in values), True
    table.columns[-1].overflow, table.columns[-1].no_wrap = "ellipsis", True
    Console().print(table)


@runs_app.command()
def show(run_id: str, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show everything that is known of one run."""
    from qwen_vl_grpo import registry

    card, folder = registry.resolve(run_id)
    if as_json:
        print(card.model_dump_json(indent=2))
        return
    import yaml

    print(f"# {folder}")
    print(yaml.safe_dump(card.model_dump(mode="json", exclude={"config", "checkpoint_files"}), sort_keys=False), end="")


@runs_app.command()
def alarms(run_id: str, debug: Debug = False) -> None:
    """Ask a run's metrics again what went wrong without an error."""
    from qwen_vl_grpo import registry
    from qwen_vl_grpo.alarms import replay

    _, folder = registry.resolve(run_id)
    metrics = folder / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.is_file() else []
    rang = replay([json.loads(line) for line in lines])
    for alarm in rang:
        print(f"{alarm['name']}, step {alarm['first_step']} to {alarm['last_step']}: {alarm['text']}")
    if not rang:
        print(f"{run_id}: no alarm in {len(lines)} lines of metrics")


@runs_app.command()
def scan(folder: str, debug: Debug = False) -> None:
    """Find every run below a folder again, wherever it was moved."""
    from qwen_vl_grpo import registry

    found = registry.scan(Path(folder))
    print(f"{len(found)} runs found below {folder}" + (f": {', '.join(found)}" if found else ""))


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
    except SystemExit as end:  # typer turns Ctrl-C into it, and a run SIGTERM
        if end.code in (130, 143):
            print("interrupted", file=sys.stderr)
        raise


def _refuse_early(run: Any) -> None:
    """Everything that can be refused without torch."""
    from qwen_vl_grpo import hardware, planning, publishing, registry, rewards, tasks

    registry.refuse_existing(run)
    tasks.build(run.task)
    for entry in run.rewards:
        if ".py:" not in entry.function:
            rewards.find(entry.function)
    machine = hardware.detect()
    hardware.require(run, machine)
    if not run.allow_tight_memory and (memory := hardware.memory_gib(machine)):
        planning.refuse(run, memory)
        planning.refuse_occupied(run, memory, *hardware.occupied(machine))
    publishing.refuse(run)


def _load_env_file() -> None:
    if Path(".env").is_file():
        from dotenv import load_dotenv

        load_dotenv(Path(".env"))


def _show_log(stream: TextIO = sys.stderr) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.addFilter(logging.Filter("qwen_vl_grpo"))
    logging.getLogger().addHandler(handler)
    logging.getLogger("qwen_vl_grpo").setLevel(logging.INFO)


def _correct(metrics: dict[str, Any]) -> str:
    scores = [metrics.get(when, {}).get("sampled") for when in ("before", "after")]
    if not scores[0] or not scores[1]:
        return "-"
    return f"{scores[0]['correct']:.3f} -> {scores[1]['correct']:.3f} (n {scores[1]['n']})"


if __name__ == "__main__":
    main()
