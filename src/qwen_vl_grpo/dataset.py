"""Raw rows -> checked samples, each picture decoded and resized once, as a Hugging Face Dataset.

Every fault is found before a model is loaded, and named with its row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import datasets
from PIL import Image
from transformers import AutoConfig
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from trl.data_utils import prepare_multimodal_messages

from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import ConfigError, DataError
from qwen_vl_grpo.interfaces import Sample, Task

Rows = list[dict[str, Any]]
LOCAL_SUFFIXES = (".jsonl", ".parquet")


def load(config: RunConfig, task: Task, processor: Any, name: str, split: str) -> datasets.Dataset:
    """Read one part of a data set for a policy with this processor.

    Columns: id, prompt (chat), images (list of pictures, resized to what the processor keeps), answer, prompt_tokens, and every further
    column of the raw rows, which the rewards get by name. Raises DataError with the row and what to do.
    """
    pictures = {"image", "images", config.data.columns.get("image"), config.data.columns.get("images")} - {None}
    rows = raw_rows(name, split, config.data.limit, pictures)
    samples = [
        sample
        for row in _progress(list(enumerate(rows)), f"preparing {split}")
        if (sample := _sample(row, config, task, processor, name, split))
    ]
    if not samples:
        raise DataError(f"{name}, split {split}: no row is left to use; check data.overlong and the data set")
    return _dataset(samples)


def to_sample(row: dict[str, Any]) -> Sample:
    """One row of a prepared data set as a Sample."""
    return Sample(row["id"], row["prompt"], row["images"], row["answer"], row)


def fingerprint(dataset: datasets.Dataset) -> str:
    """Hash what the policy is asked: prompts, answers and decoded pictures, in order."""
    content = hashlib.sha256()
    for row in dataset:
        assert isinstance(row, dict)
        content.update(json.dumps([row["prompt"], row["answer"]], sort_keys=True).encode())
        for image in row["images"]:
            content.update(image.tobytes())
    return content.hexdigest()


def prompt_length(processor: Any, prompt: list[dict[str, Any]], images: list[Image.Image]) -> int:
    """Count the tokens of a prompt with its pictures expanded, without computing pixels."""
    text = processor.apply_chat_template(prepare_multimodal_messages(prompt, images=images), tokenize=False, add_generation_prompt=True)
    merged = processor.image_processor.patch_size * processor.image_processor.merge_size
    vision = sum((image.width // merged) * (image.height // merged) for image in images)
    return len(processor.tokenizer(text)["input_ids"]) - len(images) + vision


def raw_rows(name: str, split: str, limit: int | None = None, pictures: Any = ("image", "images")) -> Rows:
    """The rows as they are: from a local file or folder, else from the Hub. Raises DataError."""
    path = Path(name)
    if path.is_dir():
        found = [path / f"{split}{suffix}" for suffix in LOCAL_SUFFIXES if (path / f"{split}{suffix}").is_file()]
        if not found:
            there = ", ".join(sorted(p.stem for p in path.iterdir() if p.suffix in LOCAL_SUFFIXES)) or "none"
            raise DataError(f"{name}: no split {split!r} (looked for {split}.jsonl and {split}.parquet); splits there: {there}")
        path = found[0]
    if path.is_file():
        rows = _parquet(path) if path.suffix == ".parquet" else list(_json_lines(path, pictures))
    elif path.is_absolute() or name.startswith(".") or name.count("/") > 1 or path.suffix in LOCAL_SUFFIXES:
        raise DataError(f"dataset_name: there is no file or folder {name} here")
    else:
        rows = _from_hub(name, split)
    if not rows:
        raise DataError(f"{name}, split {split}: the data set is empty")
    return rows[:limit]


def _sample(
    numbered: tuple[int, dict[str, Any]], config: RunConfig, task: Task, processor: Any, name: str, split: str
) -> dict[str, Any] | None:
    number, row = numbered
    where = f"{name}, split {split}, row {number}"
    try:
        sample = task.read_row(row, config.data, config.task.system_prompt or task.system_prompt)
        images = [fit(image, processor, config) for image in sample.images]
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    room = context_length(config, processor)
    length = prompt_length(processor, sample.prompt, images)
    needed = length + config.max_completion_length
    if room is not None and needed > room:
        if config.data.overlong == "drop":
            return None
        raise DataError(
            f"{where}: prompt and completion need {needed} tokens and the context holds {room}; lower max_completion_length or "
            "data.max_pixels, raise vllm_max_model_length, or set data.overlong: drop"
        )
    kept = {key: value for key, value in row.items() if not _is_picture(value) and key not in ("image", "images", "decoded_image")}
    return kept | dict(sample.columns) | {
        "id": sample.id or str(number), "prompt": sample.prompt, "images": images, "answer": sample.answer,
        "prompt_tokens": length,
    }  # fmt: skip


def context_length(config: RunConfig, processor: Any) -> int | None:
    """Tokens that prompt and completion may take together; raises ConfigError for an engine's context that the model does not have.

    vLLM refuses such a context too, minutes later.
    """
    own = min(processor.tokenizer.model_max_length, positions(config.model_name, config.model_revision))
    asked = config.vllm_max_model_length
    if config.use_vllm and asked is not None and asked > own and "hf_overrides" not in config.engine:
        raise ConfigError(f"vllm_max_model_length {asked}: {config.model_name} holds {own} tokens; set it to {own} or less")
    limit = asked or own
    return limit if limit < 10**9 else None


@cache
def positions(model_name: str, revision: str | None) -> int:
    """Tokens that the model's config says it can place."""
    return AutoConfig.from_pretrained(model_name, revision=revision).get_text_config().max_position_embeddings


