"""Where raw rows come from: a local file, a local folder, or the Hub; and a hash of what is there."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from qwen_vl_grpo import dataset_registry, hub
from qwen_vl_grpo.data_places import LOCAL_SUFFIXES, local
from qwen_vl_grpo.errors import DataError, briefly
from qwen_vl_grpo.sections import DataSection

log = logging.getLogger("qwen_vl_grpo")

Rows = list[dict[str, Any]]
CLIPS = {"video", "videos"}
"""Columns that name clips."""
DATASET = "dataset"
"""Column that says which data set of a registry a row came from."""
SUBSET = "subset"
"""Column that says which configuration of a data set, or which branch of a JSON file, a row came from."""


@dataclass(frozen=True)
class Source:
    """One part of a data set that was found: its content hash, and its rows when they are needed."""

    fingerprint: str
    """Of the bytes of a local file and of the pictures that it names, or the data set library's own of a Hub part."""
    rows: Callable[[], Rows]


def find(name: str, split: str, data: DataSection, subsets: Sequence[str] = (), media_root: Path | None = None) -> Source:
    """Find one part: a file, a folder with one file a split (`<split>.jsonl`, …) or the Hub's shards, else the Hub.

    `subsets` are configurations that are read one after another, from the Hub or from folders of their names, unless `data.subset`
    names one or the folder has the split itself; their rows say which in the column SUBSET. Pictures stay encoded. `data.limit` keeps
    the first rows. With `data.registry`, `name` is a list of its names. Clips and pictures that rows of a file name start in
    `media_root`, or else beside the file. Raises DataError.
    """
    if data.registry is not None:
        return _registered(data.registry, name, split, data, subsets)
    path = Path(name)
    if subsets and not data.subset and (folders := _folders(name, split, subsets)):
        found = [(subset, find(folder, split, data.model_copy(update={"subset": subset}), (), media_root)) for subset, folder in folders]
        return _joined(found, data.limit)
    if path.is_dir():
        files = _in_folder(path, split)
    elif path.is_file():
        files = [path]
    elif local(name):
        raise DataError(f"dataset_name: there is no file or folder {name} here")
    else:
        return _from_hub(name, split, data)
    pictures = {"image", "images", data.columns.get("image"), data.columns.get("images")} - {None}
    if files[0].suffix == ".parquet":
        placed = pictures | CLIPS if media_root else set()
        return Source(_hash(files), lambda: [_placed(row, placed, media_root) for file in files for row in _parquet(file)][: data.limit])
    root = media_root or files[0].parent
    rows = [_placed(row, pictures | CLIPS, root) for row in _lines(files[0])][: data.limit]
    return Source(_hash([*files, *_named(rows, pictures)]) + _stamp(_named(rows, CLIPS)), lambda: rows)


def _registered(registry: str, used: str, split: str, data: DataSection, subsets: Sequence[str]) -> Source:
    plain = data.model_copy(update={"registry": None, "limit": None})
    parts = dataset_registry.located(registry, used)
    found = [(part, find(str(part.annotations), split, plain, subsets, part.media_root)) for part in parts]
    told = [(part.name, part.share, str(part.media_root), source.fingerprint) for part, source in found]

    def rows() -> Rows:
        held = [(part, source.rows()) for part, source in found]
        return [{DATASET: part.name} | raw[row] for part, raw in held if raw for row in part.kept(len(raw))][: data.limit]

    return Source(hashlib.sha256(json.dumps(told).encode()).hexdigest(), rows)


def _named(rows: Rows, columns: set[Any]) -> list[Path]:
    """The files that rows name in these columns, each once."""
    names = (item for row in rows for key in sorted(columns & row.keys()) for item in _listed(row[key]) if isinstance(item, str))
    return [Path(name) for name in dict.fromkeys(names)]


def _stamp(clips: list[Path]) -> str:
    """A hash of sizes and times of change: clips are too large to be read each time, and are remembered by these (footage.py)."""
    states = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else (str(path),) for path in clips]
    return hashlib.sha256(json.dumps(states).encode()).hexdigest() if clips else ""


def _folders(name: str, split: str, subsets: Sequence[str]) -> list[tuple[str, str]]:
    """Each subset and where it is found: its folder in a local one, or the Hub id itself; none for data that is not in subsets."""
    folder = Path(name)
    if not folder.is_dir():
        return [] if local(name) else [(subset, name) for subset in subsets]
    there = [] if _files(folder, split) else [(subset, str(folder / subset)) for subset in subsets if (folder / subset).is_dir()]
    if 0 < len(there) < len(subsets):
        log.info("%s: %d of the %d configurations that are asked for are there", name, len(there), len(subsets))
    return there


