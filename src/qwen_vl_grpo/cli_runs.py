"""`grpo runs …`: the runs of this machine, listed, shown, named, proved and cleared away. Nothing heavy is imported."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from qwen_vl_grpo.cli_flags import AsJson, Debug
from qwen_vl_grpo.errors import GrpoError, RegistryError

app = typer.Typer(rich_markup_mode=None, help="List runs, or show, name, verify, find again, prune or delete them.")

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
RunId = Annotated[str, typer.Argument(help="A run_id, an alias, or `latest`.")]
State = Literal["running", "finished", "failed", "interrupted", "killed"]

COLUMNS: dict[str, Callable[[Any], str]] = {
    "run_id": lambda card: card.run_id,
    "state": lambda card: card.state,
    "right": lambda card: right(card.metrics),
    "created": lambda card: card.created[:10],
    "task": lambda card: card.task,
    "base": lambda card: card.base_model,
}
SORTS: dict[str, Callable[[Any], Any]] = {
    **COLUMNS,
    "created": lambda card: card.created,
    "right": lambda card: sampled(card.metrics, "after").get("correct", -1.0),
}


@app.callback(invoke_without_command=True)
def list_runs(
    context: typer.Context,
    state: Annotated[State | None, typer.Option("--state", help="Only runs in this state.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Only runs of this task.")] = None,
    base: Annotated[str | None, typer.Option("--base", help="Only runs whose base model has this in its name.")] = None,
    sort: Annotated[
        Literal["created", "run_id", "state", "right", "task", "base"],
        typer.Option("--sort", help="Newest, best (share of sampled answers right) or first in the alphabet on top."),
    ] = "created",
    reverse: Annotated[bool, typer.Option("--reverse", help="The other way round.")] = False,
    on_hub: Annotated[bool, typer.Option("--hub", help="The runs in the repository of HF_REGISTRY_REPO instead of those here.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    if context.invoked_subcommand:
        return
    from qwen_vl_grpo import index, registry

    runs = [(card, None) for card in registry.list_hub()] if on_hub else registry.list_runs() if as_json else registry.listed()
    found = [
        (card, folder)
        for card, folder in ((registry.as_seen(card, folder), folder) for card, folder in runs)
        if state in (None, card.state) and task in (None, card.task) and (base or "").lower() in card.base_model.lower()
    ]
    found.sort(key=lambda run: SORTS[sort](run[0]), reverse=(sort in ("created", "right")) != reverse)
    if as_json:
        listed = (card.model_copy(update={"folder": str(folder)} if folder else {}).model_dump_json(indent=2) for card, folder in found)
        print("[" + ",\n".join(listed) + "]")
    elif found:
        aliases = {run_id: alias for alias, run_id in index.aliases().items()}
        print_table([{name: text(card) for name, text in COLUMNS.items()} | {"alias": aliases.get(card.run_id, "")} for card, _ in found])
    else:
        none = "no runs on the Hub yet" if on_hub else f"no runs yet (index: {index.home() / 'index'})"
        print("no such run" if state or task or base else none)


@app.command()
def show(run_id: RunId, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show everything that is known of one run or group of seeds."""
    from qwen_vl_grpo import registry

    if group := registry.read_group(run_id):
        from qwen_vl_grpo.seeds import text

        print(json.dumps(group, indent=2) if as_json else text(group))
        return
    card, folder = registry.resolve(run_id)
    card = registry.as_seen(card, folder)
    if as_json:
        print(card.model_dump_json(indent=2))
        return
    import yaml

    print(f"# {folder}")
    print(yaml.safe_dump(card.model_dump(mode="json", exclude={"config", "checkpoint_files", "plan"}), sort_keys=False), end="")
    if card.plan:
        from qwen_vl_grpo import hindsight

        print(hindsight.text(card.plan))


@app.command()
def alarms(run_id: RunId, debug: Debug = False) -> None:
    """Ask a run's metrics again what went wrong without an error."""
    from qwen_vl_grpo import attempts, registry
    from qwen_vl_grpo.alarms import replay

    _, folder = registry.resolve(run_id)
    lines = attempts.standing(attempts.metrics(folder))
    rang = replay(lines)
    for alarm in rang:
        print(f"{alarm['name']}, step {alarm['first_step']} to {alarm['last_step']}: {alarm['text']}")
    if not rang:
        print(f"{run_id}: no alarm in {len(lines)} lines of metrics")


@app.command()
def scan(folder: str, debug: Debug = False) -> None:
    """Find every run below a folder again, wherever it was moved."""
    from qwen_vl_grpo import registry

    found = registry.scan(Path(folder))
    print(f"{len(found)} runs found below {folder}" + (f": {', '.join(found)}" if found else ""))


