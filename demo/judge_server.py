"""A judge behind the protocol of OpenAI's chat completions on this machine: for the demonstrations, and to fail on purpose in tests.

What it answers is a function of the request:

    with JudgeServer(lambda asked: {"score": 7} if asked.images else Answer("", refusal="no picture")) as server:
        OpenAI(base_url=server.url, api_key="any").chat.completions.create(…)
        server.asked[0].images

As a process of its own: python -m demo.judge_server --answers path/to/file.py:function prints its URL and serves until it is stopped.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from PIL import Image

from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.rewards import load_function

MODEL = "gpt-4o-2024-11-20"


@dataclass(frozen=True)
class Asked:
    """One request for an answer."""

    number: int
    """1 for the first that the server got."""
    body: dict[str, Any]
    headers: dict[str, str]
    """By names in lower case."""

    @property
    def count(self) -> int:
        """Answers that are wanted."""
        return self.body.get("n") or 1

    @property
    def schema(self) -> dict[str, Any] | None:
        """What the answer must look like, if anything is said of that."""
        return (self.body.get("response_format") or {}).get("json_schema", {}).get("schema")

    @property
    def system(self) -> str:
        return "\n".join(part for message in self.body["messages"] if message["role"] == "system" for part in _texts(message))

    @property
    def text(self) -> str:
        """What stands beside the pictures in the user's turns."""
        return "\n".join(part for message in self.body["messages"] if message["role"] == "user" for part in _texts(message))

    @property
    def urls(self) -> list[str]:
        """The pictures as they were sent, in order."""
        turns = (message["content"] for message in self.body["messages"] if isinstance(message["content"], list))
        return [part["image_url"]["url"] for turn in turns for part in turn if part["type"] == "image_url"]

    @property
    def images(self) -> list[Image.Image]:
        return [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in self.urls]


@dataclass(frozen=True)
class Answer:
    """One answer, and what is wrong with it; dictionaries become JSON."""

    content: str | Mapping[str, Any] | None
    finish_reason: str = "stop"
    refusal: str | None = None
    logprobs: list[tuple[str, list[tuple[str, float]]]] | None = None
    """Each token with the log probabilities of those that it might have been."""


@dataclass(frozen=True)
class Response:
    """A whole response, for what one or more answers cannot say."""

    answers: tuple[Answer, ...] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    """The error in the body; a status from 400 on has one of its own otherwise."""
    raw: bytes | None = None
    """The body as it is sent, in place of everything else."""
    seconds: float = 0.0
    """How long it takes."""
    usage: dict[str, int] | None = None
    """None counts a token for every four characters and 100 for each picture; {} says nothing of it."""
    reset: bool = False
    """The connection is torn down instead."""


Said = str | Mapping[str, Any] | Answer | list[Any] | Response
"""An answer, a list of exactly the answers that are given, or a whole response. A single one is given as often as the client wants."""


def plausible(asked: Asked) -> Said:
    """Answers that fit the schema and depend on nothing but the request, each of several another."""
    seen = hashlib.sha256(json.dumps(asked.body["messages"], sort_keys=True).encode()).hexdigest()
    schema = asked.schema
    if schema is None:
        return "Yes" if int(seen[0], 16) % 2 else "No"
    return [Answer(json.dumps(_instance(schema, schema, random.Random(f"{seen}{number}")))) for number in range(asked.count)]


def seen_or_not(asked: Asked) -> str:
    """Yes or no to every item of a list in the question, by a hash of the item and the pictures."""
    seen = "".join(asked.urls)
    items = [line for line in asked.text.splitlines() if line.startswith("* ")]
    return "\n".join(f"{item}: {'no' if hashlib.sha256(f'{seen}{item}'.encode()).digest()[0] % 3 else 'yes'}" for item in items)