def fit(image: Image.Image, processor: Any, config: RunConfig) -> Image.Image:
    """Resize to the size that the processor would choose, so that it never resizes again."""
    merged = processor.image_processor.patch_size * processor.image_processor.merge_size
    if max(image.size) > 200 * min(image.size):
        raise DataError(f"a picture of {image.width}x{image.height} is more than 200 times longer than wide; crop it")
    width, height = image.size
    chosen = None
    while chosen != (width, height):  # a sliver shrinks more than once
        chosen = (width, height)
        height, width = smart_resize(height, width, factor=merged, min_pixels=config.data.min_pixels, max_pixels=config.data.max_pixels)
    return image if (width, height) == image.size else image.resize((width, height), Image.Resampling.BICUBIC)


def _dataset(samples: Rows) -> datasets.Dataset:
    columns = {key: [sample.get(key) for sample in samples] for key in {key for sample in samples for key in sample}}
    for key, values in columns.items():
        if key not in ("prompt", "images") and len({type(value) for value in values if value is not None}) > 1:
            columns[key] = [None if value is None else str(value) for value in values]
        elif key not in ("prompt", "images") and len({type(item) for value in values if isinstance(value, list) for item in value}) > 1:
            columns[key] = [None if value is None else [str(item) for item in value] for value in values]
    features = datasets.Dataset.from_dict({key: values for key, values in columns.items() if key != "images"}).features
    features["images"] = datasets.List(datasets.Image())
    return datasets.Dataset.from_dict(columns, features=features)


def _json_lines(path: Path, pictures: Any) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text ({error.reason}); save it as UTF-8 JSON Lines") from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}: line {number} is not JSON ({error.msg}); each line is one row") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}: line {number} holds {type(row).__name__}; each line is one row, a JSON object")
        yield {key: _beside(path, value) if key in pictures else value for key, value in row.items()}


def _beside(path: Path, value: Any) -> Any:
    """Picture paths in a file are read from the file's own folder."""
    if isinstance(value, list):
        return [_beside(path, item) for item in value]
    return str(path.parent / value) if isinstance(value, str) else value


def _parquet(path: Path) -> Rows:
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error})") from None


def _from_hub(name: str, split: str) -> Rows:
    try:
        dataset = datasets.load_dataset(name, split=split)
    except Exception as error:  # the library raises a dozen kinds, and each is the user's to mend
        raise DataError(
            f"dataset_name {name}, split {split}: cannot be loaded from the Hub ({' '.join(str(error).split())[:200]})"
        ) from None
    assert isinstance(dataset, datasets.Dataset)
    for key, feature in dataset.features.items():
        if isinstance(feature, datasets.Image):
            dataset = dataset.cast_column(key, datasets.Image(decode=False))
    return dataset.to_list()


def _is_picture(value: Any) -> bool:
    return isinstance(value, Image.Image) or (isinstance(value, dict) and set(value) == {"bytes", "path"})


def _progress(items: Rows | list[Any], what: str) -> Iterator[Any]:
    from rich.progress import track

    return iter(track(items, what, disable=len(items) < 500, transient=True))