@app.command()
def alias(
    name: Annotated[str | None, typer.Argument(help="The other name, such as champion.")] = None,
    run_id: Annotated[str | None, typer.Argument(help="The run that it stands for from now on.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget the alias; the run stays.")] = False,
    debug: Debug = False,
) -> None:
    """Give a run a second name that can move on to another run; without a name, list the aliases."""
    from qwen_vl_grpo import index, registry

    known = index.aliases()
    if name is None:
        print("\n".join(f"{alias} -> {run_id}" for alias, run_id in known.items()) or "no alias yet")
    elif remove:
        index.drop_alias(name)
    elif run_id is None:
        raise RegistryError(f"alias {name}: name the run that it is to stand for, or add --remove")
    else:
        card, _ = registry.resolve(run_id)
        index.set_alias(name, card.run_id)
        print(f"{name} -> {card.run_id}" + f" (was {known.get(name)})" * (known.get(name, card.run_id) != card.run_id))


@app.command()
def verify(run_id: RunId, debug: Debug = False) -> None:
    """Prove that a run's files are its policy: a process of its own must answer from them as the policy did, token for token."""
    from qwen_vl_grpo import registry

    card, folder = registry.resolve(run_id)
    registry.checkpoint_folder(card, folder)
    from qwen_vl_grpo import hardware

    hardware.quiet_libraries()
    from qwen_vl_grpo import proof

    verdict = proof.verify(card, folder)
    proof.keep(verdict, folder)
    if verdict["state"] != "proved":
        raise RegistryError(verdict["text"])
    print(verdict["text"])


@app.command()
def delete(
    run_id: RunId,
    force: Annotated[bool, typer.Option("--force", help="Even if it is the last copy.")] = False,
    yes: Yes = False,
    debug: Debug = False,
) -> None:
    """Delete a run from this machine, after asking; its last copy only with --force."""
    from qwen_vl_grpo import pruning, registry

    card, folder = registry.resolve(run_id)
    pruning.refuse_last_copy(card, folder, force)
    names = pruning.names_of(card.run_id)
    followers = [other.run_id for other, _ in registry.list_runs() if other.parent and other.parent.get("run_id") == card.run_id]
    print(f"{card.run_id} ({card.state}, {pruning.gib(pruning.size(folder))}) in {folder}")
    print(f"aliases that go with it: {', '.join(names)}\n" * bool(names), end="")
    print(f"runs that started from it, which stay: {', '.join(followers)}\n" * bool(followers), end="")
    if yes or agreed("Delete it here; a published copy stays." if pruning.elsewhere(card) else "Delete its last copy for good."):
        pruning.delete(card, folder)
        print(f"{card.run_id} is deleted")


@app.command()
def prune(
    run_ids: Annotated[list[str] | None, typer.Argument(help="Runs; none means every run.", metavar="[RUN_ID]...")] = None,
    dry_run: Annotated[bool, typer.Option("--dry_run", help="Say what would go, and stop.")] = False,
    yes: Yes = False,
    debug: Debug = False,
) -> None:
    """Free disk: old checkpoints, and of finished runs what they would be resumed from. Says what it keeps, and asks."""
    from qwen_vl_grpo import pruning, registry

    found = []
    for card, folder in [registry.resolve(name) for name in run_ids] if run_ids else registry.list_runs():
        try:
            found.append(pruning.spare(card, folder))
        except RegistryError as error:
            print(f"{card.run_id}: passed over; {error}")
    todo = [spare for spare in found if spare.paths]
    for spare in todo:
        print(spare.text())
    total = pruning.gib(sum(spare.size for spare in todo))
    print(f"{total} in {len(todo)} of {len(found)} runs; metrics, logs and cards stay")
    if not todo or dry_run:
        return
    if yes or agreed("Delete it for good. Finished runs still answer, but cannot be resumed."):
        for spare in todo:
            pruning.prune(spare)
        print(f"{total} freed")


def agreed(what: str) -> bool:
    """Ask a person; without one (no terminal) the answer is no, said as an error."""
    try:
        return typer.confirm(what + " Go on?")
    except typer.Abort:
        raise GrpoError("nobody answered, so nothing was deleted; add --yes") from None


def print_table(rows: list[dict[str, str]]) -> None:
    """Columns as wide as what they hold; in a narrow terminal the base model, which stands last, is cut."""
    named = any(row["alias"] for row in rows)
    for row in rows:
        if not named:
            del row["alias"]
        row["base model"] = row.pop("base")
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in [{name: name for name in rows[0]}, *rows]:
        line = "  ".join(text.ljust(widths[name]) for name, text in row.items()).rstrip()
        print(line if room is None or len(line) <= room else line[: room - 1] + "…")


def sampled(metrics: dict[str, Any], when: str) -> dict[str, Any]:
    """The scores of sampled answers before or after training; empty where there are none."""
    return metrics.get(when, {}).get("sampled") or {}


def right(metrics: dict[str, Any]) -> str:
    before, after = sampled(metrics, "before"), sampled(metrics, "after")
    return f"{before['correct']:.3f} -> {after['correct']:.3f} (n {after['n']})" if "correct" in before and "correct" in after else "-"