def _instance(schema: Mapping[str, Any], root: Mapping[str, Any], draw: random.Random) -> Any:
    if reference := schema.get("$ref"):
        return _instance(root["$defs"][reference.rpartition("/")[2]], root, draw)
    if several := schema.get("anyOf"):
        return _instance(several[0], root, draw)
    if "const" in schema:
        return schema["const"]
    if choices := schema.get("enum"):
        return draw.choice(choices)
    kind = schema.get("type")
    if kind == "object":
        return {name: _instance(inner, root, draw) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [_instance(schema["items"], root, draw) for _ in range(schema.get("minItems", 1))]
    if kind == "integer":
        return draw.randint(schema.get("minimum", 0), schema.get("maximum", 10))
    if kind == "number":
        return draw.uniform(schema.get("minimum", 0), schema.get("maximum", 10))
    return draw.random() < 0.5 if kind == "boolean" else None if kind == "null" else "as far as can be seen"


class JudgeServer:
    """A server on a free port, a context manager; `asked` keeps every request for an answer, `most_at_once` how many came together."""

    def __init__(
        self,
        answer: Callable[[Asked], Said] = plausible,
        key: str | None = None,
        models: tuple[str, ...] | Response = (MODEL,),
        port: int = 0,
    ):
        self.answer, self.key, self.models = answer, key, models
        self.asked: list[Asked] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"judge": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> JudgeServer:
        threading.Thread(target=self.serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.02)


class _Handler(BaseHTTPRequestHandler):
    judge: JudgeServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        models = self.judge.models
        if self._refused():
            return
        if isinstance(models, Response):
            self._send(models.status, models.raw or b"{}", models.headers)
        else:
            self._send(200, {"object": "list", "data": [{"id": name, "object": "model", "created": 0} for name in models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused():
            return
        judge = self.judge
        with judge.lock:
            asked = Asked(len(judge.asked) + 1, body, {name.lower(): value for name, value in self.headers.items()})
            judge.asked.append(asked)
            judge.at_once += 1
            judge.most_at_once = max(judge.most_at_once, judge.at_once)
        try:
            self._respond(asked, _response(judge.answer(asked), asked.count))
        finally:
            with judge.lock:
                judge.at_once -= 1

    def _respond(self, asked: Asked, response: Response) -> None:
        time.sleep(response.seconds)
        if response.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            return
        content = response.raw
        if content is None:
            failure = {"message": f"scripted {response.status}", "type": "server_error", "param": None, "code": None}
            told = {"error": failure | (response.error or {})} if response.status >= 400 else _completion(asked, response)
            content = json.dumps(told).encode()
        self._send(response.status, content, response.headers)

    def _refused(self) -> bool:
        given = self.headers.get("Authorization", "")
        if self.judge.key is None or given == f"Bearer {self.judge.key}":
            return False
        message = f"Incorrect API key provided: {given.removeprefix('Bearer ')}"  # some gateways repeat all of it
        self._send(401, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_api_key"}})
        return True

    def _send(self, status: int, content: Any, headers: Mapping[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        try:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the client waited no longer


def _response(said: Said, count: int) -> Response:
    if isinstance(said, Response):
        return said
    if isinstance(said, list):
        return Response(tuple(map(_answer, said)))
    return Response((_answer(said),) * count)


def _answer(said: Any) -> Answer:
    return said if isinstance(said, Answer) else Answer(said)


def _completion(asked: Asked, response: Response) -> dict[str, Any]:
    texts = [
        answer.content if answer.content is None or isinstance(answer.content, str) else json.dumps(answer.content)
        for answer in response.answers
    ]
    prompt = (len(asked.system) + len(asked.text)) // 4 + 100 * len(asked.urls)
    written = sum(len(text or "") // 4 + 1 for text in texts)
    usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
    choices = [
        {
            "index": index,
            "finish_reason": answer.finish_reason,
            "message": {"role": "assistant", "content": text, "refusal": answer.refusal},
            "logprobs": answer.logprobs and {"content": [_token(*token) for token in answer.logprobs], "refusal": None},
        }
        for index, (answer, text) in enumerate(zip(response.answers, texts, strict=True))
    ]
    told = {"id": f"chatcmpl-{asked.number}", "object": "chat.completion", "created": 0, "model": asked.body["model"], "choices": choices}
    return told | ({"usage": usage if response.usage is None else response.usage} if response.usage != {} else {})


def _token(text: str, likely: list[tuple[str, float]]) -> dict[str, Any]:
    top = [{"token": token, "logprob": value, "bytes": list(token.encode())} for token, value in likely]
    return {"token": text, "logprob": dict(likely).get(text, -9999.0), "bytes": list(text.encode()), "top_logprobs": top}


def _texts(message: Mapping[str, Any]) -> list[str]:
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]


def main() -> None:
    """Serve until interrupted; the first line on stdout is the URL."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--answers", help="path/to/file.py:function, from Asked to what is said; plausible answers otherwise")
    given = parser.parse_args()
    server = JudgeServer(load_function(given.answers, ConfigError) if given.answers else plausible, port=given.port)
    print(server.url, flush=True)
    try:
        server.serve()
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    from demo import judge_server  # this file as others import it: an answer must be of one class

    judge_server.main()
