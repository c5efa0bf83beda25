"""What a person asks, one Item a question: from JSONL, CSV, a folder of pictures, or OpenAI's batch format.

One line of JSONL, or one row of CSV with the same columns (several pictures are parted by `;` there):

    {"id": "7", "prompt": "What is the slope?", "images": ["charts/7.png", "https://example.com/7b.png"]}

`id` may be left out (the line's number is taken), `image`, `image_path` and `image_paths` are `images` by other names, `question` is
`prompt`, and --prompt asks where a row asks nothing. Clips are named in the same way under `videos`, `video` or `video_path`. Paths are
taken from the folder of the file. OpenAI's batch format is described at https://platform.openai.com/docs/guides/batch; `model` is not
read, since --run_id says who answers, and a clip is a `video_url` part, as vLLM has it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import Message
from qwen_vl_grpo.video_records import VideoFile

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif")
PROMPT, IMAGES = ("prompt", "question"), ("images", "image", "image_path", "image_paths")
VIDEOS = ("videos", "video", "video_path")
BODY = ("model", "messages", "max_tokens", "max_completion_tokens", "temperature", "stream", "n", "user", "metadata")


@dataclass(frozen=True)
class Item:
    """One question; `error` says why it cannot be asked, and the rest is then empty."""

    id: str
    messages: list[Message] = field(default_factory=list)
    """The chat without the system prompt, unless it brings its own; content is text, or parts of the types text, image and video."""
    images: list[str] = field(default_factory=list)
    """Where its pictures lie: paths, URLs, data: URLs; in the order of the chat."""
    folder: Path = Path()
    max_new_tokens: int | None = None
    temperature: float | None = None
    error: str | None = None
    opened: list[Any] | None = None
    """Its pictures, where they were opened before a model was loaded."""
    videos: list[str] = field(default_factory=list)
    """Where its clips lie, as its pictures; each run sees them by its own choice of frames."""
    clips: list[VideoFile] | None = None
    """Its clips, where they were fetched before a model was loaded."""

    @property
    def prompt(self) -> str:
        """The last question as text, for showing."""
        content = self.messages[-1]["content"] if self.messages else ""
        return content if isinstance(content, str) else " ".join(part["text"] for part in content if part["type"] == "text")


@dataclass(frozen=True)
class Batch:
    items: list[Item]
    openai: bool = False
    """In OpenAI's batch format, so that the answers leave in it too."""


def read(source: str, prompt: str | None) -> Batch:
    """Read all questions; a row at fault becomes an Item with an error. Raises DataError if there is nothing to read at all."""
    path = Path(source)
    if path.is_dir():
        batch = Batch(list(_folder(path, prompt)))
    elif not path.is_file():
        raise DataError(f"--input {source}: there is no such file or folder")
    else:
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"--input {source}: cannot be read as UTF-8 text ({error})") from None
        is_csv = path.suffix.lower() == ".csv"
        batch = Batch(list(_csv(text, prompt, path.parent))) if is_csv else _lines(text, prompt, path.parent)
    if not batch.items:
        raise DataError(f"--input {source}: holds no question")
    return replace(batch, items=_distinct(batch.items))


def _folder(folder: Path, prompt: str | None) -> Iterator[Item]:
    for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES):
        name = path.relative_to(folder).as_posix()
        yield _item(name, {"prompt": prompt, "images": [name]}, None, folder)


def _csv(text: str, prompt: str | None, folder: Path) -> Iterator[Item]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            cells = {key: value for key, value in row.items() if isinstance(key, str) and value}
            for name in (*IMAGES, *VIDEOS):
                if name in cells:
                    cells[name] = [part.strip() for part in cells[name].split(";")]
            yield _item(str(reader.line_num), cells, prompt, folder)
    except csv.Error as error:
        yield Item(f"line {reader.line_num}", error=f"is no CSV from here on ({error})")


