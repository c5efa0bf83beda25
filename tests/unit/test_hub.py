"""Covers what is refused before the Hub is asked anything; tests/hub has the client and a Hub on the loopback."""

import errno
import subprocess
import sys

import pytest

from qwen_vl_grpo import hub, publishing, registry
from qwen_vl_grpo.errors import HubError, RegistryError


@pytest.fixture
def no_hub(monkeypatch):
    """Fail if anything is looked up on the Hub."""
    monkeypatch.setenv("HF_REGISTRY_REPO", "someone/runs")
    monkeypatch.setattr(hub, "copies", lambda: pytest.fail("the Hub was asked"))


@pytest.mark.parametrize("run_id", ["../x", "..", "%2e%2e", "a/b", "a\x00", "v" * 200, "all", ""], ids=ascii)
def test_an_id_that_is_none_is_not_looked_up_on_the_hub(no_hub, run_id):
    with pytest.raises(RegistryError, match=r"run.id"):
        registry.resolve(run_id)


@pytest.mark.parametrize("repo", ["runs", "a/b/c", "../x", "a/..", "a--b/c", "a/b?x", "https://huggingface.co/a/b"])
def test_a_repository_that_is_none_is_refused(monkeypatch, repo):
    monkeypatch.setenv("HF_REGISTRY_REPO", repo)
    with pytest.raises(HubError, match="write OWNER/NAME"):
        hub.repository()


def test_no_repository_is_no_registry(monkeypatch):
    monkeypatch.delenv("HF_REGISTRY_REPO", raising=False)
    assert hub.repository() is None
    with pytest.raises(RegistryError, match="no such run"):
        registry.resolve("v1")


def test_the_client_is_imported_by_the_first_request_alone():
    code = "import sys; from qwen_vl_grpo import hub, publishing, pulling, registry; sys.exit('huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("content", "public"), [('{"public": true}', True), ('{"public": false}', False), ("{", False), ("", False)])
def test_a_run_still_waits_after_its_entry_was_cut_off(own_home, content, public):
    (own_home / "unpublished").mkdir(parents=True)
    (own_home / "unpublished/v1.json").write_text(content)
    assert publishing.pending() == [("v1", public)]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "checkpoint-2/config.json"), "was it deleted on its way"),
        (OSError(errno.ENOSPC, "No space left on device", "cache"), "make room and try again"),
    ],
)
def test_a_file_that_cannot_be_read_or_written_is_told_with_its_likely_cause(monkeypatch, error, advice):
    monkeypatch.setenv("HF_REGISTRY_REPO", "someone/runs")
    assert f"({error.filename}); {advice}" in str(hub._refusal(error, "write"))
