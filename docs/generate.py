"""Write the pages of docs/ that are made from the code, or check that they are fresh.

make docs                           # write them
python docs/generate.py --check     # exit 1 if one is stale
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent / "src"), str(DOCS.parent)]

from benchmarks import rendered_page  # noqa: E402 - the line above makes it importable
from docs import reward_hacks, reward_logic, reward_logic_video  # noqa: E402
from qwen_vl_grpo import (  # noqa: E402
    cli,
    config,
    footprint,
    interfaces,
    model_card,
    plan_text,
    rendered_sections,
    sections,
    shapes,
    spreading,
    video_sections,
)
from qwen_vl_grpo import planning as plans  # noqa: E402

NOTICE = "<!-- Made from the code by `make docs`; change the code instead. -->\n"


def configuration() -> str:
    """Every key of the run config: the text under each field is its documentation."""
    page = [
        "# Configuration",
        NOTICE,
        "One YAML file a run. The documented keys are flat; sections group the rest. An unknown key fails and the nearest one is named. "
        "`--set a.b=c` changes a key on the command line, and `--dry_run` prints the resolved config with its arithmetic.",
        "",
        "Secrets (`HF_TOKEN`, `WANDB_API_KEY`, `OPENAI_API_KEY`) come from the environment or from `.env`, never from this file.",
        "",
    ]
    keys = {name: field.annotation for name, field in config.RunConfig.model_fields.items()}
    written = [
        node for module in (sections, rendered_sections, video_sections, config) for node in ast.parse(inspect.getsource(module)).body
    ]
    classes = {node.name: node for node in written if isinstance(node, ast.ClassDef)}
    page += ["## Flat keys", "", *table(classes["RunConfig"])]
    for name, annotation in keys.items():
        kind = getattr(annotation, "__name__", "")
        inner = next((part for part in getattr(annotation, "__args__", ()) if getattr(part, "__name__", "") in classes), None)
        section = kind if kind in classes else getattr(inner, "__name__", None)
        if section:
            page += ["", f"## `{name}:`" + (" (a list of these)" if section == "RewardEntry" else ""), "", *table(classes[section])]
    return "\n".join(page) + "\n"


def table(node: ast.ClassDef) -> list[str]:
    rows = ["| key | type | default | what it is |", "|---|---|---|---|"]
    for field, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            name = ast.unparse(field.target)
            text = " ".join(str(following.value.value).split())
            rows.append(
                f"| `{name}` | {kind(ast.unparse(field.annotation))} | {default(field.value)} | {text.replace('|', chr(92) + '|')} |"
            )
        elif isinstance(field, ast.AnnAssign) and ast.unparse(field.target) != "model_config":
            raise SystemExit(f"{node.name}.{ast.unparse(field.target)} has no text under it")
    return rows


def kind(annotation: str) -> str:
    if annotation.startswith("RunId"):
        return "`str`"
    if annotation.startswith("Literal["):
        return "one of " + annotation.removeprefix("Literal[").replace("]", "").replace(" | ", " or ").replace("'", "`")
    return f"`{annotation}`".replace("|", "or")


def default(value: ast.expr | None) -> str:
    if value is None:
        return "required"
    if isinstance(value, ast.Call):
        given = next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None)
        return f"`{ast.unparse(given)}`" if given is not None else ""
    return f"`{ast.unparse(value)}`" if ast.unparse(value) not in ("()", "{}") else "empty"


def commands() -> str:
    """What `--help` says of each command."""
    import typer.main
    from typer.testing import CliRunner

    page = ["# Commands", NOTICE, "`grpo VERB`, or the documented scripts: `src/fine_tuning/train.py` is `grpo train`, "]
    page[-1] += "`src/inference/inference.py` is `grpo infer`.\n"
    group = typer.main.get_command(cli.app)
    runner = CliRunner()
    for path in command_paths(group):
        shown = runner.invoke(cli.app, [*path, "--help"], prog_name="grpo", env={"TERMINAL_WIDTH": "100", "COLUMNS": "100"}).output
        page += [
            f"## `{' '.join(['grpo', *path])}`",
            "",
            "```text",
            "\n".join(line.rstrip() for line in shown.strip().splitlines()),
            "```",
            "",
        ]
    return "\n".join(page)


def command_paths(group: object, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    paths = [above] if above else []
    for name, command in sorted(getattr(group, "commands", {}).items()):
        paths += command_paths(command, (*above, name))
    return paths


SEVEN = {"model_name": "Qwen/Qwen2.5-VL-7B-Instruct", "vllm_gpu_memory_utilization": 0.5, "max_completion_length": 512}
MEASURED = [
    # what ran, card, the config as far as it decides memory, tokens of text in the prompt, torch's peak in GiB
    (
        "3B, 16 completions of 256, `configs/gpu/smoke.yaml` (docs/gpu_smoke)",
        "H100",
        {"model_name": "Qwen/Qwen2.5-VL-3B-Instruct", "vllm_gpu_memory_utilization": 0.4, "max_completion_length": 256},
        56,
        41.4,
    ),
    ("7B, 16 completions of 512", "H200", SEVEN, 44, 90),
    ("7B, 64 completions of 512", "H200", SEVEN | {"batch_size": 32}, 44, 103),
    ("7B, 128 completions of 512", "H200", SEVEN | {"batch_size": 64}, 44, 121),
    ("7B, 32 completions of 512", "H100", SEVEN | {"batch_size": 16}, 44, 64),
    ("7B, 16 completions of 512, no layer recomputed (docs/gpu_rows/step-7b.json)", "H100", SEVEN | {"gradient_checkpointing": 0}, 56, 98),
]
"""Runs with random weights of the published shapes, LoRA r=16, one 448x448 picture a prompt, sleep mode; the first five recompute
every layer and, as TRL does, the frozen tower too."""


PLANNING = """\
# Planning
{notice}
`grpo plan --config FILE` says whether a run fits a card, before anything is loaded: it reads config.json of the model and imports no torch.
Weights by part, the adapter, the optimizer, the gradients and the engine's share are counted exactly. **Activations, and what driver and
engine hold besides, are estimates**: fitted on a CPU to counts of every storage that small models of the three Qwen-VL families make
(`python benchmarks/activations.py` prints both side by side), not to the runs below.

