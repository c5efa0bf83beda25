"""A Hub on the loopback, in memory: the routes that the unmodified huggingface_hub client asks for, and faults on demand."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

WRITER, READER = "hf_" + "w" * 34, "hf_" + "r" * 34
LFS_FROM = 1000
"""Files of so many bytes go the way of large files."""


@dataclass
class Fault:
    """What happens to requests that fit, instead of or beside the right answer: a status, `hang`, `half` or `corrupt`."""

    method: str
    path: str
    does: int | str
    times: int = 10**6
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Repo:
    private: bool
    commits: list[tuple[str, dict[str, bytes]]]
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> str:
        return self.commits[-1][0]

    def files(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        oid = self.head if revision == "main" else self.tags.get(revision, revision)
        return next(((commit, files) for commit, files in self.commits if commit == oid), None)

    def commit(self, files: dict[str, bytes]) -> str:
        self.commits.append((hashlib.sha1(f"{len(self.commits)}{sorted(files)}{time.time_ns()}".encode()).hexdigest(), files))
        return self.head


class Hub:
    """The server and all that it holds; use as a context manager."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.stored: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.seen: list[tuple[str, str]] = []
        self.lock = threading.RLock()
        self.before_commit: Any = None
        self.stopping = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": self}))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stopping.set()
        self.server.shutdown()
        self.server.server_close()

    def create(self, repo: str, private: bool = True) -> Repo:
        self.repos[repo] = Repo(private, [])
        self.repos[repo].commit({".gitattributes": b"*.safetensors filter=lfs\n"})
        return self.repos[repo]

    def fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer("GET")

    def do_HEAD(self) -> None:
        self.answer("HEAD")

    def do_POST(self) -> None:
        self.answer("POST")

    def do_PUT(self) -> None:
        self.answer("PUT")

    def do_DELETE(self) -> None:
        self.answer("DELETE")

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, method: str) -> None:
        self.path = urlsplit(self.path).path
        self.body = self.read_body()
        self.hub.seen.append((method, unquote(self.path)))
        self.fault = self.hub.fault(method, unquote(self.path))
        if self.fault and self.fault.does == "hang":
            self.hub.stopping.wait(30)
            self.close_connection = True
            return
        if self.fault and isinstance(self.fault.does, int):
            self.send(self.fault.does, {"error": "asked for by the test"}, self.fault.headers)
            return
        for wanted, pattern, handle in ROUTES:
            if (wanted == method or (wanted, method) == ("GET", "HEAD")) and (match := re.fullmatch(pattern, self.path)):
                with self.hub.lock:
                    if not self.refused(method, unquote(match.groupdict().get("repo") or "")):
                        handle(self, *(unquote(part or "") for part in match.groups()))
                return
        self.send(404, {"error": f"no route {method} {self.path}"})

    def refused(self, method: str, repo: str) -> bool:
        """Answer for those who may not; what a stranger may not see is not there, as on the Hub."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.path.startswith("/lfs/"):
            return False
        if token and token not in (WRITER, READER):
            self.send(401, {"error": "Invalid credentials in Authorization header"})
        elif repo in self.hub.repos and self.hub.repos[repo].private and not token:
            self.send(401, {"error": "Invalid username or password."}, {"X-Error-Code": "RepoNotFound"})
        elif method not in ("GET", "HEAD") and token != WRITER:
            self.send(403 if token else 401, {"error": "You don't have the required permissions"})
        elif repo and repo not in self.hub.repos:
            self.send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        else:
            return False
        return True

    def whoami(self) -> None:
        role = "write" if self.headers.get("Authorization", "").endswith(WRITER) else "read"
        self.send(200, {"type": "user", "name": "someone", "orgs": [], "auth": {"accessToken": {"role": role}}})

    def create_repo(self) -> None:
        wanted = json.loads(self.body)
        name = f"{wanted.get('organization') or 'someone'}/{wanted['name']}"
        taken = name in self.hub.repos
        if not taken:
            self.hub.create(name, wanted.get("visibility") == "private" or bool(wanted.get("private")))
        self.send(409 if taken else 200, {"url": f"{self.hub.url}/{name}"})

    def info(self, name: str, revision: str) -> None:
        repo = self.hub.repos[name]
        if (found := repo.files(revision or "main")) is None:
            self.missing("RevisionNotFound")
            return
        siblings = [{"rfilename": path} for path in found[1]]
        self.send(200, {"id": name, "sha": found[0], "private": repo.private, "tags": [], "siblings": siblings})

    def refs(self, name: str) -> None:
        repo = self.hub.repos[name]
        tags = [{"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": oid} for tag, oid in repo.tags.items()]
        heads = [{"name": "main", "ref": "refs/heads/main", "targetCommit": repo.head}]
        self.send(200, {"branches": heads, "tags": tags, "converts": []})

    def tree(self, name: str, revision: str, folder: str) -> None:
        found = self.hub.repos[name].files(revision)
        entries = [entry(path, data) for path, data in found[1].items() if path.startswith(folder and f"{folder}/")] if found else []
        if not entries:
            self.missing("EntryNotFound" if found else "RevisionNotFound")
        else:
            self.send(200, entries)

    def preupload(self, name: str, _: str) -> None:
        there = self.hub.repos[name].commits[-1][1]
        answers = []
        for file in json.loads(self.body)["files"]:
            mode = "lfs" if file["size"] >= LFS_FROM else "regular"
            data = there.get(file["path"])
            answers.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": None if data is None else oid(data)})
        self.send(200, {"files": answers})

    def batch(self, _: str) -> None:
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            upload = {"upload": {"href": f"{self.hub.url}/lfs/{wanted['oid']}", "header": {}}}
            objects.append(wanted | ({} if wanted["oid"] in self.hub.stored else {"actions": upload}))
        self.send(200, {"transfer": "basic", "objects": objects})

    def store(self, sha: str) -> None:
        right = hashlib.sha256(self.body).hexdigest() == sha
        if right:
            self.hub.stored[sha] = self.body
        self.send(200 if right else 400, {})

    def commit(self, name: str, _: str) -> None:
        repo = self.hub.repos[name]
        if self.hub.before_commit:
            hook, self.hub.before_commit = self.hub.before_commit, None
            hook(repo)
        lines = [json.loads(line) for line in self.body.splitlines() if line.strip()]
        if lines[0]["value"].get("parentCommit") not in (None, repo.head):
            self.send(412, {"error": "The repository has changed since the parent commit"})
            return
        files = dict(repo.commits[-1][1])
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
            else:
                del files[value["path"]]
        made = repo.commit(files)
        self.send(200, {"commitUrl": f"{self.hub.url}/{name}/commit/{made}", "commitOid": made})

    def tag(self, name: str, revision: str) -> None:
        repo, wanted = self.hub.repos[name], json.loads(self.body)["tag"]
        found = repo.files(revision)
        if found and wanted not in repo.tags:
            repo.tags[wanted] = found[0]
            self.send(200, {})
        else:
            self.send(409 if found else 404, {"error": "Reference already exists"})

    def untag(self, name: str, tag: str) -> None:
        gone = self.hub.repos[name].tags.pop(tag, None)
        self.send(200 if gone else 404, {})

    def resolve(self, name: str, revision: str, path: str) -> None:
        found = self.hub.repos[name].files(revision)
        if found is None or path not in found[1]:
            self.missing("EntryNotFound" if found else "RevisionNotFound")
            return
        data = found[1][path]
        etag = f'"{oid(data)}"'
        size = str(len(data))
        headers = {"X-Repo-Commit": found[0], "ETag": etag, "Accept-Ranges": "bytes"}
        if len(data) >= LFS_FROM:
            headers |= {"X-Linked-Etag": etag, "X-Linked-Size": size}
        begins = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(begins[1]) if begins else 0
        if begins:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{size}"
        if self.fault and self.fault.does == "corrupt":
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.send_response(206 if begins else 200)
        for key, value in (headers | {"Content-Length": str(len(data) - start)}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        half = self.fault and self.fault.does == "half"
        self.wfile.write(data[start : start + (len(data) - start) // 2] if half else data[start:])
        self.close_connection = bool(half)

    def missing(self, code: str) -> None:
        self.send(404, {"error": code}, {"X-Error-Code": code})

    def send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        for key, value in ({"Content-Type": "application/json", "Content-Length": str(len(data))} | (headers or {})).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)


def oid(data: bytes) -> str:
    """What the Hub calls a file by: git's sha1 of a small one, the sha256 of a large one."""
    return hashlib.sha256(data).hexdigest() if len(data) >= LFS_FROM else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def entry(path: str, data: bytes) -> dict[str, Any]:
    large = {"lfs": {"oid": oid(data), "size": len(data), "pointerSize": 130}} if len(data) >= LFS_FROM else {}
    return {"type": "file", "path": path, "size": len(data), "oid": oid(data)} | large


REPO = r"(?P<repo>[^/]+/[^/]+)"
ROUTES: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/api/whoami-v2", Handler.whoami),
    ("POST", "/api/repos/create", Handler.create_repo),
    ("GET", f"/api/models/{REPO}(?:/revision/([^/]+))?", Handler.info),
    ("GET", f"/api/models/{REPO}/refs", Handler.refs),
    ("GET", f"/api/models/{REPO}/tree/([^/]+)(?:/(.+))?", Handler.tree),
    ("POST", f"/api/models/{REPO}/preupload/([^/]+)", Handler.preupload),
    ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", Handler.batch),
    ("PUT", "/lfs/([0-9a-f]{64})", Handler.store),
    ("POST", f"/api/models/{REPO}/commit/([^/]+)", Handler.commit),
    ("POST", f"/api/models/{REPO}/tag/([^/]+)", Handler.tag),
    ("DELETE", f"/api/models/{REPO}/tag/([^/]+)", Handler.untag),
    ("GET", f"/{REPO}/resolve/([^/]+)/(.+)", Handler.resolve),
)
