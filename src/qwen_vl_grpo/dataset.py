"""Raw rows -> checked samples, each picture decoded and resized once, as a Hugging Face Dataset.

Every fault is found before a model is loaded, and named with its row.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import PIL
import transformers
import trl
from PIL import Image
from transformers import AutoConfig
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from qwen_vl_grpo import __version__, cache, processes, processors, row_clips, sources
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import ConfigError, DataError, PolicyError
from qwen_vl_grpo.interfaces import Clip, Sample, Task
from qwen_vl_grpo.sections import DataSection

log = logging.getLogger("qwen_vl_grpo")

NOT_OF_A_ROW = {"workers", "overlong", "unusable", "subset", "revision", "registry", "filter", "curriculum", "probe"}
"""Keys of `data:` that leave the rows as they are."""
TOO_LONG, UNUSABLE, UNREADABLE = "too long for the context", "unusable", "with an unreadable clip"
"""Why a row is left out."""
AS_CLIPS = "prompt_tokens_as_clips"
"""Column of a prompt's tokens, had its clips not been written as pictures."""
RECORD = ("conversations", "video", "videos", "meta")
"""Columns of a record with clips that the prepared row has in another form."""


@dataclass(frozen=True)
class Report:
    """What became of the rows of one part."""

    name: str
    kept: int
    faults: list[tuple[int | str, str, str]]
    """Number of the row (with its data set, of several), why it is left out (TOO_LONG, UNUSABLE or UNREADABLE), and the whole sentence."""
    folder: Path
    cached: bool
    seconds: float
    remarks: list[tuple[int | str, str]] = field(default_factory=list)
    """Number of a row, called alike, that is kept, and what is odd about it."""

    def __str__(self) -> str:
        """One line for people: kept, and dropped by reason with the first row of each."""
        dropped = ", ".join(
            f"{len(rows)} {reason} (row {rows[0][0]}: {rows[0][2]})"
            for reason in (TOO_LONG, UNUSABLE, UNREADABLE)
            if (rows := [fault for fault in self.faults if fault[1] == reason])
        )
        how = "read from" if self.cached else "prepared into"
        odd = f", {len(self.remarks)} remarks on those kept (row {self.remarks[0][0]}: {self.remarks[0][1]})" if self.remarks else ""
        return f"{self.name}: {self.kept} rows kept, {dropped or '0'} dropped{odd}; {how} {self.folder} in {self.seconds:.1f} s"


def load(config: RunConfig, task: Task, processor: Any, name: str, split: str) -> datasets.Dataset:
    """Read one part of a data set for a policy with this processor, from the cache if it was prepared before.

    Columns: id, prompt (chat), images (list of pictures, resized to what the processor keeps), picture_ids (a hash of each picture
    and clip as it came), answer, prompt_tokens, videos where a row has clips (what row_clips.Clips reads them by), and every further
    column of the raw rows, which the rewards get by name. Raises DataError with the row and what to do, unless data.overlong,
    data.unusable and video.most_unreadable drop such rows.
    """
    rows, report = prepare(config, task, processor, name, split)
    at_fault = refused(report, config)
    if at_fault:
        number, _, what = at_fault[0]
        more = f" ({len(at_fault) - 1} more rows are at fault; `grpo validate` lists them)" if len(at_fault) > 1 else ""
        raise DataError(f"{name}, split {split}, row {number}: {what}{more}")
    if not report.kept:
        raise DataError(f"{name}, split {split}: no row is left to use; check data.overlong, data.unusable and the data set")
    log.info("%s", report)
    if AS_CLIPS in rows.column_names:
        cost, spared = sum(rows["prompt_tokens"]), sum(filter(None, rows[AS_CLIPS]))
        log.info("%s: %d tokens of prompts with clips as pictures; video.mode: video makes it %d", report.name, cost, spared)
    return rows


