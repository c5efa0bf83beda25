"""An evaluation in the formats of lmms-eval and VLMEvalKit, so that what they compare and draw can be used on it.

Greedy answers alone are handed on, as those programs ask once. Formats: lmms-eval 0.7.3 (loggers/evaluation_tracker.py, and what
`--baseline` reads); VLMEvalKit, commit e8e78f0 (docs/en/Development.md, smp/file.py, dataset/utils/mathvista.py).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qwen_vl_grpo import answers, index, item_scores
from qwen_vl_grpo.interfaces import Sample
from qwen_vl_grpo.journal import Record
from qwen_vl_grpo.report.evaluated import who
from qwen_vl_grpo.scoring import Evaluated

TASK = "grpo_run"
"""What the task is called; evaluation/lmms_eval/grpo_run.yaml, too."""
SHOWN = {"correct": "score", "format": "format", "official": "official", "quality": "quality"}
"""Our measure -> lmms-eval's; it compares runs by `score`."""


def lmms_eval(done: Evaluated) -> Path:
    """Write NAME_results.json and NAME_samples_grpo_run.jsonl; returns the second, which `lmms_eval --baseline` takes."""
    result, folder = done.result, done.folder / "lmms_eval"
    how = result["protocol"]["generation"]
    measured = result["scores"]["greedy"]["measures"]
    scores: dict[str, Any] = {"alias": TASK}
    for name, score in measured.items():
        low, high = score["interval"]
        metric = SHOWN.get(name, name)
        scores |= {f"{metric},none": score["mean"], f"{metric}_stderr,none": (high - low) / (2 * 1.96)}
    rows = result["protocol"]["rows"]
    config = {"task": TASK, "dataset_path": rows["dataset"], "test_split": rows["split"], "output_type": "generate_until", "num_fewshot": 0}
    told = {
        "results": {TASK: scores}, "group_subtasks": {TASK: []}, "configs": {TASK: config | {"generation_kwargs": how}},
        "versions": {TASK: result["digest"][:12]}, "n-shot": {TASK: 0},
        "higher_is_better": {TASK: {SHOWN.get(name, name): True for name in measured}},
        "n-samples": {TASK: {"original": rows["count"], "effective": rows["count"]}},
        "config": {"model": who(result), "model_args": result["subject"], "batch_size": how["batch_size"], "limit": None},
        "git_hash": result["git"]["commit"], "date": result["time"], "model_name": who(result), "protocol": result["protocol"],
    }  # fmt: skip
    name = result["time"].replace(":", "-")
    index.replace(folder / f"{name}_results.json", json.dumps(told, indent=2, ensure_ascii=False) + "\n")
    lines = [json.dumps(_sample(record, done.samples[record["place"]]), ensure_ascii=False) + "\n" for record in _greedy(done)]
    index.replace(folder / f"{name}_samples_{TASK}.jsonl", "".join(lines))
    return folder / f"{name}_samples_{TASK}.jsonl"


def vlmevalkit(done: Evaluated) -> Path:
    """Write the benchmark as grpo_run.tsv with its pictures, and MODEL_grpo_run.tsv with the predictions; returns the second.

    The columns are MathVista's of that program. With PRED_FORMAT=tsv its MathVista class scores the second file.
    """
    folder, records = done.folder / "vlmevalkit", _greedy(done)
    rows = [_row(record, done.samples[record["place"]]) for record in records]
    pictures = [{"image": _pictures(done.samples[record["place"]])} for record in records]
    index.replace(folder / f"{TASK}.tsv", _table([row | picture for row, picture in zip(rows, pictures, strict=True)]))
    predicted = [row | {"prediction": answers.parts(record["completion"])[1]} for row, record in zip(rows, records, strict=True)]
    model = who(done.result).strip("/").replace("/", "_")
    index.replace(folder / f"{model}_{TASK}.tsv", _table(predicted))
    return folder / f"{model}_{TASK}.tsv"


FORMS: dict[str, Callable[[Evaluated], Path]] = {"lmms_eval": lmms_eval, "vlmevalkit": vlmevalkit}
"""Name -> what writes an evaluation in that form and says where."""


def _greedy(done: Evaluated) -> list[Record]:
    return item_scores.by_kind(done.records)["greedy"]


def _sample(record: Record, sample: Sample) -> dict[str, Any]:
    said = {metric: float(record[name]) for name, metric in SHOWN.items() if record[name] is not None}
    asked = _question(sample)
    return {
        "doc_id": record["place"], "target": sample.answer, "filtered_resps": record["completion"], "input": asked,
        "doc_hash": hashlib.sha256(json.dumps([record["id"], asked, sample.answer]).encode()).hexdigest(), "id": record["id"],
        "token_counts": [{"output_tokens": record["completion_tokens"]}],
    } | said  # fmt: skip


def _row(record: Record, sample: Sample) -> dict[str, Any]:
    columns = sample.columns
    metadata = columns.get("metadata")
    known: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else columns
    choices = list(columns.get("choices") or [])
    return {
        "index": record["place"], "id": record["id"], "question": _question(sample), "answer": sample.answer,
        "answer_option": chr(ord("A") + choices.index(sample.answer)) if sample.answer in choices else "",
        "question_type": columns.get("question_type") or "free_form", "answer_type": columns.get("answer_type") or "text",
        "choices": choices, "task": known.get("task") or known.get("kind") or "all", "skills": list(known.get("skills") or ["all"]),
        "category": known.get("category") or known.get("kind") or "all",
    }  # fmt: skip


def _question(sample: Sample) -> str:
    """What the user's turns say; the places of pictures are left out."""
    turns = [turn["content"] for turn in sample.prompt if turn["role"] == "user"]
    parts = [[{"type": "text", "text": turn}] if isinstance(turn, str) else turn for turn in turns]
    return "\n".join(part["text"] for turn in parts for part in turn if part["type"] == "text")


def _pictures(sample: Sample) -> Any:
    """A picture in base64, a list of several, nothing for none."""
    encoded = []
    for image in sample.images:
        file = io.BytesIO()
        image.save(file, "PNG")
        encoded.append(base64.b64encode(file.getvalue()).decode())
    return encoded[0] if len(encoded) == 1 else encoded or ""


def _table(rows: list[dict[str, Any]]) -> str:
    file = io.StringIO()
    table = csv.DictWriter(file, list(rows[0]), delimiter="\t", quoting=csv.QUOTE_ALL)
    table.writeheader()
    table.writerows(rows)
    return file.getvalue()
