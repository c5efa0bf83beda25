"""The page that people read of a run: what it is, what it scored, how to load it, what its licence allows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from qwen_vl_grpo import licences
from qwen_vl_grpo.interfaces import RunCard

TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM 0.31 takes as --max-lora-rank."""
SCORED = {"before": "before", "after": "after", "without_adapter": "after, adapter off"}


def render(card: RunCard, repo: str, tag: str) -> str:
    """The README.md of a run that lies under runs/{run_id}/ of `repo` at `tag`, with the Hub's metadata on top."""
    import jinja2

    environment = jinja2.Environment(keep_trailing_newline=True, undefined=jinja2.StrictUndefined, autoescape=False)  # noqa: S701 - Markdown
    environment.filters |= {"inline": inline, "fenced": fenced}
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    lora, adapter = card.config.get("lora", {}), any(name.endswith("adapter_config.json") for name in card.checkpoint_files)
    warm = any(name.startswith("warmup/") for name in card.checkpoint_files)
    revision = f", revision={card.base_revision!r}" if card.base_revision else ""
    text_only = card.preprocessing.get("reads") == "text"
    quantized = " (4-bit base)" if lora.get("quantization") else ""
    return template.render(
        card=card,
        repo=repo,
        tag=tag,
        adapter=adapter,
        text_only=text_only,
        loader="AutoModelForCausalLM" if text_only else "AutoModelForImageTextToText",
        reader="AutoTokenizer" if text_only else "AutoProcessor",
        metadata=yaml.safe_dump(metadata(card, adapter), sort_keys=False),
        kind=f"A LoRA adapter of rank {lora.get('r')}{quantized}" if adapter else "A full fine-tune",
        base=inline(card.base_model),
        warm=warm,
        base_argument='f"{folder}/warmup"' if warm else repr(card.base_model) + revision,
        served_base='"$FOLDER/warmup"' if warm else shell_word(card.base_model),
        rank=next((rank for rank in LORA_RANKS if rank >= lora.get("r", 16)), lora.get("r")),
        tower=bool(lora.get("vision")),
        data=inline(card.dataset.get("name", "unknown data")),
        held_out=inline(card.dataset["held_out"]) if card.dataset.get("held_out") else None,
        scores=scores(card),
        rewards=rewards(card),
        licence=licences.of_base(card.base_model),
        data_licence=licences.of_dataset(str(card.dataset.get("name", ""))),
    )


def metadata(card: RunCard, adapter: bool) -> dict[str, Any]:
    """The YAML that the Hub reads; names of local folders stay out of it."""
    licence = licences.of_base(card.base_model)
    pipeline = "text-generation" if card.preprocessing.get("reads") == "text" else "image-text-to-text"
    known: dict[str, Any] = {"library_name": "peft" if adapter else "transformers", "pipeline_tag": pipeline}
    if HUB_ID.fullmatch(card.base_model) and not Path(card.base_model).exists():
        known["base_model"] = card.base_model
    data = str(card.dataset.get("name", ""))
    if HUB_ID.fullmatch(data) and not Path(data).exists():
        known["datasets"] = [data]
    if licence is not None:
        known["license"] = licence.spdx
        if licence.spdx == "other":
            known |= {"license_name": licence.name, "license_link": f"https://huggingface.co/{card.base_model}/blob/main/LICENSE"}
    return known | {"tags": ["grpo", "qwen-vl-grpo", " ".join(card.task.split())]}


def scores(card: RunCard) -> list[dict[str, Any]]:
    """The rows of the table: greedy and sampled answers, before and after, and what the policy knows without looking."""
    return [row for row in _scored(card) if row.keys() >= {"correct", "interval", "format", "n", "rows"}]


def rewards(card: RunCard) -> list[dict[str, Any]]:
    """The rows of the table of a task that can tell nothing right by its words: the mean of each reward."""
    rows = [row for row in _scored(card) if row.keys() >= {"rewards", "n", "rows"}]
    return [row | {"reward": name, "mean": mean} for row in rows for name, mean in row["rewards"].items() if mean is not None]


def _scored(card: RunCard) -> list[dict[str, Any]]:
    rows, metrics = [], card.metrics
    for kind in ("greedy", "sampled"):
        found = [(when, metrics.get(key, {}).get(kind)) for key, when in SCORED.items()]
        rows += [{"kind": kind, "when": when} | values for when, values in found if values]
    if blind := metrics.get("blind"):
        rows.append({"kind": f"greedy, shown {card.blank}", "when": "after"} | blind)
    return rows


def inline(text: Any) -> str:
    """Text as code within a line of Markdown or a cell of a table: nothing in it is read as Markdown."""
    plain = " ".join(str(text).split()).replace("`", "'").replace("|", "/")
    return f"`{plain}`" if plain else ""


def fenced(text: str) -> str:
    """Text as a block of code, in a fence that it cannot close."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def shell_word(text: str) -> str:
    import shlex

    return shlex.quote(text)