def prepare(config: RunConfig, task: Task, processor: Any, name: str, split: str) -> tuple[datasets.Dataset, Report]:
    """Check and size every row of one part, or find it in the cache; the rows without fault, and what became of the others."""
    started = time.perf_counter()
    source = _source(name, split, config.data, task)
    entry = cache.folder(_key(config, task, processor, source))
    found = cache.read(entry)
    if not found:
        everything = source.rows()
        raw = _arranged(everything, config.data, task)
        if not raw:
            why = "no row is what data: asks for" if everything else "the data set is empty"
            raise DataError(f"{name}, split {split}: {why}")
        _write(
            entry,
            raw,
            partial(_sample, raw, config, task, processor, context_length(config, processor)),
            config.data.workers,
            split,
            several(config, name),
        )
    rows, said = found or cache.read(entry) or _unreadable(entry)
    faults, remarks = ([tuple(item) for item in said[what]] for what in ("faults", "remarks"))
    return rows, Report(f"{name}, split {split}", len(rows), faults, entry, found is not None, time.perf_counter() - started, remarks)


def _source(name: str, split: str, data: DataSection, task: Task) -> sources.Source:
    subsets = task.subsets(data) if task.subsets else ()
    return sources.find(name, split, data.model_copy(update={"limit": None}) if task.arrange else data, subsets)


def _arranged(raw: sources.Rows, data: DataSection, task: Task) -> list[tuple[int, Mapping[str, Any]]]:
    """The rows as the task reads them, each with its number in the raw data."""
    return list(enumerate(raw)) if task.arrange is None else list(task.arrange(raw, data))[: data.limit]


def several(config: RunConfig, name: str) -> bool:
    """Whether a part consists of several data sets of a registry, so that a row's number does not say where it is from."""
    return config.data.registry is not None and "," in name


def refused(report: Report, config: RunConfig) -> list[tuple[int | str, str, str]]:
    """The faults that the config does not say to drop; unreadable clips are dropped up to their share of the rows."""
    unreadable = sum(why == UNREADABLE for _, why, _ in report.faults)
    few = unreadable <= config.video.most_unreadable * (report.kept + len(report.faults))
    action = {TOO_LONG: config.data.overlong, UNUSABLE: config.data.unusable, UNREADABLE: "drop" if few else "refuse"}
    return [fault for fault in report.faults if action[fault[1]] == "refuse"]


def _unreadable(entry: Path) -> Any:
    raise DataError(f"{entry}: cannot be read back after it was written; is the disk full?")


def _key(config: RunConfig, task: Task, processor: Any, source: sources.Source) -> Any:
    """Everything that the prepared rows depend on; how many processes make them, and what is refused, is not part of it."""
    here = Path(__file__).parent
    own = [Path(config.task.name.rpartition(":")[0])] if ".py:" in config.task.name else []
    code = [
        *(
            here / f"{name}.py"
            for name in ("dataset", "sources", "cache", "knowledge", "row_clips", "video_records", "frame_choice", "footage")
        ),
        *sorted((here / "tasks").glob("*.py")),
        *own,
    ]
    return [
        source.fingerprint,
        config.data.model_dump(exclude=NOT_OF_A_ROW),
        [config.task.name, config.task.system_prompt or task.system_prompt],
        config.video.model_dump(exclude={"most_unreadable"}) | ({"seed": config.seed} if config.video.jitter else {}),
        [config.max_completion_length, context_length(config, processor)],
        [processors.merged_patch(processor) if processors.sees(processor) else None, str(processor.chat_template)],
        hashlib.sha256(processors.tokenizer(processor).backend_tokenizer.to_str().encode()).hexdigest(),
        [hashlib.sha256(path.read_bytes()).hexdigest() for path in code],
        [__version__, transformers.__version__, PIL.__version__, trl.__version__],
    ]


def _write(
    entry: Path, raw: Sequence[tuple[int, Any]], job: Callable[[int], _Prepared], workers: int | None, split: str, several: bool
) -> None:
    samples: sources.Rows = []
    faults: list[tuple[int | str, str, str]] = []
    remarks: list[tuple[int | str, str]] = []
    writer = cache.Writer(entry)
    try:
        made = processes.each(job, len(raw), workers)
        for (place, row), (sample, pictures, reason, odd) in zip(
            raw, processes.progress(made, len(raw), f"preparing {split}"), strict=True
        ):
            number = f"{place} ({row[sources.DATASET]})" if several and sources.DATASET in row else place
            if reason:
                faults.append((number, *reason))
            else:
                samples.append(sample)
                writer.pictures(pictures)
                remarks += [(number, remark) for remark in odd]
        writer.close(_dataset(samples), {"faults": faults, "remarks": remarks})
    except BaseException:
        writer.discard()
        raise


