"""Covers a Hub that refuses, breaks down or is written to by others: one sentence each, nothing lost, nothing overwritten."""

import fcntl
import json
import time

import pytest

from qwen_vl_grpo import registry
from tests.hub.conftest import REPO, both_clients
from tests.hub.loopback import READER, WRITER, Fault
from tests.hub.test_publish_and_pull import select

COMMIT = f"/api/models/{REPO}/commit/"


@both_clients
@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (401, {}, "the Hub does not know HF_TOKEN (401)"),
        (403, {}, "give it 'Write access to contents/settings' (repo.write)"),
        (409, {}, "other processes wrote to it 6 times in between"),
        (412, {}, "other processes wrote to it 6 times in between"),
        (429, {"Retry-After": "77"}, "rate limit is used up (429); try again in 77 seconds"),
        (500, {}, "the Hub answered 500; try again later"),
    ],
    ids=str,
)
def test_a_push_that_fails_is_one_sentence_and_waits(hub, node, refused, status, headers, said):
    a = node()
    a.keep("v1")
    hub.faults = [Fault("POST", COMMIT, status, headers=headers)]
    assert said in refused(a.grpo("publish", "v1"))
    assert (a.waiting(), hub.repos[REPO].tags) == (["v1"], {})


def test_what_waits_is_tried_again_and_again_until_it_works(hub, node, refused):
    a = node()
    a.keep("v1")
    hub.faults = [Fault("POST", COMMIT, 500)]
    a.grpo("publish", "v1")
    assert "1 of 1 runs still wait: someone/runs: the Hub answered 500" in refused(a.grpo("publish", "--pending"))
    assert a.waiting() == ["v1"]
    hub.faults = []
    done = a.grpo("publish", "--pending")
    assert (done.returncode, a.waiting()) == (0, []), done.stderr
    assert set(hub.repos[REPO].tags) == {"run/v1"}
    assert a.grpo("publish", "--pending").stdout == "no run waits for the Hub\n"


@both_clients
@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("hf_" + "x" * 34, "does not know HF_TOKEN (401); make a token at"),
        ("", "HF_TOKEN is not set (401)"),
        (READER, "HF_TOKEN may not write (403)"),
    ],
    ids=["unknown", "none", "read only"],
)
def test_a_token_that_may_not_write_is_told_which_scope_it_lacks(hub, node, refused, token, said):
    hub.create(REPO)
    a = node(token=token)
    a.keep("v1")
    line = refused(a.grpo("publish", "v1"))
    assert said in line
    assert f"{hub.url}/settings/tokens" in line
    assert not token or token not in line


def test_a_gated_repository_names_the_page_to_accept(hub, node, refused):
    hub.create(REPO)
    hub.faults = [Fault("GET", "/refs$", 403, headers={"X-Error-Code": "GatedRepo"})]
    assert f"accept its terms at {hub.url}/{REPO}" in refused(node(token=READER).grpo("runs", "show", "v1"))


READING = """
import sys
from qwen_vl_grpo import config, policy, sources
from qwen_vl_grpo.errors import GrpoError
c = config.check({"run_id": "x", "model_name": "big/model", "dataset_name": "big/model", "use_vllm": False})
for read in (policy.load_processor, policy.check, policy.load_model, lambda c: sources.find(c.dataset_name, "train", c.data)):
    try: read(c)
    except GrpoError as error: print(error)
"""


@pytest.mark.parametrize(
    ("code", "headers", "said"),
    [
        (403, {"X-Error-Code": "GatedRepo"}, "big/model"),
        (403, {}, "give it 'Read access to contents' (repo.content.read) of"),
        (401, {}, "the Hub does not know HF_TOKEN (401); make a token at"),
    ],
    ids=["gated", "scope", "token"],
)
def test_a_base_or_data_set_that_the_account_may_not_read(hub, node, code, headers, said):
    hub.create("big/model", private=False)
    hub.faults = [Fault(method, "big/model", code, headers=headers) for method in ("GET", "HEAD")]
    told = node(token=READER, python_options=("-c", READING)).grpo().stdout.splitlines()
    assert len(told) == 4
    assert all(said in line.partition("(")[2] for line in told), told
    if headers:
        assert all(f"is gated; accept its terms at {hub.url}/big/model with" in line for line in told[:3])
        assert "huggingface.co/datasets/big/model to ask for access" in told[3]