## Predicted against measured

torch's peak in GiB (`torch.cuda.max_memory_allocated`, which counts the engine's share even while it sleeps), one run each, vLLM 0.25.1,
torch 2.11.0, Qwen2.5-VL of random weights, LoRA r=16, 448x448 pictures, utilization 0.4 (3B) and 0.5 (7B).

| run | card | measured | predicted | off by | predicted, had a micro-step held 8 |
|---|---|---|---|---|---|
{rows}

The records of the 7B runs name the completions of a step, not how many a micro-step held. The prediction splits a step in two, the default
of the script that ran them; the last column shows that micro-steps of 8 do not explain what was measured: then nothing in the trainer but
the pictures grows with the completions of a step. Sleep mode was measured to free 31.6 of the engine's 31.9 GiB at utilization 0.4 of an
H100 (docs/rollouts.md), where the plan has a share of {share:.1f} and {asleep:.1f} that stay.

The first five are runs of the published stack, which recomputes a frozen vision tower and differentiates it; ours does not, and the plan
counts ours, so it is a little low there.

{unseen}

Not measured yet: a whole 3B, a reference and a run without an engine (what is left of the row `plan-3b`), 4 bits, Qwen2-VL and Qwen3-VL,
any MI300X, several cards, renderer and judge.

Host memory on a card is libraries, the file of the weights, which is mapped while the card takes them, and what a renderer or judge keeps
there. An engine that sleeps keeps nothing on the host at level 2, which a run takes wherever it frees memory; at level 1, the next choice
(training.log names it), vLLM's weights lie there pinned and come on top. Without a card everything lies on the host. There activations
count double: no autocast makes them bfloat16, and glibc keeps for later what was freed. How much it keeps is not predictable: four small
runs took 0.97 to 1.08 of the plan, a fifth that recomputes its layers 1.5. With MALLOC_MMAP_THRESHOLD_=4194304 in the environment the
fifth took 1.7 GiB in place of 2.6 (0.96 of the plan), for 7 % more time (one run each, 115 million weights, one thread, 2026-11-29).

## The documented run

`grpo plan`, on a machine without a GPU:

```text
{documented}
```

With `configs/prompt_enhancement.yaml` put on one card (`--pictures 0 --set placement.renderer=auto --set placement.judge=auto --set
placement.memory_shares={{}}`):

```text
{drawn}
```

