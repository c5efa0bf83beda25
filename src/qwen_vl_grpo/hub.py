"""The only file that talks to the Hub: one repository holds every run, and a tag says which are whole.

A run is the folder runs/{run_id}/ on main. The tag run/{run_id} is set after its last commit, and readers go from the tag to
a commit and load by that: what has no tag is half a run, and nobody sees it. Works with huggingface_hub 1.33 and 2.4.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from qwen_vl_grpo.errors import HubError, RegistryError
from qwen_vl_grpo.run_id import RUN_ID_PATTERN

LOOPBACK = ("127.0.0.1", "localhost", "::1")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
COMMIT = re.compile(r"[0-9a-f]{40}")
TAG = re.compile(r"(?:run|(save))/(?P<run_id>[^/]+)(?(1)/(?P<step>\d+))")
ATTEMPTS = 6
"""How often a commit is made again because another process wrote to the repository in between."""


@dataclass(frozen=True)
class Copy:
    """Where a whole copy of a run lies on the Hub."""

    repo: str
    commit: str
    tag: str

    @property
    def run_id(self) -> str:
        return self.tag.split("/")[1]

    def record(self) -> dict[str, str]:
        return asdict(self)


def repository() -> str | None:
    """The repository that holds the runs, by HF_REGISTRY_REPO; None if there is none. Raises HubError for a name that is none."""
    repo = os.environ.get("HF_REGISTRY_REPO", "").strip()
    if repo and not (REPOSITORY.fullmatch(repo) and ".." not in repo and "--" not in repo):
        raise HubError(f"HF_REGISTRY_REPO {repo!r}: is no repository; write OWNER/NAME")
    return repo or None


def find(run_id: str) -> Copy | None:
    """The whole copy of a run: its last version, or while it is still running the last save of it; None if there is none."""
    return next((copy for copy in copies() if copy.run_id == run_id), None)


def copies() -> list[Copy]:
    """The whole copy of every run in the repository; raises HubError."""
    repo = _required()
    with _talking("read") as api:
        refs = api.list_repo_refs(repo)
    newest: dict[str, tuple[float, Copy]] = {}
    for tag in refs.tags:
        named = TAG.fullmatch(tag.name)
        if named is None or not RUN_ID_PATTERN.fullmatch(named["run_id"]) or not COMMIT.fullmatch(tag.target_commit):
            continue
        step = float(named["step"] or "inf")
        if step >= newest.get(named["run_id"], (0.0, None))[0]:
            newest[named["run_id"]] = step, Copy(repo, tag.target_commit, tag.name)
    return [copy for _, copy in newest.values()]


def download(copy: Copy, name: str, into: Path) -> Path:
    """One file of a copy, put at {into}/{name} by its path in the repository; raises HubError. `name` must be safe already."""
    with _talking("read") as api:
        return Path(api.hf_hub_download(copy.repo, name, revision=copy.commit, local_dir=into))


def names(copy: Copy) -> set[str]:
    """The paths of all files of a copy, in the repository; raises HubError."""
    from huggingface_hub.hf_api import RepoFile

    with _talking("read") as api:
        tree = api.list_repo_tree(copy.repo, f"runs/{copy.run_id}", recursive=True, revision=copy.commit)
        return {entry.path for entry in tree if isinstance(entry, RepoFile)}


def check(run_id: str, public: bool, mine: Callable[[bytes], bool]) -> None:
    """Raise HubError or RegistryError if `push` would be refused as things stand; makes the repository if there is none."""
    with _talking("write") as api:
        token = api.whoami()["auth"]["accessToken"]
        if token["role"] == "read" or (token["role"] == "fineGrained" and "repo.write" not in str(token.get("fineGrained"))):
            raise HubError(f"{_required()}: {_scope(_required(), 'write')}")
        _refuse_others(api, run_id, _head(api, public), mine)


def push(run_id: str, files: Mapping[str, Path | bytes], tag: str, public: bool, mine: Callable[[bytes], bool]) -> Copy:
    """Make runs/{run_id}/ on main hold exactly `files`, in one commit, and set `tag` last; raises HubError and RegistryError.

    `mine` says of the run.json that is there already whether it is of the same run; another run is never overwritten. The tag
    of this run's earlier state goes.
    """
    from huggingface_hub import errors

    repo = _required()
    with _talking("write") as api:
        for _ in range(ATTEMPTS):
            head = _head(api, public)
            _refuse_others(api, run_id, head, mine)
            try:
                made = api.create_commit(
                    repo, _operations(api, run_id, files, head), commit_message=f"Publish run {run_id}", parent_commit=head
                )
            except errors.HfHubHTTPError as error:
                if error.response.status_code not in (409, 412):
                    raise
                continue
            return _tag(api, Copy(repo, made.oid, tag), changed=made.oid != head)
    raise HubError(f"{repo}: other processes wrote to it {ATTEMPTS} times in between", passing=True)


def _operations(api: Any, run_id: str, files: Mapping[str, Path | bytes], head: str) -> list[Any]:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, errors
    from huggingface_hub.hf_api import RepoFile

    wanted = {f"runs/{run_id}/{name}": content for name, content in files.items()}
    try:
        tree = list(api.list_repo_tree(_required(), f"runs/{run_id}", recursive=True, revision=head))
    except errors.RemoteEntryNotFoundError:
        tree = []
    gone = [entry.path for entry in tree if isinstance(entry, RepoFile) and entry.path not in wanted]
    return [CommitOperationDelete(path) for path in gone] + [CommitOperationAdd(path, content) for path, content in wanted.items()]


def _head(api: Any, public: bool) -> str:
    """The commit of main; makes the repository if there is none, and refuses one that anyone can read unless `public`."""
    from huggingface_hub import errors

    repo = _required()
    try:
        info = api.repo_info(repo, timeout=_patience())
    except errors.RepositoryNotFoundError as error:
        if error.response.status_code != 404:
            raise
        api.create_repo(repo, private=not public, exist_ok=True)
        info = api.repo_info(repo, timeout=_patience())
    if not info.private and not public:
        raise HubError(f"{repo}: is public, and a run is published in private; make it private at {_page(repo)}/settings, or add --public")
    return info.sha


def _refuse_others(api: Any, run_id: str, head: str, mine: Callable[[bytes], bool]) -> None:
    from huggingface_hub import errors

    with tempfile.TemporaryDirectory() as folder:
        try:
            there = Path(api.hf_hub_download(_required(), f"runs/{run_id}/run.json", revision=head, local_dir=folder)).read_bytes()
        except errors.RemoteEntryNotFoundError:
            return
    if not mine(there):
        raise RegistryError(f"run_id {run_id}: another run of this id is in {_required()} already, and a run is never overwritten")


def _tag(api: Any, copy: Copy, changed: bool) -> Copy:
    """Point the run's tag at its commit and take away the tags of its earlier states."""
    from huggingface_hub import errors

    tags = {tag.name: tag.target_commit for tag in api.list_repo_refs(copy.repo).tags}
    if copy.tag in tags and not changed:
        return Copy(copy.repo, tags[copy.tag], copy.tag)
    if copy.tag in tags:
        api.delete_tag(copy.repo, tag=copy.tag)
    try:
        api.create_tag(copy.repo, tag=copy.tag, revision=copy.commit)
    except errors.HfHubHTTPError as error:
        if error.response.status_code != 409:  # another process that publishes the same run was faster
            raise
    for name in tags:
        if name.startswith(f"save/{copy.run_id}/") and name != copy.tag:
            api.delete_tag(copy.repo, tag=name)
    return copy