def test_a_gated_base_without_a_token_says_both(hub, node):
    hub.create("big/model", private=False)
    hub.faults = [Fault(method, "big/model", 401, headers={"X-Error-Code": "GatedRepo"}) for method in ("GET", "HEAD")]
    told = node(token="", python_options=("-c", READING)).grpo().stdout
    assert told.count(f"is gated and HF_TOKEN is not set; accept its terms at {hub.url}/big/model") == 3


@both_clients
def test_a_hub_that_does_not_answer_is_given_up(hub, node, refused):
    hub.create(REPO)
    hub.faults = [Fault("GET", f"/api/models/{REPO}$", "hang")]
    a = node(timeout=0.5)
    a.keep("v1")
    started = time.perf_counter()
    assert "the Hub did not answer in time" in refused(a.grpo("publish", "v1"))
    assert time.perf_counter() - started < 20
    assert a.waiting() == ["v1"]


@both_clients
def test_a_hub_that_is_not_there(node, refused):
    a = node()
    a.url = "http://127.0.0.1:9"
    a.keep("v1")
    assert "127.0.0.1 cannot be reached (ConnectError)" in refused(a.grpo("publish", "v1"))
    line = refused(a.grpo("runs", "show", "v2"))
    assert "run_id v2: is not on this machine, and could not be brought from the Hub" in line


def test_an_answer_that_is_no_answer(hub, node, refused):
    hub.create(REPO)
    hub.faults = [Fault("GET", "/refs$", 200)]
    assert "the Hub's answer was broken" in refused(node().grpo("runs", "--hub"))


def test_the_token_goes_to_no_plain_http_but_the_loopback(node, refused):
    a = node()
    a.keep("v1")
    a.url = "http://hub.example"
    assert "HF_ENDPOINT http://hub.example: would get HF_TOKEN in clear text; use https" in refused(a.grpo("publish", "v1"))


@both_clients
def test_offline_is_said(hub, node, refused):
    assert "HF_HUB_OFFLINE is set" in refused(node().grpo("runs", "show", "v1", HF_HUB_OFFLINE="1"))
    assert hub.seen == []


def test_a_process_that_was_killed_in_the_middle_leaves_its_run_waiting(hub, node):
    hub.create(REPO)
    hub.faults = [Fault("POST", COMMIT, "hang", times=1)]
    a = node()
    a.keep("v1")
    process = a.start("publish", "v1")
    while not any(COMMIT in path for _, path in hub.seen):
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert a.waiting() == ["v1"]
    assert a.grpo("publish", "--pending").returncode == 0
    assert set(hub.repos[REPO].tags) == {"run/v1"}


@both_clients
def test_a_commit_of_another_run_in_between_is_kept(hub, node):
    hub.create(REPO)
    hub.before_commit = lambda repo: repo.commit(repo.commits[-1][1] | {"runs/v0/run.json": b"{}"})
    a = node()
    a.keep("v1")
    done = a.grpo("publish", "v1")
    assert done.returncode == 0, done.stderr
    assert {"runs/v0/run.json", "runs/v1/run.json"} <= set(hub.repos[REPO].commits[-1][1])


@both_clients
def test_an_id_that_is_taken_on_the_hub_is_refused(hub, node, refused):
    a, b = node("a"), node("b")
    a.keep("v1")
    b.keep("v1", weights=b"other" * 1000, created="2026-02-02T00:00:00+00:00")
    assert a.grpo("publish", "v1").returncode == 0
    assert "another run of this id is in someone/runs already, and a run is never overwritten" in refused(b.grpo("publish", "v1"))
    assert b.waiting() == []
    assert hub.repos[REPO].commits[-1][1]["runs/v1/checkpoint-3/adapter_model.safetensors"] == b"w" * 5000


