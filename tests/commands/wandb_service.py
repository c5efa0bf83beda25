"""As much of the W&B service as wandb 0.31 needs, on this machine's loopback: runs, their streams and files, artifacts, reports.

It follows what the client sends, not a specification. A stream's lines lie at the offset that the client names, so two parts of a
run that both begin at 0 overwrite each other here as they do there.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HISTORY, EVENTS, OUTPUT = "wandb-history.jsonl", "wandb-events.jsonl", "output.log"
STARTED = json.dumps({"t": 1})
"""By this wandb tells a run that was begun from one that a sweep has only planned, which it does not resume."""
ENTITY = {"id": "1", "name": "someone"}


class Service:
    """What was received: runs by id, lines by run and stream, files by the path they were sent to, artifacts and reports in their order."""

    def __init__(self) -> None:
        self.url = ""
        self.full = False
        """Whether uploads of files are refused, for the client to try again."""
        self.runs: dict[str, dict[str, Any]] = {}
        self.lines: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
        self.files: dict[str, bytes] = {}
        self.artifacts: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []

    @property
    def environment(self) -> dict[str, str]:
        """What makes a wandb client speak to this service."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": "a" * 40, "WANDB_ERROR_REPORTING": "false"}

    def history(self, run_id: str) -> list[dict[str, Any]]:
        return [json.loads(line) for _, line in sorted(self.lines[run_id, HISTORY].items())]

    def received(self, run_id: str, streams: dict[str, Any]) -> None:
        for name, part in streams.items():
            self.lines[run_id, name] |= dict(enumerate(part["content"], part["offset"]))

    def answer(self, operation: str, given: dict[str, Any]) -> dict[str, Any] | None:
        """The data that a GraphQL operation is answered with; None for one that is not needed."""
        match operation:
            case "Viewer" | "GetDefaultEntity":
                return {"viewer": ENTITY | {"entity": "someone", "username": "someone", "flags": "{}", "teams": {"edges": []}}}
            case "GetProjects":
                return {"models": {"edges": [], "pageInfo": {"endCursor": None, "hasNextPage": False}}}
            case "CreateProject":
                made = {"id": "1", "description": "", "access": "", "views": ""} | given["input"]
                return {"result": {"project": made, "model": made, "inserted": True}}
            case "upsertView":
                project = {"id": "1", "name": given["projectName"], "entityName": given["entityName"]}
                self.reports.append(given)
                return {
                    "upsertView": {"view": given | {"id": "VIEW", "project": project, "updatedAt": "2026-01-01T00:00:00"}, "inserted": True}
                }
            case "RunResumeStatus":
                known = self.runs.get(given["name"])
                return {"model": {"id": "1", "name": given["project"], "entity": ENTITY, "bucket": known and self._bucket(known)}}
            case "UpsertBucket":
                run = self.runs.setdefault(given["name"], {"inserted": 0})
                run["inserted"] += 1
                run |= {key: value for key, value in given.items() if value is not None}
                return {"upsertBucket": {"bucket": self._bucket(run), "inserted": run["inserted"] == 1}}
            case "CreateRunFiles":
                files = [{"name": name, "uploadUrl": f"{self.url}/{given['run']}/{name}"} for name in given["files"]]
                return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": files}}
            case "CreateArtifact":
                self.artifacts.append(given["input"] | {"committed": False, "files": []})
                made = {"id": str(len(self.artifacts) - 1), "state": "PENDING", "artifactSequence": {"latestArtifact": None}}
                return {"createArtifact": {"artifact": made}}
            case "CreateArtifactManifest":
                number = given["artifactID"]
                file = {"id": number, "uploadUrl": f"{self.url}/artifacts/{number}/manifest", "uploadHeaders": []}
                return {"createArtifactManifest": {"artifactManifest": {"id": number, "file": file}}}
            case "CreateArtifactFiles":
                return {
                    "createArtifactFiles": {"files": {"edges": [{"node": self._place(file)} for file in given["input"]["artifactFiles"]]}}
                }
            case "CommitArtifact":
                self.artifacts[int(given["artifactID"])]["committed"] = True
                return {"commitArtifact": {"artifact": {"id": given["artifactID"], "digest": ""}}}
        return None

    def _place(self, file: dict[str, Any]) -> dict[str, Any]:
        number, name = file["artifactID"], file["name"]
        self.artifacts[int(number)]["files"].append(name)
        path = f"artifacts/{number}/{name}"
        return {
            "storagePath": path, "uploadUrl": f"{self.url}/{path}", "uploadHeaders": [], "uploadMultipartUrls": None,
            "artifact": {"id": number},
        }  # fmt: skip

    def _bucket(self, run: dict[str, Any]) -> dict[str, Any]:
        name = run["name"]
        counts = {f"{kind}LineCount": len(self.lines[name, of]) for kind, of in (("history", HISTORY), ("events", EVENTS), ("log", OUTPUT))}
        tail = json.dumps([json.dumps(row) for row in self.history(name)[-1:]])
        summary = self.lines[name, "wandb-summary.json"].get(0, "{}")
        return counts | {
            "id": name, "name": name, "displayName": name, "description": "", "sweepName": None, "tags": [], "wandbConfig": STARTED,
            "config": run.get("config", "{}"), "summaryMetrics": summary, "historyTail": tail, "eventsTail": "[]",
            "project": {"id": "1", "name": run["project"], "entity": ENTITY},
        }  # fmt: skip


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no fault of the service."""


@contextmanager
def served() -> Iterator[Service]:
    """Serve on a free port of the loopback for as long as the block lasts."""
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            asked = self._body()
            if self.path == "/graphql":
                named = re.search(r"(?:query|mutation)\s+(\w+)", json.loads(asked)["query"])
                data = service.answer(named[1] if named else "", json.loads(asked).get("variables") or {})
                self._reply({"errors": [{"message": "not known here"}]} if data is None else {"data": data})
            else:
                if stream := re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path):
                    service.received(stream[1], json.loads(asked).get("files") or {})
                self._reply({})

        def do_PUT(self) -> None:
            service.files[self.path.removeprefix("/")] = self._body()
            self._reply({}, 503 if service.full else 200)

        def _body(self) -> bytes:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

        def _reply(self, answer: dict[str, Any], status: int = 200) -> None:
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = Server(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
