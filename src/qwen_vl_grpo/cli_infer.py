"""The commands that answer by run_id, for cli.py: cheap refusals first, then the libraries."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qwen_vl_grpo.cli_flags import Backend, Debug, heed, show_log
from qwen_vl_grpo.errors import ConfigError, DataError, RenderError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qwen_vl_grpo.answer_tables import Inference
    from qwen_vl_grpo.interfaces import RunCard
    from qwen_vl_grpo.items import Batch, Item
    from qwen_vl_grpo.journal import Record

    Tell = Callable[[Record], None]

Runs = Annotated[
    str,
    typer.Option("--run_id", help="Who answers: an id, several parted by commas, a pattern ('v1-*'), or all; here and on the Hub."),
]


def infer(
    run_id: Runs,
    prompt: Annotated[str | None, typer.Option("--prompt", help="The question; with --input, for rows without one.")] = None,
    image_path: Annotated[list[str] | None, typer.Option("--image_path", help="A picture: a file or a URL. Repeatable.")] = None,
    video_path: Annotated[list[str] | None, typer.Option("--video_path", help="A clip: a file or a URL. Repeatable.")] = None,
    batch: Annotated[str | None, typer.Option("--input", help="Many questions: JSONL, CSV, OpenAI batch, a folder of pictures.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="A further file for the answers: JSONL, or OpenAI batch if that came in."),
    ] = None,
    system_prompt: Annotated[str | None, typer.Option("--system_prompt", help="Replace the run's own system prompt.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option("--max_new_tokens", min=1, help="Longest answer, in tokens.")] = None,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option("--top_p", min=0.01, max=1.0, help="Sample from the likeliest tokens of this share.")] = 1.0,
    backend: Backend = "auto",
    batch_size: Annotated[int, typer.Option("--batch_size", min=1, help="Answers that transformers writes at once.")] = 8,
    allow_private_urls: Annotated[bool, typer.Option("--allow_private_urls", help="Fetch from private addresses, too.")] = False,
    retry_errors: Annotated[bool, typer.Option("--retry_errors", help="Ask again what could not be asked or drawn the last time.")] = False,
    draw: Annotated[bool, typer.Option("--draw", help="Draw each answer, too, with the renderer of the run that gave it.")] = False,
    picture_dir: Annotated[
        Path | None, typer.Option("--picture_dir", help="Where --draw puts pictures; outputs/inference/drawn if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole record as JSON; a list of them for several runs.")] = False,
    wandb: Annotated[bool, typer.Option("--wandb", help="Also send answers, latency and tokens to W&B, one W&B run for each run.")] = False,
    debug: Debug = False,
) -> None:
    """Answer one question, or a file of them, with the policies of runs found by run_id; records are kept in outputs/inference/."""
    from qwen_vl_grpo import checks, environment, fetching, gallery, hardware, items, registry

    if batch is None and prompt is None:
        raise DataError("ask something: --prompt TEXT, or --input FILE")
    if (batch is not None and (image_path or video_path)) or (batch is None and (output or retry_errors)):
        raise DataError("--image_path and --video_path go with one --prompt, --output and --retry_errors go with --input")
    if picture_dir is not None and not draw:
        raise DataError("--picture_dir is where --draw puts pictures; add --draw, or leave it out")
    if batch is None:
        opened = [fetching.picture(source, allow_private=allow_private_urls) for source in image_path or ()]
        clips = [fetching.clip(source, allow_private=allow_private_urls) for source in video_path or ()]
        chat = [{"role": "user", "content": prompt}]
        asked = items.Batch([items.Item("prompt", chat, image_path or [], opened=opened, videos=video_path or [], clips=clips)])
    else:
        asked = items.read(batch, prompt)
    show_log()
    found = registry.select(run_id)  # after the question was read: it may bring runs from the Hub
    for card, run_dir in found:
        registry.checkpoint_folder(card, run_dir)
    if draw:
        backend = _drawing_backend([card for card, _ in found], backend)
    machine = hardware.detect()
    heed(checks.machine_only(machine) + environment.settle(machine))
    hardware.quiet_libraries()
    from qwen_vl_grpo import answering, journal, loading

    answering.choose_backend(backend)
    shown = {item.id for item in asked.items[: gallery.KEPT]} if batch else set()
    runs = [loading.load(card, run_dir) for card, run_dir in found]
    drawing = None
    if draw:
        from qwen_vl_grpo.drawing import Drawing

        drawing = Drawing(runs, picture_dir or journal.folder() / "drawn")
    how = answering.How(system_prompt, max_new_tokens, temperature, allow_private_urls, backend, batch_size, shown, top_p, drawing)
    with _followed([card for card, _ in found], asked.items, how, batch) if wandb else nullcontext() as followed:
        tell = followed.add if followed else lambda record: None
        if batch is None:
            _one(runs, asked.items, how, as_json, tell)
        else:
            _many(runs, asked, how, batch, output, retry_errors, tell)


def serve(
    run_ids: Annotated[list[str], typer.Argument(help="The runs that answer, each a model of the server; they share one base.")],
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on 127.0.0.1.")] = 8000,
    debug: Debug = False,
) -> None:
    """Serve runs as models of an OpenAI-compatible vLLM server on 127.0.0.1, with a key."""
    from qwen_vl_grpo import checks, environment, hardware, registry, vllm_server

    show_log()
    vllm_server.refuse_unsafe(os.environ)
    found = registry.select(",".join(run_ids))
    for card, run_dir in found:
        registry.checkpoint_folder(card, run_dir)
    machine = hardware.detect()
    heed(checks.machine_only(machine) + environment.settle(machine))
    hardware.quiet_libraries()
    from qwen_vl_grpo import loading, serving

    runs = [loading.load(card, run_dir) for card, run_dir in found]
    key = serving.settle(os.environ, port)
    said = (
        f"http://127.0.0.1:{port}/v1, models: {', '.join(card.run_id for card, _ in found)}",
        f"key: in {key}" if key else "key: that of VLLM_API_KEY",
        "pictures and clips come as data: URLs; a run's system prompt (grpo runs show RUN_ID) is the client's to send",
    )

    def ready() -> None:
        if key:
            serving.keep_key(key, os.environ["VLLM_API_KEY"])
        print("\n".join(said), file=sys.stderr, flush=True)

    serving.serve(runs, port, ready)


def _drawing_backend(cards: Sequence[RunCard], backend: Any) -> Any:
    """The backend whose answers of these runs can be drawn; raises ConfigError or DataError for a run whose cannot."""
    from qwen_vl_grpo import registry, tasks

    known = {name: build() for name, build in tasks.TASKS.items()}
    drawn = {name for name, task in known.items() if "rendered_reward" in task.own_rewards}
    for card in cards:
        config = registry.config_of(card)
        name = config.task.name
        if name not in drawn:
            raise DataError(f"--draw: run {card.run_id} has the task {name}, whose answers are not drawn; ask runs of {' or '.join(drawn)}")
        if not known[name].states:
            continue
        if config.renderer is None:
            raise ConfigError(
                f"--draw: the config of run {card.run_id} names no renderer, and {name} has none of its own; leave --draw out"
            )
        if backend == "vllm":
            raise ConfigError(
                f"--draw: run {card.run_id} is drawn from the policy's own states, which vLLM does not give; take --backend transformers"
            )
        backend = "transformers"
    return backend


def _followed(cards: list[RunCard], asked: list[Item], how: Any, batch: str | None) -> Inference:
    """The W&B runs that follow the answers, started before a model is loaded."""
    from qwen_vl_grpo import answer_tables, journal

    told = {"input": batch, "items": len(asked)} | {key: getattr(how, key) for key in ("backend", "temperature", "top_p", "system_prompt")}
    return answer_tables.Inference(cards, journal.folder(), asked, told, how.allow_private_urls)


def _one(runs: Any, asked: list[Item], how: Any, as_json: bool, tell: Tell) -> None:
    """Answer one question anew, whatever was asked before: one run's answer alone on stdout, several runs' under their ids."""
    from qwen_vl_grpo import answering, journal

    loads: list[float] = []
    records = list(answering.ask(runs, asked, how, loaded=loads.append))
    for record in records:
        if record["error"]:
            raise DataError(record["error"])
    journal.keep(journal.PROMPTS, records)
    for record in records:
        tell(record)
    if as_json:
        print(json.dumps(records if len(records) > 1 else records[0], indent=2))
    else:
        _show(runs, records, sum(loads))
    for record in records:
        if why := journal.undrawn(record):
            raise RenderError(f"run {record['run_id']}: its answer could not be drawn: {why}")


def _show(runs: Any, records: Sequence[Record], load_seconds: float) -> None:
    """Answers as a person reads them: themselves on stdout, all that is known beside them on stderr."""
    shown = {run.run_id: run.task.shown for run in runs if run.task and run.task.shown}
    for record in records:
        if len(records) > 1:
            print(f"[{record['run_id']}]", flush=True)
        print(shown[record["run_id"]](record) if record["run_id"] in shown else record["answer"], flush=True)
        if record["reasoning"]:
            print(f"reasoning: {record['reasoning']}", file=sys.stderr)
        if path := record.get("picture", {}).get("path"):
            print(f"picture: {path} ({record['picture']['width']}x{record['picture']['height']})", file=sys.stderr)
    names, seconds = ", ".join(record["run_id"] for record in records), sum(record["seconds"] for record in records)
    print(f"{names}: loaded in {load_seconds:.2f} s, answered in {seconds:.2f} s", file=sys.stderr)


def _many(runs: Any, asked: Batch, how: Any, source: str, output: Path | None, retry_errors: bool, follow: Tell) -> None:
    """Answer a file of questions, from where the last process came to; exit code 1 if none could be asked."""
    from qwen_vl_grpo import answering, journal

    wanted = [answering.key_of(run, item, how) for item in asked.items for run in runs]
    with journal.Journal(journal.folder() / journal.name_for(source), output, asked.openai) as kept:
        answered = kept.answered(retry_errors) & set(wanted)
        kept.begin_output(answered)
        for key, record in {journal.key(record): record for record in kept.records}.items():
            if key in answered:
                follow(record)
        if answered:
            print(f"{len(answered)} of {len(wanted)} answers are there already", file=sys.stderr)
        started, tokens = time.perf_counter(), 0
        loads: list[float] = []
        new: list[Record] = []
        speed = ""
        with _bar(len(wanted) - len(answered)) as tell:
            for record in answering.ask(runs, asked.items, how, answered, loads.append):
                kept.add(record)
                follow(record)
                new.append(record)
                tokens += record.get("completion_tokens", 0)
                speed = _speed(len(new), tokens, time.perf_counter() - started - sum(loads))
                tell(speed)
        latest = {journal.key(record): record for record in kept.records}
        failed = [latest[key] for key in wanted if latest[key]["error"]]
        undrawn = [latest[key] for key in wanted if journal.undrawn(latest[key])]
    for record in failed[:10]:
        print(f"item {record['item']}: {record['error']}", file=sys.stderr)
    for record in undrawn[:10]:
        print(f"item {record['item']}: not drawn: {journal.undrawn(record)}", file=sys.stderr)
    if new:
        print(f"{len(new)} asked: {speed}, and {sum(loads):.1f} s of loading", file=sys.stderr)
    not_drawn = f", {len(undrawn)} could not be drawn" * (how.draw is not None)
    print(f"{len(wanted) - len(failed)} answered, {len(failed)} could not be asked{not_drawn}: {kept.path}")
    if len(failed) == len(wanted):
        raise typer.Exit(1)


def _speed(answers: int, tokens: int, seconds: float) -> str:
    return f"{answers / seconds:.1f} answers/s, {tokens / seconds:.0f} tokens/s"


class _bar:
    """A progress bar on stderr with the speed and the time left; where stderr is no terminal, a line every ten seconds."""

    def __init__(self, total: int):
        self.total, self.done, self.said = total, 0, time.monotonic()

    def __enter__(self) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.task = self.bar.add_task("loading", total=self.total)
        self.bar.start()
        return self.tell

    def __exit__(self, *error: Any) -> None:
        self.bar.stop()

    def tell(self, speed: str) -> None:
        self.done += 1
        self.bar.update(self.task, advance=1, description=speed)
        if self.bar.disable and time.monotonic() - self.said > 10:
            self.said = time.monotonic()
            print(f"{self.done} of {self.total}, {speed}", file=sys.stderr)