def _required() -> str:
    repo = repository()
    if repo is None:
        raise HubError("HF_REGISTRY_REPO is not set; set it to OWNER/NAME, the repository that holds your runs (.env.example)")
    return repo


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _patience() -> float:
    """Seconds without an answer after which a request has failed."""
    return float(os.environ.get("GRPO_HUB_TIMEOUT") or 60)


def _page(repo: str) -> str:
    return f"{_endpoint()}/{repo}"


def show_bars() -> None:
    """Show the bars of downloads on a terminal, and nowhere else."""
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    elif "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ:
        enable_progress_bars()


@contextmanager
def _talking(to: str) -> Iterator[Any]:
    """A client whose every failure is one HubError; `to` is what it was about to do: read or write."""
    url = urlsplit(_endpoint())
    if url.scheme != "https" and url.hostname not in LOOPBACK:
        raise HubError(f"HF_ENDPOINT {_endpoint()}: would get HF_TOKEN in clear text; use https")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import HfApi, get_session
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()
    show_bars()
    get_session().timeout = _patience()  # the client itself would wait for ever
    try:
        yield HfApi()
    except (HubError, RegistryError):
        raise
    except (_http_error(), OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # and answers that are no answers
        raise _refusal(error, to) from error


def _http_error() -> type[Exception]:
    """The root of what the client's transport raises: httpx under huggingface_hub 1.33, httpx2 under 2.4."""
    from huggingface_hub import errors

    return errors.HTTPError  # pyright: ignore[reportPrivateImportUsage]


def _refusal(error: Exception, to: str) -> HubError:
    """What a failed request means, and what to do about it; never any part of a token."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # the client tells of a failed request as of a file that its cache lacks
    repo, response = _required(), getattr(error, "response", None)
    code = getattr(response, "status_code", None)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return HubError(f"{repo}: was not asked, because HF_HUB_OFFLINE is set", passing=True)
    if reason := denied(error, repo, to):
        return HubError(f"{repo}: {reason}")
    if code == 404:
        return HubError(f"{repo}: is not there, or HF_TOKEN may not see it (404); look at HF_REGISTRY_REPO")
    if code == 429:
        wait = response.headers.get("Retry-After") if response is not None else None
        return HubError(f"{repo}: the Hub's rate limit is used up (429); try again in {wait or 'some hundred'} seconds", passing=True)
    if code is not None:
        return HubError(f"{repo}: the Hub answered {code}; try again later", passing=code >= 500)
    kind = type(error).__name__
    if "Timeout" in kind:
        return HubError(f"{repo}: the Hub did not answer in time ({kind}); try again later", passing=True)
    if isinstance(error, _http_error()):
        return HubError(f"{repo}: {urlsplit(_endpoint()).hostname} cannot be reached ({kind}); try again later", passing=True)
    if isinstance(error, OSError) and error.errno is not None:
        gone = isinstance(error, FileNotFoundError)
        advice = "was it deleted on its way (save_total_limit)? publish a later one" if gone else "make room and try again"
        return HubError(f"{repo}: {os.strerror(error.errno)}{f' ({error.filename})' if error.filename else ''}; {advice}")
    return HubError(f"{repo}: the Hub's answer was broken ({kind}); try again later", passing=True)


def denied(error: BaseException | None, repo: str, to: str = "read") -> str | None:
    """Why this account gets nothing of a repository and what to do, if an error or one that it stands for says so; else None.

    `repo` is OWNER/NAME of a model or datasets/OWNER/NAME, `to` what was asked for: read or write. No part of a token is in it.
    """
    from huggingface_hub import errors, get_token

    while error is not None:
        code = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.GatedRepoError):
            if not get_token():
                return f"is gated and HF_TOKEN is not set; accept its terms at {_page(repo)} and set HF_TOKEN to a token of that account"
            return (
                f"is gated; accept its terms at {_page(repo)} with the account of HF_TOKEN, and give a fine-grained token "
                "'Read access to contents of all public gated repos you can access'"
            )
        if code == 401 or isinstance(error, errors.LocalTokenNotFoundError):
            said = "the Hub does not know HF_TOKEN" if get_token() else "it is private or not there, and HF_TOKEN is not set"
            return f"{said} (401); make a token at {_endpoint()}/settings/tokens and set HF_TOKEN"
        if code == 403:
            return _scope(repo, to)
        error = error.__cause__ or error.__context__
    return None


def _scope(repo: str, to: str) -> str:
    """What a token lacks that may not read or write; the words are those of the Hub's page."""
    scope = "'Write access to contents/settings' (repo.write)" if to == "write" else "'Read access to contents' (repo.content.read)"
    return f"HF_TOKEN may not {to} (403); give it {scope} of {repo} at {_endpoint()}/settings/tokens"