class Pictures(Sequence[Image.Image]):
    """The pictures of one prepared row, decoded each time they are asked for and kept by nobody."""

    def __init__(self, rows: datasets.Dataset, index: int):
        self._rows, self._index = rows.with_format("arrow"), index
        counted: Any = self._rows[index]
        self._count = len(counted["images"][0])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        encoded: Any = self._rows[self._index]
        pictures = encoded["images"].to_pylist()[0][place]
        decode: Any = datasets.Image().decode_example
        return [decode(picture) for picture in pictures] if isinstance(place, slice) else decode(pictures)


def to_sample(row: dict[str, Any]) -> Sample:
    """One row of a prepared data set as a Sample."""
    return Sample(row["id"], row["prompt"], row["images"], row["answer"], row, videos=row_clips.Clips(row.get("videos") or ()))


def to_samples(rows: datasets.Dataset) -> list[Sample]:
    """All rows as Samples whose pictures and clips stay on the disk until they are looked at."""
    others = rows.remove_columns("images")
    made = []
    for index, row in enumerate(others):
        assert isinstance(row, dict)
        made.append(to_sample(row | {"images": Pictures(rows, index)}))
    return made


def fingerprint(dataset: datasets.Dataset) -> str:
    """Hash what the policy is asked: prompts, answers and pictures (as they came), in order."""
    content = hashlib.sha256()
    for row in dataset.select_columns(["prompt", "answer", "picture_ids"]):
        assert isinstance(row, dict)
        content.update(json.dumps([row["prompt"], row["answer"], row["picture_ids"]], sort_keys=True).encode())
    return content.hexdigest()


def prompt_length(processor: Any, prompt: list[dict[str, Any]], images: Sequence[Image.Image], videos: Sequence[Clip] = ()) -> int:
    """Count the tokens of a prompt with its pictures and clips expanded, without computing pixels."""
    text = processors.prompt_text(processor, prompt, images, videos)
    if images or videos:
        text = processors.expanded(processor, text, images, videos)
    return len(processors.tokenizer(processor)(text)["input_ids"])


_Prepared = tuple[dict[str, Any], list[bytes], tuple[str, str] | None, Sequence[str]]
"""A row without its pictures, its pictures encoded, the fault (why, sentence) that leaves it out, and remarks on it."""


def _sample(
    raw: Sequence[tuple[int, Mapping[str, Any]]], config: RunConfig, task: Task, processor: Any, room: int | None, place: int
) -> _Prepared:
    number, row = raw[place]
    try:
        sample = task.read_row(row, config.data, config.task.system_prompt or task.system_prompt)
        if (sample.images or sample.videos) and not processors.sees(processor):
            raise PolicyError(
                f"model_name {config.model_name}: reads text alone, and row {number} of task {task.name} has a "
                f"{'picture' if sample.images else 'clip'}; take a Qwen-VL checkpoint"
            )
        images = [fit(image, processor, config) for image in sample.images]
        files: Sequence[Any] = sample.videos
        ident, patch = sample.id or str(number), processors.merged_patch(processor) if files else 0
        clips, remarks = row_clips.seen(files, config, patch)
        videos = row_clips.told(files, clips, config, patch, ident)
        length = prompt_length(processor, sample.prompt, images, clips)
        as_clips = {}
        if clips and config.video.mode == "frames":
            prompt, pictures = row_clips.as_pictures(replace(sample, images=images), clips)
            sample, videos, images = replace(sample, prompt=prompt), [], [fit(picture, processor, config) for picture in pictures]
            as_clips, length = {AS_CLIPS: length}, prompt_length(processor, prompt, images)
    except row_clips.UnreadableClip as error:
        return {}, [], (UNREADABLE, str(error)), ()
    except DataError as error:
        return {}, [], (UNUSABLE, str(error)), ()
    needed = length + config.max_completion_length
    if room is not None and needed > room:
        return {}, [], (
            TOO_LONG,
            f"prompt and completion need {needed} tokens and the context holds {room}; lower max_completion_length or "
            f"{'video.max_tokens' if clips else 'data.max_pixels'}, raise vllm_max_model_length, or set data.overlong: drop",
        ), ()  # fmt: skip
    shown = {"image", "images", "decoded_image", config.data.columns.get("image"), config.data.columns.get("images"), *RECORD}
    kept = {key: value for key, value in row.items() if not _is_picture(value) and key not in shown}
    made = kept | dict(sample.columns) | as_clips | {
        "id": ident, "prompt": sample.prompt, "answer": sample.answer, "prompt_tokens": length,
        "picture_ids": [*map(_picture_id, sample.images), *(clip.sha256 for clip in clips)],
    }  # fmt: skip
    return made | ({"videos": videos} if videos else {}), [_encoded(image) for image in images], None, [*sample.remarks, *remarks]