@both_clients
def test_two_machines_that_publish_one_id_at_once_do_not_mix(hub, node):
    a, b = node("a"), node("b")
    a.keep("v1")
    b.keep("v1", weights=b"other" * 1000, created="2026-02-02T00:00:00+00:00")
    processes = [machine.start("publish", "v1") for machine in (a, b)]
    said = [process.communicate(timeout=60)[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [0, 1]
    assert "another run of this id" in said[codes.index(1)]
    files, winner = hub.repos[REPO].commits[-1][1], (a, b)[codes.index(0)]
    right = (winner.folder / "runs/v1/checkpoint-3/adapter_model.safetensors").read_bytes()
    assert files["runs/v1/checkpoint-3/adapter_model.safetensors"] == right


def test_two_processes_that_publish_the_same_run_at_once_both_succeed(hub, node):
    a = node()
    a.keep("v1")
    processes = [a.start("publish", "v1") for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert a.waiting() == []
    assert node("b").card("v1")["run_id"] == "v1"


@both_clients
@pytest.mark.parametrize("does", ["corrupt", "half", 500])
def test_a_pull_that_goes_wrong_leaves_nothing_that_could_answer(hub, node, refused, does):
    a, b = node("a"), node("b", timeout=2)
    a.keep("v1")
    a.grpo("publish", "v1")
    hub.faults = [Fault("GET", r"/resolve/.*safetensors", does)]
    line = refused(b.grpo("runs", "show", "v1"))
    assert "run_id v1: " in line
    assert does != "corrupt" or "adapter_model.safetensors arrived with another sha256" in line
    assert not (b.folder / "home/hub/v1").exists()
    assert not (b.folder / "home/index/v1.json").exists()
    hub.faults = []
    assert b.card("v1")["run_id"] == "v1"


def test_a_pull_that_was_killed_is_no_run_and_goes_on(hub, node):
    a, b = node("a"), node("b")
    a.keep("v1")
    a.grpo("publish", "v1")
    hub.faults = [Fault("GET", r"/resolve/.*safetensors", "hang", times=1)]
    process = b.start("runs", "show", "v1")
    while not any("safetensors" in path for _, path in hub.seen[-1:]):
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert not (b.folder / "home/hub/v1").exists()
    assert b.card("v1")["run_id"] == "v1"


def test_two_processes_that_pull_one_run_at_once(hub, node):
    a, b = node("a"), node("b")
    a.keep("v1")
    a.grpo("publish", "v1")
    processes = [b.start("runs", "show", "v1") for _ in range(3)]
    said = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said


@pytest.mark.parametrize(
    "name",
    ["../../../escaped.json", "/tmp/escaped.json", "checkpoint-3/../../escaped.json", "checkpoint-3/model.pt", "a/b/c.json", "x\x00.json"],
    ids=ascii,
)
def test_a_card_that_names_files_elsewhere_is_refused(hub, node, refused, tmp_path, name):
    a = node()
    a.keep("v1")
    a.grpo("publish", "v1")
    repo = hub.repos[REPO]
    files = repo.commits[-1][1]
    card = json.loads(files["runs/v1/run.json"])
    bad = json.dumps(card | {"checkpoint_files": {name: "0" * 64}}).encode()
    repo.tags["run/v1"] = repo.commit(files | {"runs/v1/run.json": bad})
    line = refused(node("b").grpo("runs", "show", "v1"))
    assert "which is no file of a checkpoint" in line
    assert not list(tmp_path.rglob("escaped.json"))


@pytest.mark.parametrize("target", ["../../../../x", "main", ""])
def test_a_tag_that_points_at_no_commit_is_no_run(hub, node, refused, target):
    hub.create(REPO).tags["run/v1"] = target
    assert "no such run" in refused(node().grpo("runs", "show", "v1"))


@pytest.mark.parametrize("secret", [WRITER, "sk-proj-0123456789-0123456789_0123456789"])
def test_a_token_in_the_config_is_not_published(hub, node, refused, secret):
    a = node()
    run_dir = a.keep("v1")
    (run_dir / "config.yaml").write_text(f"trl: {{hub_token: {secret}}}\n")
    assert "config.yaml: holds a token or key" in refused(a.grpo("publish", "v1"))
    assert hub.seen == []


def test_weights_that_were_changed_are_not_published(hub, node, refused):
    a = node()
    run_dir = a.keep("v1")
    (run_dir / "checkpoint-3/adapter_model.safetensors").write_bytes(b"x" * 5000)
    assert "is missing or has changed since the run" in refused(a.grpo("publish", "v1"))
    assert hub.seen == []


def test_a_run_that_is_running_is_not_published(hub, node, refused):
    a = node()
    run_dir = a.keep("v1", state="running")
    with (run_dir / registry.LOCK).open("w") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        assert "is still running; wait" in refused(a.grpo("publish", "v1"))
    assert "was killed; resume it" in refused(a.grpo("publish", "v1"))
    assert (hub.seen, a.waiting()) == ([], [])


def test_a_disk_that_is_full_while_pulling(hub, node, refused):
    a, b = node("a"), node("b")
    a.keep("v1", weights=b"w" * 3_000_000)
    a.grpo("publish", "v1")
    limited = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000,) * 2); sys.argv[0] = 'grpo'; "
    b.python_options = ("-c", limited + "from qwen_vl_grpo.cli import main; main()")
    line = refused(b.grpo("runs", "show", "v1"))
    assert "File too large" in line
    assert not (b.folder / "home/hub/v1").exists()


def test_one_of_a_run_and_pending_must_be_said(node, refused):
    assert "name one run, or say --pending" in refused(node().grpo("publish"))
    assert "name one run, or say --pending" in refused(node().grpo("publish", "v1", "--pending"))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("GET", "/refs$", 500), "runs of this machine alone are taken: someone/runs: the Hub answered 500"),
        (Fault("GET", "/refs$", 401), "runs of this machine alone are taken: someone/runs: the Hub does not know HF_TOKEN (401)"),
        (Fault("GET", r"/resolve/.*v1.*safetensors", "corrupt"), "v1: is not on this machine, and could not be brought from the Hub"),
    ],
    ids=["down", "unknown token", "corrupt file"],
)
def test_a_hub_that_fails_leaves_the_runs_of_this_machine_to_all(hub, node, fault, said):
    a, b = node("a"), node("b")
    a.keep("v1")
    a.grpo("publish", "v1")
    b.keep("v2")
    hub.faults = [fault]
    found, told = select(b, "all")
    assert found == ["v2"]
    assert said in told
    assert len(told.splitlines()) == 1


def test_a_broken_card_hides_no_other_run(hub, node):
    a, b = node("a"), node("b")
    for run_id in ("v1", "v2", "v3"):
        a.keep(run_id)
        a.grpo("publish", run_id)
    repo = hub.repos[REPO]
    files = repo.commits[-1][1]
    newer = json.dumps(json.loads(files["runs/v2/run.json"]) | {"schema_version": 99}).encode()
    repo.tags["run/v1"] = repo.tags["run/v2"] = repo.commit(files | {"runs/v1/run.json": b"{half", "runs/v2/run.json": newer})
    listed = b.grpo("runs", "--hub")
    assert listed.returncode == 0
    assert "v3" in listed.stdout
    assert "run_id v1: its card on the Hub is broken" in listed.stderr
    found, told = select(b, "all")
    assert found == ["v3"]
    assert "run_id v1: its card on the Hub is broken" in told
    assert "was written by a newer version" in told