def _joined(found: Sequence[tuple[str, Source]], limit: int | None) -> Source:
    fingerprint = hashlib.sha256(json.dumps([(subset, source.fingerprint) for subset, source in found]).encode()).hexdigest()
    return Source(fingerprint, lambda: [row | {SUBSET: subset} for subset, source in found for row in source.rows()][:limit])


def _in_folder(folder: Path, split: str) -> list[Path]:
    if files := _files(folder, split):
        return files
    there = [path for path in [*folder.iterdir(), *folder.glob("data/*")] if path.suffix in LOCAL_SUFFIXES]
    names = ", ".join(sorted({path.stem.partition("-0")[0] for path in there})) or "none"
    raise DataError(
        f"{folder}: no split {split!r} (looked for {', '.join(split + suffix for suffix in LOCAL_SUFFIXES)}); splits there: {names}"
    )


def _files(folder: Path, split: str) -> list[Path]:
    """The file of a split, or its shards in a data set repository as it lies on the Hub; none if it is not there."""
    for suffix in LOCAL_SUFFIXES:
        if (folder / f"{split}{suffix}").is_file():
            return [folder / f"{split}{suffix}"]
    return sorted([*folder.glob(f"{split}-*-of-*.parquet"), *folder.glob(f"data/{split}-*-of-*.parquet")])


def _hash(files: list[Path]) -> str:
    content = hashlib.sha256()
    for path in files:
        if path.is_file():
            with path.open("rb") as file:
                content.update(hashlib.file_digest(file, "sha256").digest())
        else:
            content.update(b"missing")
    return content.hexdigest()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a text file: JSON Lines, JSON, CSV with a header, or a prompt a line."""
    encoded = path.read_bytes()
    try:
        text = encoded.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = encoded.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}: line {number} is not UTF-8 text ({error.reason}); save the file as UTF-8") from None
    read = {".csv": _csv, ".txt": _prompts, ".json": _json}.get(path.suffix, _json_lines)
    yield from read(path, text)


def _prompts(path: Path, text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if any(ord(sign) < 32 and sign != "\t" for sign in line):
            raise DataError(f"{path}: line {number} holds control characters ({line.strip()[:40]!r}); each line is one prompt")
        yield {"prompt": line.strip()}


def _csv(path: Path, text: str) -> Iterator[dict[str, Any]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise DataError(f"{path}: line {reader.line_num} has {'more' if None in row else 'fewer'} fields than the header")
            yield {str(key): value for key, value in row.items()}
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.reader.line_num} is not CSV ({error})") from None


def _json(path: Path, text: str) -> Iterator[dict[str, Any]]:
    """The rows of one JSON value: a list of objects, or objects of such lists, whose names then stand in the column SUBSET."""
    try:
        held = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: line {error.lineno} is not JSON ({error.msg})") from None
    yield from _branch(path, held, "")


def _branch(path: Path, held: Any, name: str) -> Iterator[dict[str, Any]]:
    if isinstance(held, dict):
        for key, inner in held.items():
            yield from _branch(path, inner, f"{name}/{key}".lstrip("/"))
        return
    if not isinstance(held, list) or not all(isinstance(row, dict) for row in held):
        raise DataError(f"{path}: {name or 'it'} holds {type(held).__name__}; rows are a list of JSON objects, or objects of such lists")
    yield from ({SUBSET: name} | row if name else row for row in held)


def _json_lines(path: Path, text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}: line {number} is not JSON ({error.msg}); each line is one row") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}: line {number} holds {type(row).__name__}; each line is one row, a JSON object")
        yield row


def _placed(row: dict[str, Any], columns: set[Any], root: Path | None) -> dict[str, Any]:
    """A row whose pictures and clips are named from a folder, which the paths of these columns start in."""
    return {key: _under(root, value) if root and key in columns else value for key, value in row.items()}


def _under(root: Path, value: Any) -> Any:
    if isinstance(value, list):
        return [_under(root, item) for item in value]
    return str(root / value) if isinstance(value, str) else value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _parquet(path: Path) -> Rows:
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error})") from None


def _from_hub(name: str, split: str, data: DataSection) -> Source:
    try:
        dataset = datasets.load_dataset(name, data.subset, split=split, revision=data.revision)
    except Exception as error:  # the library raises a dozen kinds, and each is the user's to mend
        reason = hub.denied(error, f"datasets/{name}") or briefly(error)
        raise DataError(f"dataset_name {name}, split {split}: cannot be loaded from the Hub ({reason})") from None
    assert isinstance(dataset, datasets.Dataset)
    return from_dataset(dataset, data)


def from_dataset(dataset: datasets.Dataset, data: DataSection) -> Source:
    """The part that the data set library holds, its pictures still encoded."""
    first = dataset if data.limit is None else dataset.select(range(min(data.limit, len(dataset))))
    table: Any = first.with_format("arrow")
    return Source(dataset._fingerprint, lambda: table[:].to_pylist())