Renderer and judge are counted where they are placed: on the policy's card, on others (taken to be alike), and on the host. Weights come
from the headers of the safetensors files where these are here, else from kept sizes of the published ones (SD3-medium, Qwen-Image, whose
text encoder is the policy and held once, CLIP); the plan names what it could not count. A picture takes what the VAE's decoder holds at
full size, counted over the storages of the real classes; Qwen-Image decodes one at a time. A batch of pictures that does not fit is
halved, as a run does. None of this has been measured on a card. `configs/image_edit.yaml` with 16 completions on one card has the rows
that the documentation names, and the plan says them beside ours:

| GB | documented | ours |
|---|---|---|
{rows_named}

load: the policy alone; start: the engine starts beside the policy, and vLLM checks that its share is free; split, under fsdp2 alone: what
each card has loaded is parted among them; generate, evaluate: it is awake,
beside the policy and the optimizer; draw, score, backward, optimizer, save: it sleeps, if `vllm_enable_sleep_mode` lets it. A prompt is
taken to hold 256 tokens of text and one picture of `data.max_pixels`; `--text_tokens` and `--pictures` change that. Where a run does not
fit, each knob is tried in this order until it does, alone and then together: the engine's share, its context, smaller micro-steps and more
of them, gradient checkpointing, sleep mode, renderer.offload, LoRA, 4 bits, shorter completions, smaller pictures.

`grpo train` refuses, before the model is loaded, a share that cannot fit beside the trainer and a card that another process fills, by the
exact counts; and once the rows are read, what by the estimates does not fit with the longest of their prompts, which counts as all text
there; under zero2, zero3 and fsdp2 that is the share of one card. `allow_tight_memory: true` overrules all three. Before that it refuses a
disk without room for one checkpoint, and warns of one without room for all that are kept at once.

## Hours

Seconds of a step come from rows that measured whole steps on a card of that name (`src/qwen_vl_grpo/pace.py` keeps each with its row and
date): LoRA, an engine that sleeps, one picture a prompt, Qwen2.5-VL of 3B and 7B. The generation is scaled by the length of the answers and
by how many are made at once, between two rows or up to twice a row; learning by its tokens and the layers that are recomputed. It is the
time of a step in which every answer is as long as it may be; evaluations come on top. A card, model or way to train that no row measured
gets no hours.

## Several cards

`grpo plan --gpus N` shares the trainer among N of each card, in the first of these ways that fits; the engine stays whole on each card.

| GiB that a process holds before activations, 7B, all weights learn, 8 cards | loaded | weights | optimizer | gradients |
|---|---|---|---|---|
{shared}

ddp sends gradients in buckets, which are a second copy. DeepSpeed (zero2, zero3) keeps a float32 copy of what learns beside Adam's two
states, buckets of {bucket:.1f} GB each way, and under zero3 up to {live:.1f} GB of gathered weights; with an adapter TRL gathers the whole
model there to hand it to the engine. fsdp2 splits what each card has loaded whole, as float32 where it learns: the whole lies beside its
first parts until all are split, and gradients and Adam's states are float32, too. Gradients are parted after every micro-step (accelerate's
default adds up whole ones in bfloat16 until a step's last). Counted from the libraries' code and defaults; each was held against a run on
two cards ([scaling.md](scaling.md)).
Under fsdp2 torch there kept 9 GiB beyond the most that it had handed out (77.5 beside 68.7), which the plan does not count.

## After the run

