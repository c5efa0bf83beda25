"""Prepared rows on disk: one folder a content hash, whole or not there, and checked by its own hashes when it is read.

Pictures are appended while they are made and mapped into memory when they are read, so neither needs memory for all of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets
import pyarrow

from qwen_vl_grpo import registry
from qwen_vl_grpo.checkpoints import sha256

PICTURES = pyarrow.schema([("images", pyarrow.list_(pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])))])


def folder(key: Any) -> Path:
    """Where the rows with this key (anything that JSON can hold) lie."""
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    return registry.home() / "prepared" / name


def read(entry: Path) -> tuple[datasets.Dataset, dict[str, Any]] | None:
    """The rows of an entry and what was written beside them; None if it is not there, or not as it was written."""
    try:
        about = json.loads((entry / "about.json").read_text(encoding="utf-8"))
        if any(sha256(entry / name) != expected for name, expected in about["files"].items()):
            return None
        rows, pictures = (_mapped(entry / name) for name in ("rows.arrow", "pictures.arrow"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # pyarrow's errors are OSError and ValueError too
        return None
    features = datasets.Features.from_arrow_schema(rows.schema)
    features["images"] = datasets.List(datasets.Image())
    table = rows.append_column("images", pictures["images"]).replace_schema_metadata(None)
    info = datasets.DatasetInfo(features=features)
    return datasets.Dataset(table, info=info, fingerprint=entry.name), about["said"]  # left to itself it hashes every byte again


class Writer:
    """Write one entry aside and put it in place in one step: `pictures` of one row after the other, then `close`."""

    def __init__(self, entry: Path):
        self.entry = entry
        entry.parent.mkdir(parents=True, exist_ok=True)
        self.aside = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=entry.parent))
        self._pictures = pyarrow.ipc.new_stream(str(self.aside / "pictures.arrow"), PICTURES)

    def pictures(self, encoded: Iterable[bytes]) -> None:
        """Append the encoded pictures of one row."""
        batch = pyarrow.array([[{"bytes": picture, "path": None} for picture in encoded]], PICTURES.field("images").type)
        self._pictures.write_batch(pyarrow.record_batch([batch], schema=PICTURES))

    def close(self, rows: datasets.Dataset, said: dict[str, Any]) -> None:
        """Write the other columns and what is to be said of them; an entry that is there (broken, or another's) is replaced."""
        self._pictures.close()
        table = rows.data.table
        with pyarrow.ipc.new_stream(str(self.aside / "rows.arrow"), table.schema) as stream:
            stream.write_table(table)
        files = {name: sha256(self.aside / name) for name in ("rows.arrow", "pictures.arrow")}
        (self.aside / "about.json").write_text(json.dumps({"files": files, "said": said}), encoding="utf-8")
        for path in self.aside.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        old = self.aside.with_name(f"{self.aside.name}-old")
        if self.entry.exists():
            self.entry.rename(old)
        try:
            self.aside.rename(self.entry)
        except OSError:  # another process was faster, and its rows are the same
            self.discard()
        shutil.rmtree(old, ignore_errors=True)

    def discard(self) -> None:
        """Forget what was written."""
        shutil.rmtree(self.aside, ignore_errors=True)


def _mapped(path: Path) -> pyarrow.Table:
    return pyarrow.ipc.open_stream(pyarrow.memory_map(str(path))).read_all()