def _lines(text: str, prompt: str | None, folder: Path) -> Batch:
    items, openai = [], False
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("it is no object")
        except (ValueError, RecursionError) as error:
            items.append(Item(f"line {number}", error=f"line {number} is no JSON object ({error})"))
            continue
        openai = openai or "custom_id" in row
        items.append(_openai(str(number), row, folder) if "custom_id" in row else _item(str(number), row, prompt, folder))
    return Batch(items, openai)


def _item(number: str, row: Mapping[str, Any], prompt: str | None, folder: Path) -> Item:
    name = row.get("id")
    item_id = number if name is None else str(name)
    asked = next((row[key] for key in PROMPT if row.get(key)), prompt)
    if not isinstance(asked, str) or not asked.strip():
        return Item(item_id, error="asks nothing: it has no text under `prompt`, and there is no --prompt")
    named = []
    for kind, keys in (("pictures", IMAGES), ("clips", VIDEOS)):
        sources = next((row[key] for key in keys if row.get(key)), [])
        sources = [sources] if isinstance(sources, str) else sources
        if not isinstance(sources, list) or not all(isinstance(source, str) and source for source in sources):
            return Item(item_id, error=f"its {kind} are no paths or URLs")
        named.append(sources)
    images, videos = named
    return Item(item_id, [{"role": "user", "content": asked}], images, folder, videos=videos)


def _openai(number: str, row: Mapping[str, Any], folder: Path) -> Item:
    item_id = str(row["custom_id"] or f"line {number}")
    body = row.get("body")
    try:
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
            raise DataError("its body has no messages")
        for key, value in body.items():
            if key not in BODY or (key == "n" and value != 1) or (key == "stream" and value):
                raise DataError(f"its body asks for {key} = {json.dumps(value)[:60]}, which is not done here")
        shown: dict[str, list[str]] = {"image": [], "video": []}
        messages = [_message(message, shown) for message in body["messages"]]
        longest = body.get("max_completion_tokens", body.get("max_tokens"))
        temperature = body.get("temperature")
        if longest is not None and (not isinstance(longest, int) or longest < 1):
            raise DataError(f"its max_tokens is {longest!r}; it is a number from 1")
        if temperature is not None and (isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or temperature < 0):
            raise DataError(f"its temperature is {temperature!r}; it is a number from 0")
    except DataError as error:
        return Item(item_id, error=str(error))
    return Item(item_id, messages, shown["image"], folder, longest, temperature, videos=shown["video"])


def _message(message: Any, shown: dict[str, list[str]]) -> Message:
    """One message with `image_url` and `video_url` parts turned into places for pictures and clips; their URLs are added to `shown`."""
    if not isinstance(message, dict) or message.get("role") not in ("system", "user", "assistant"):
        raise DataError("one of its messages is by nobody known; roles are system, user and assistant")
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise DataError("one of its messages has no content")
    parts = []
    for part in content:
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
            parts.append({"type": "text", "text": part["text"]})
        elif isinstance(part, dict) and part.get("type") in ("image_url", "video_url") and message["role"] == "user":
            url = part.get(part["type"])
            url = url.get("url") if isinstance(url, dict) else url
            if not isinstance(url, str) or not url.lower().startswith(("http://", "https://", "data:")):
                raise DataError(f"one of its {part['type']} parts is no http, https or data: URL")
            kind = part["type"].removesuffix("_url")
            shown[kind].append(url)
            parts.append({"type": kind})
        else:
            raise DataError("one of its parts is neither text nor a user's image_url or video_url")
    return {"role": message["role"], "content": parts}


def _distinct(items: list[Item]) -> list[Item]:
    """Two questions of one id would be one to the answers, so the second is at fault."""
    taken: set[str] = set()
    made = []
    for place, item in enumerate(items, 1):
        if item.id in taken:
            item = Item(f"{item.id} ({place})", error=f"its id {item.id!r} is taken by a question before it")
        taken.add(item.id)
        made.append(item)
    return made