A finished run holds its plan against what it measured: `plan` in its card, a table in training.log and in `grpo runs show RUN_ID`. On a
card these are the memory in use when the engine starts, while it generates and before the optimizer, and torch's own peaks; everywhere the
memory of the host, the size of a checkpoint and the median seconds of a step. Of a trainer that is split among cards it is the card alone.
"""


def planning() -> str:
    """What `grpo plan` predicted, held against what was measured, and its answer for the documented run."""
    rows = []
    for run, card, changes, text, measured in MEASURED:
        size = changes.get("batch_size", 8)
        two, eight = predicted(changes, card, text), predicted(changes | {"batch_size": 8}, card, text, size // 4)
        rows.append(f"| {run} | {card} | {measured} | {two:.1f} | {two / measured - 1:+.1%} | {eight:.1f} |")
    documented = config.load(DOCS.parent / "configs/qwen_grpo.yaml")
    together = ["placement.renderer=auto", "placement.judge=auto", "placement.memory_shares={}"]
    drawn = config.load(DOCS.parent / "configs/prompt_enhancement.yaml", together)
    edit = config.load(DOCS.parent / "configs/image_edit.yaml", ["gradient_accumulation_steps=16"])
    ours = plan_text.documented(plans.plan(edit, [], known=kept(edit)))
    words = footprint.Prompt(pictures=0)
    return PLANNING.format(
        rows_named="\n".join(f"| {part} | {size} | {ours[part]:.1f} |" for part, size in plan_text.DOCUMENTED.items()),
        unseen=unseen(),
        shared="\n".join(shared()),
        bucket=2 * spreading.BUCKET / 1e9,
        live=2 * spreading.LIVE / 1e9,
        drawn=plan_text.text(plans.plan(drawn, plans.CARDS.values(), words, kept(drawn))),
        notice=NOTICE,
        rows="\n".join(rows),
        share=0.4 * plans.CARDS["H100"][1],
        asleep=footprint.ENGINE_ASLEEP / footprint.GIB,
        documented=plan_text.text(plans.plan(documented, plans.CARDS.values(), known=kept(documented))),
    )


def unseen() -> str:
    """The rows plan-3b and plan-7b, where they have been run."""
    rows = []
    for path in sorted((DOCS / "gpu_rows").glob("plan-*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        for name, found in row["configurations"].items():
            ratios = found.get("measured / predicted", {})
            if not ratios:
                continue
            figures = [f"{ratios[figure]:.2f}" if figure in ratios else "" for figure in RATIOS]
            rows.append(f"| {path.stem.removeprefix('plan-')}, {name} | {row['card']} | {' | '.join(figures)} |")
    if not rows:
        return "No configuration was predicted first and then run yet: the rows plan-3b and plan-7b of `make bench-gpu` do that."
    score = "The whole runs were looked at for `score` before their first step, without Adam's states, which the prediction has; the row\n"
    score += "looks after the steps now. `host` was predicted 1.0 GiB too high; the engine's part of it is now what these runs took."
    head = [f"| configuration | card | {' | '.join(RATIOS)} |", "|---" * (len(RATIOS) + 2) + "|"]
    told = "Measured over predicted, by `make bench-gpu ROW=plan-3b` and `ROW=plan-7b`, which predict before they run:"
    return "\n".join([told, "", *head, *rows, "", score])


RATIOS = ("start", "generate", "score", "backward", "save", "allocated by torch at most", "host", "checkpoint")


def shared() -> list[str]:
    """What one of eight processes holds, by the way the trainer is shared."""
    run = config.check({"run_id": "shared", "model_name": "Qwen/Qwen2.5-VL-7B-Instruct", "lora": {"enabled": False}})
    rows = []
    for strategy in spreading.STRATEGIES:
        spread = spreading.Spread(strategy, 8)
        held = spreading.split(footprint.measure(run, kept(run)), run, kept(run), spread)
        sizes = [held.loaded, held.weights, held.optimizer, held.gradients]
        rows.append(f"| {strategy} | {' | '.join(f'{size / footprint.GIB:.1f}' for size in sizes)} |")
    return rows


def predicted(changes: dict, card: str, text: int, accumulation: int = 2) -> float:
    run = config.check({"run_id": "measured", "data": {"max_pixels": 448 * 448}, "gradient_accumulation_steps": accumulation} | changes)
    held = footprint.measure(run, kept(run), footprint.Prompt(text, pictures=1))
    return footprint.torch_peak(held, run, plans.CARDS[card][1] * footprint.GIB) / footprint.GIB


def kept(run: config.RunConfig) -> shapes.Shapes:
    known = shapes.published(run.model_name)
    assert known is not None
    return known


def sample_card() -> str:
    """The page that `grpo publish` would write of the run in docs/gpu_digits."""
    card = interfaces.RunCard.model_validate_json((DOCS / "gpu_digits/run.json").read_text(encoding="utf-8"))
    return model_card.render(card, "your-name/runs", f"run/{card.run_id}")


def with_samples(page: str) -> str:
    """A page written by hand, with what `make circle` printed between its marks."""

    def filled(mark: re.Match[str]) -> str:
        sample = (DOCS / "sample_outputs" / mark["name"]).read_text(encoding="utf-8")
        return f"{mark['start']}{sample}{mark['end']}"

    marks = r"(?P<start><!-- (?P<name>\S+): written by [^\n]+ -->\n```text\n).*?(?P<end>```\n<!-- end -->)"
    return re.sub(marks, filled, (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def with_answers(page: str) -> str:
    """A page with what the row answers-3b measured between its marks, or that nobody has run it."""
    path = DOCS / "gpu_rows/answers-3b.json"
    lines = ["Not yet measured."]
    if path.is_file():
        row = json.loads(path.read_text(encoding="utf-8"))
        lines = [f"| ratio, {row['card']}, {row['date']} | measured | rounds apart | at least |", "|---|---|---|---|"]
        for name, least in row["needed"].items():
            ratio = row["ratios"].get(name, {})
            spread = f"{ratio['low']} to {ratio['high']}" if "low" in ratio else ""
            lines.append(f"| {name} | {ratio.get('ratio', '')} | {spread} | {least} |")
        ran, seconds = row["ratios"].get("eight engines / one engine", {}).get("engines that ran", 0), row["measured"]["all"].get("seconds")
        told = [f"{name} {answers}" for name, answers in row["measured"]["throughput"]["answers a second"].items()]
        lines += ["", f"Answers a second of a warm engine: {', '.join(told)}. One `--run_id all` took {seconds} s from start to end."]
        lines += [f"Of the eight engines {ran} ran; one that did not counts as their median."]
    return between("answers-3b", "\n".join(lines) + "\n", page)


def with_rendered(page: str) -> str:
    """A page with what benchmarks/rendered_rows.py measured between its marks."""
    return between("rendered", rendered_page.page(rendered_page.found(DOCS / "gpu_rows")), page)


def with_scaling(page: str) -> str:
    """A page with what benchmarks/gpu_scaling.py measured between its marks, or that nobody has run it."""
    rows = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((DOCS / "gpu_rows/scaling").glob("*.json"))}
    lines = ["Not yet measured."]
    if rows:
        lines = [f"| arm | {' | '.join(SCALING)} |", "|---" * (len(SCALING) + 1) + "|"]
    for name, row in rows.items():
        alone = rows["lora-single-1"]["seconds a step, median"] if "lora-single-1" in rows and name.startswith("lora-") else None
        apart = [value for key, value in row["parity"][-1].items() if re.fullmatch(r"parity/pictures_\d+", key)]
        seconds = row["seconds a step, median"]
        cells = [
            row["model"], row["cards"], row["completions a card and step"] * row["cards"], f"{seconds:.2f}",
            f"{alone / seconds:.2f}" if alone else "", row["allocated by torch at most, GiB"], row["planned, GiB"],
            ", ".join(f"{value:.3f}" for value in apart or [row["parity"][-1]["parity/pictures"]]),
            f"{row['card']}, {row['date']}",
        ]  # fmt: skip
        lines.append(f"| {name.rpartition('-')[0]} | {' | '.join(map(str, cells))} |")
    return between("scaling", "\n".join(lines) + "\n", page)


def between(name: str, made: str, page: str) -> str:
    """A page with what was made between the two marks of a name."""
    return re.sub(rf"(<!-- {name}: .*? -->\n).*?(<!-- end of {name} -->)", lambda mark: mark[1] + made + mark[2], page, flags=re.DOTALL)


SCALING = (
    "model", "cards", "completions a step", "seconds a step", "efficiency", "GiB a card", "GiB planned before it ran",
    "log-probabilities apart, card by card", "measured on",
)  # fmt: skip

PAGES = {
    "scaling.md": lambda: with_scaling((DOCS / "scaling.md").read_text(encoding="utf-8")),
    "inference_guide.md": lambda: with_answers(with_samples("inference_guide.md")),
    "rendered_rewards.md": lambda: with_rendered((DOCS / "rendered_rewards.md").read_text(encoding="utf-8")),
    "model_registry.md": lambda: with_samples("model_registry.md"),
    "configuration.md": configuration,
    "commands.md": commands,
    "planning.md": planning,
    "sample_outputs/model_card.md": sample_card,
    "reward_logic.md": lambda: reward_logic.page(NOTICE),
    "reward_hacks.md": lambda: reward_hacks.page(NOTICE),
    "reward_logic_video.md": lambda: reward_logic_video.page(NOTICE),
}


def main() -> None:
    stale = []
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(f"docs/{name}")
    if stale:
        sys.exit(f"stale: {', '.join(stale)}; run `make docs`")


if __name__ == "__main__":
    main()
