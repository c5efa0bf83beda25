"""The answers of one batch as they come: a file that a kill at any moment neither repeats nor loses an answer of.

The journal lies under outputs/inference/ and is the only truth: one record a line, flushed when its answer is there. What --output
names is made from it, again from its beginning at every start.
"""

from __future__ import annotations

import calendar
import fcntl
import hashlib
import json
import re
import time
from collections.abc import Collection, Container, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from qwen_vl_grpo import index
from qwen_vl_grpo.errors import DataError

PROMPTS = "prompts.jsonl"
"""Where single questions are kept."""
Record = dict[str, Any]
Key = tuple[str, str, str, str]
"""run_id, sha of its weights, id of the item, hash of everything that was asked."""


def folder() -> Path:
    return index.home() / "inference"


def name_for(source: str) -> str:
    """The journal's name for an input: the same file, wherever it is called from, continues the same journal."""
    path = Path(source).resolve()
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '-', path.stem)[:60]}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}.jsonl"


def keep(name: str, records: list[Record]) -> None:
    """Add records to a file that many processes add to and nobody continues."""
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / name).open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("".join(json.dumps(record) + "\n" for record in records))


def answers_of(runs: Container[tuple[str, str]], shas: Collection[str]) -> Iterator[tuple[str, Record]]:
    """The name of the journal and the record of every answer that some runs gave to files of questions, in the order they came.

    `runs` are pairs of run_id and sha, `shas` the second of each. Lines that cannot be read are passed over.
    """
    for path in sorted(folder().glob("*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file if path.name != PROMPTS else ():
                if not any(sha in line for sha in shas):  # a journal may be long, and most of it other runs'
                    continue
                with suppress(ValueError, KeyError, TypeError):
                    record = json.loads(line)
                    if (record["run_id"], record["sha"]) in runs and not record["error"]:
                        yield path.stem, record


def key(record: Record) -> Key:
    return record["run_id"], record["sha"], record["item"], record["asked"]


def undrawn(record: Record) -> str | None:
    """Why an answer that was to be drawn has no picture; None where it has one, or was not to be drawn."""
    return record.get("picture", {}).get("error")


class Journal:
    """One journal, held by one process; raises DataError if another holds it, or if `output` is a file with something else in it."""

    def __init__(self, path: Path, output: Path | None = None, openai: bool = False):
        self.path, self._output_path, self._openai = path, output, openai
        self._output: Any = None

    def __enter__(self) -> Journal:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise DataError(f"{self.path}: another process is answering this input now; wait for it") from None
        self.records = self._whole()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for file in filter(None, (self._file, self._output)):
            with suppress(OSError):  # what a full disk did not take was told by `add`
                file.close()

    def _whole(self) -> list[Record]:
        """The records that are there whole; half a line that a kill left at the end is cut off."""
        self._file.seek(0)
        content = self._file.read()
        records, end = [], 0
        for line in content.splitlines(keepends=True):
            try:
                records.append(json.loads(line))
            except ValueError:
                if end + len(line) < len(content):
                    raise DataError(f"{self.path}: line {len(records) + 1} is broken; move the file away to begin anew") from None
                break
            if not line.endswith(b"\n"):
                records.pop()
                break
            end += len(line)
        self._file.truncate(end)
        return records

    def answered(self, retry_errors: bool) -> set[Key]:
        return {key(record) for record in self.records if not (retry_errors and (record["error"] or undrawn(record)))}

    def begin_output(self, wanted: set[Key]) -> None:
        """Write --output again from the records that are wanted, the last of each; from then on `add` writes to it too."""
        if self._output_path is None:
            return
        known = {self._line(record) for record in self.records}
        if self._output_path.exists():
            *whole, rest = self._output_path.read_text(encoding="utf-8", errors="replace").split("\n")
            if not {line + "\n" for line in whole} <= known or not any(line.startswith(rest) for line in known | {""}):
                raise DataError(f"--output {self._output_path}: holds something else than answers to this input; name another file")
        latest = {key(record): record for record in self.records if key(record) in wanted}
        index.replace(self._output_path, "".join(self._line(record) for record in latest.values()))
        self._output = self._output_path.open("ab")

    def add(self, record: Record) -> None:
        """Write a record to the journal and to --output; raises DataError if the disk does not take it."""
        self.records.append(record)
        for path, file, line in ((self.path, self._file, json.dumps(record) + "\n"), (self._output_path, self._output, self._line(record))):
            try:
                if file:
                    file.write(line.encode())
                    file.flush()
            except OSError as error:
                raise DataError(
                    f"{path}: cannot be written ({error.strerror}); the answers before are kept: make room and start the command again"
                ) from None

    def _line(self, record: Record) -> str:
        return json.dumps(openai_line(record) if self._openai else record) + "\n"


def openai_line(record: Record) -> Record:
    """A record as a line of OpenAI's batch output (https://platform.openai.com/docs/guides/batch); `model` is the run."""
    name = hashlib.sha256(repr(key(record)).encode()).hexdigest()[:24]
    line = {"id": f"batch_req_{name}", "custom_id": record["item"], "response": None, "error": None}
    if record["error"]:
        return line | {"error": {"code": "invalid_request", "message": record["error"]}}
    tokens = record["prompt_tokens"], record["completion_tokens"]
    body = {
        "id": f"chatcmpl-{name}", "object": "chat.completion", "model": record["run_id"],
        "created": calendar.timegm(time.strptime(record["time"][:19], "%Y-%m-%dT%H:%M:%S")),
        "choices": [{
            "index": 0, "message": {"role": "assistant", "content": record["completion"]}, "logprobs": None,
            "finish_reason": record["finish_reason"],
        }],
        "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)},
    }  # fmt: skip
    return line | {"response": {"status_code": 200, "request_id": name, "body": body}}