def _picture_id(image: Image.Image) -> str:
    """A hash of what a picture shows, whatever file it came in."""
    return hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest()[:32]


def _encoded(image: Image.Image) -> bytes:
    """A picture as PNG; the least compression is five times as fast as the usual one, and nothing is lost."""
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def context_length(config: RunConfig, processor: Any) -> int | None:
    """Tokens that prompt and completion may take together; raises ConfigError for an engine's context that the model does not have.

    vLLM refuses such a context too, minutes later.
    """
    own = min(processors.tokenizer(processor).model_max_length, positions(config.model_name, config.model_revision))
    asked = config.vllm_max_model_length
    if config.use_vllm and asked is not None and asked > own and "hf_overrides" not in config.engine:
        raise ConfigError(f"vllm_max_model_length {asked}: {config.model_name} holds {own} tokens; set it to {own} or less")
    limit = asked or own
    return limit if limit < 10**9 else None


@once
def positions(model_name: str, revision: str | None) -> int:
    """Tokens that the model's config says it can place."""
    return AutoConfig.from_pretrained(model_name, revision=revision).get_text_config().max_position_embeddings


def fit(image: Image.Image, processor: Any, config: RunConfig) -> Image.Image:
    """Resize to the size that the processor would choose, so that it never resizes again; raises DataError."""
    if not processors.sees(processor):
        raise DataError(f"has a picture, and {config.model_name} reads text alone; ask without it")
    merged = processors.merged_patch(processor)
    if max(image.size) > 200 * min(image.size):
        raise DataError(f"a picture of {image.width}x{image.height} is more than 200 times longer than wide; crop it")
    width, height = image.size
    tried: list[tuple[int, int]] = []
    while not tried or tried[-1] != (width, height):  # a sliver shrinks more than once
        if (width, height) in tried:
            raise DataError(
                f"no size for a picture of {image.width}x{image.height} lies between data.min_pixels and data.max_pixels; part them"
            )
        tried.append((width, height))
        height, width = smart_resize(height, width, factor=merged, min_pixels=config.data.min_pixels, max_pixels=config.data.max_pixels)
    return image if (width, height) == image.size else image.resize((width, height), Image.Resampling.BICUBIC)


def _dataset(samples: sources.Rows) -> datasets.Dataset:
    """The rows, without their pictures; a column that mixes types becomes text."""
    columns = {key: [sample.get(key) for sample in samples] for key in dict.fromkeys(key for sample in samples for key in sample)}
    for key, values in columns.items():
        if key != "prompt" and len({type(value) for value in values if value is not None}) > 1:
            columns[key] = [None if value is None else str(value) for value in values]
        elif key != "prompt" and len({type(item) for value in values if isinstance(value, list) for item in value}) > 1:
            columns[key] = [None if value is None else [str(item) for item in value] for value in values]
    return datasets.Dataset.from_dict(columns)


def _is_picture(value: Any) -> bool:
    return isinstance(value, Image.Image) or (isinstance(value, dict) and set(value) == {"bytes", "path"})
