"""Covers the way of a run to the Hub and to another machine, through the unmodified client and a Hub on the loopback."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

from tests.hub.conftest import REPO, both_clients
from tests.hub.loopback import Fault


@both_clients
def test_a_run_goes_to_a_private_repository_and_comes_to_another_machine_by_its_id(hub, node):
    a, b = node("a"), node("b")
    run_dir = a.keep("v1", metrics={"train_seconds": 1.5})
    done = a.grpo("publish", "v1")
    assert done.returncode == 0, done.stderr
    repo = hub.repos[REPO]
    assert repo.private
    assert done.stdout == f"v1: published in {REPO} at {repo.head}\n"
    assert repo.tags == {"run/v1": repo.head}
    there = b.card("v1")
    assert there["published"] == a.card("v1")["published"] == {"repo": REPO, "commit": repo.head, "tag": "run/v1"}
    assert there["metrics"] == {"train_seconds": 1.5}
    pulled = b.folder / "home/hub/v1"
    for name in there["checkpoint_files"]:
        assert (pulled / name).read_bytes() == (run_dir / name).read_bytes()
    assert sorted(path.name for path in pulled.iterdir()) == ["README.md", "checkpoint-3", "config.yaml", "metrics.jsonl", "run.json"]
    assert [path.name for path in (b.folder / "home/hub").iterdir() if not path.name.endswith(".lock")] == ["v1"]


def test_optimizer_state_and_logs_stay_on_the_machine(hub, node):
    a = node()
    a.keep("v1")
    a.grpo("publish", "v1")
    assert sorted(name for name in hub.repos[REPO].commits[-1][1] if name.startswith("runs/")) == [
        "runs/v1/README.md",
        "runs/v1/checkpoint-3/adapter_config.json",
        "runs/v1/checkpoint-3/adapter_model.safetensors",
        "runs/v1/config.yaml",
        "runs/v1/metrics.jsonl",
        "runs/v1/run.json",
    ]


def test_a_run_that_was_pulled_once_asks_the_hub_no_more(hub, node):
    a, b = node("a"), node("b")
    a.keep("v1")
    a.grpo("publish", "v1")
    b.card("v1")
    hub.seen.clear()
    b.card("v1")
    assert hub.seen == []


@both_clients
def test_many_runs_share_one_repository(hub, node):
    a, b = node("a"), node("b")
    a.keep("v1")
    a.keep("v2", weights=b"v" * 5000)
    assert a.grpo("publish", "v1").returncode == a.grpo("publish", "v2").returncode == 0
    assert set(hub.repos[REPO].tags) == {"run/v1", "run/v2"}
    listed = json.loads(b.grpo("runs", "--hub", "--json").stdout)
    assert sorted(card["run_id"] for card in listed) == ["v1", "v2"]
    assert "v1" in b.grpo("runs", "--hub").stdout
    assert b.card("v1")["checkpoint_files"] != b.card("v2")["checkpoint_files"]


def test_listing_the_hub_again_asks_for_no_card_that_is_known(hub, node):
    a, b = node("a"), node("b")
    a.keep("v1")
    a.grpo("publish", "v1")
    b.grpo("runs", "--hub")
    hub.seen.clear()
    assert "v1" in b.grpo("runs", "--hub").stdout
    assert [path for _, path in hub.seen] == [f"/api/models/{REPO}/refs"]


def test_publishing_again_changes_nothing(hub, node):
    a = node()
    a.keep("v1")
    a.grpo("publish", "v1")
    before = hub.repos[REPO].head, dict(hub.repos[REPO].tags)
    again = a.grpo("publish", "v1")
    assert again.returncode == 0, again.stderr
    assert (hub.repos[REPO].head, hub.repos[REPO].tags) == before


@both_clients
def test_a_card_that_has_grown_is_brought_up_to_date_and_old_files_go(hub, node):
    a, b = node("a"), node("b")
    run_dir = a.keep("v1")
    a.grpo("publish", "v1")
    card = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps(card | {"metrics": {"proof": "held"}}))
    (run_dir / "metrics.jsonl").unlink()
    first = hub.repos[REPO].tags["run/v1"]
    assert a.grpo("publish", "v1").returncode == 0
    assert hub.repos[REPO].tags["run/v1"] == hub.repos[REPO].head != first
    assert "runs/v1/metrics.jsonl" not in hub.repos[REPO].commits[-1][1]
    assert b.card("v1")["metrics"] == {"proof": "held"}


def test_a_run_without_its_tag_is_half_a_run_and_nobody_gets_it(hub, node, refused):
    a, b = node("a"), node("b")
    a.keep("v1")
    a.grpo("publish", "v1")
    hub.repos[REPO].tags.clear()
    assert "v1: no such run" in refused(b.grpo("runs", "show", "v1"))
    assert a.grpo("publish", "v1").returncode == 0
    assert b.card("v1")["run_id"] == "v1"


def test_a_machine_that_was_lost_leaves_its_last_save_on_the_hub(hub, node):
    a, b = node("a"), node("b")
    a.keep("v1")
    a.grpo("publish", "v1")
    repo = hub.repos[REPO]
    repo.tags = {"save/v1/9": repo.commits[0][0], "save/v1/10": repo.head, "save/v2/11": repo.commits[0][0]}
    assert b.card("v1")["published"]["tag"] == "save/v1/10"
    assert a.grpo("publish", "v1").returncode == 0
    assert set(repo.tags) == {"run/v1", "save/v2/11"}


def test_a_run_that_was_brought_while_it_was_running_is_brought_again_once_there_is_more_of_it(hub, node):
    a, b = node("a"), node("b")
    run_dir = a.keep("v1")
    a.grpo("publish", "v1")
    repo = hub.repos[REPO]
    repo.tags = {"save/v1/9": repo.head}
    b.card("v1")
    change(b.folder / "home/hub/v1", state="running")
    (b.folder / "home/hub/v1/evaluations").mkdir()
    early = b.card("v1")
    hub.faults = [Fault("GET", "/refs$", 500)]
    alone = b.grpo("runs", "show", "v1", "--json")
    assert json.loads(alone.stdout) == early
    assert alone.stderr.startswith("run_id v1: is here as it was at save/v1/9, and there may be more of it: someone/runs: the Hub answered")
    hub.faults = []
    change(run_dir, metrics={"after": {}})
    assert a.grpo("publish", "v1").returncode == 0
    assert select(b, "all")[0] == ["v1"]
    card = b.card("v1")
    assert (card["state"], card["published"]["tag"], card["metrics"]) == ("finished", "run/v1", {"after": {}})
    assert (b.folder / "home/hub/v1/evaluations").is_dir()
    hub.seen.clear()
    assert (b.card("v1"), hub.seen) == (card, [])


def test_a_published_run_is_deleted_only_while_the_hub_has_it(hub, node, refused):
    a = node()
    run_dir = a.keep("v1")
    a.grpo("publish", "v1")
    tags = dict(hub.repos[REPO].tags)
    hub.faults = [Fault("GET", "/refs$", 500)]
    assert "the Hub cannot tell whether it has a copy" in refused(a.grpo("runs", "delete", "v1", "--yes"))
    hub.faults = []
    hub.repos[REPO].tags = {}
    assert "v1: this may be its last copy" in refused(a.grpo("runs", "delete", "v1", "--yes"))
    hub.repos[REPO].tags = tags
    assert "v1: this may be its last copy" in refused(a.grpo("runs", "delete", "v1", "--yes", HF_REGISTRY_REPO="someone/else"))
    done = a.grpo("runs", "delete", "v1", "--yes")
    assert (done.returncode, run_dir.exists()) == (0, False), done.stderr
    assert a.card("v1")["published"]["tag"] == "run/v1"


def change(run_dir, **card):
    path = run_dir / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | card))


@both_clients
def test_a_public_repository_is_refused_unless_asked_for(hub, node, refused):
    hub.create(REPO, private=False)
    a = node()
    a.keep("v1")
    line = refused(a.grpo("publish", "v1"))
    assert f"{REPO}: is public" in line
    assert f"{hub.url}/{REPO}/settings" in line
    assert [path for path in hub.repos[REPO].commits[-1][1] if path.startswith("runs/")] == []
    assert a.grpo("publish", "v1", "--public").returncode == 0


def test_a_local_run_is_never_asked_for_on_the_hub(hub, node):
    a = node()
    a.keep("v1")
    a.card("v1")
    assert hub.seen == []


def test_an_unknown_id_gets_the_nearest_ones_of_the_hub_and_of_this_machine_if_that_fails(hub, node, refused):
    a, b = node("a"), node("b")
    a.keep("v1-baseline")
    a.grpo("publish", "v1-baseline")
    assert "v1-baselin: no such run; did you mean v1-baseline?" in refused(b.grpo("runs", "show", "v1-baselin"))
    assert "zz: no such run; there are 1 runs" in refused(b.grpo("runs", "show", "zz"))
    hub.faults = [Fault("GET", "/refs$", 500)]
    said = refused(a.grpo("runs", "show", "v1-baselin"))
    assert "v1-baselin: is not on this machine, and could not be brought from the Hub: " in said
    assert said.endswith("; near it is v1-baseline")


def test_no_registry_no_hub(hub, node, refused):
    a = node()
    assert "no such run" in refused(a.grpo("runs", "show", "v1", HF_REGISTRY_REPO=""))
    a.keep("v1")
    assert "HF_REGISTRY_REPO is not set; set it to OWNER/NAME" in refused(a.grpo("publish", "v1", HF_REGISTRY_REPO=""))
    assert hub.seen == []


def test_the_page_of_a_run_loads_it_as_it_says(hub, node):
    a = node()
    run_dir = a.keep("v1")
    a.grpo("publish", "v1")
    page = (run_dir / "README.md").read_text()
    assert hub.repos[REPO].commits[-1][1]["runs/v1/README.md"] == page.encode()
    code = page.split("```python\n")[1].split("```")[0]
    assert f'snapshot_download("{REPO}", revision="run/v1", allow_patterns="runs/v1/*") + "/runs/v1"' in code
    lines = [line for line in code.splitlines() if line.startswith(("from huggingface_hub", "folder"))]
    program = "\n".join([*lines, "print(folder)"])
    done = subprocess.run([a.python, "-c", program], env=a.environment, capture_output=True, text=True, timeout=60, check=True)
    assert (Path(done.stdout.strip()) / "checkpoint-3/adapter_model.safetensors").read_bytes() == b"w" * 5000


def select(machine, asked, **environment):
    """What `registry.select` finds on a machine, and what it says."""
    program = "import logging, sys; from qwen_vl_grpo import cli_flags, registry; from qwen_vl_grpo.errors import GrpoError\n"
    program += "cli_flags.show_log()\ntry: print(*(card.run_id for card, _ in registry.select(sys.argv[1])))\n"
    program += "except GrpoError as error: sys.exit(f'error: {error}')"
    done = replace(machine, python_options=("-c", program)).grpo(asked, **environment)
    return done.stdout.split(), done.stderr


@both_clients
def test_all_and_patterns_find_runs_of_the_hub_and_bring_those_that_fit(hub, node):
    a, b = node("a"), node("b")
    for run_id, state in {"v1": "finished", "v2": "finished", "v3": "failed", "w1": "finished"}.items():
        a.keep(run_id, state=state)
        a.grpo("publish", run_id)
    b.keep("v2", state="running")
    b.keep("v0", created="2025-01-01T00:00:00+00:00")
    assert select(b, "v*") == (["v0", "v1"], "")
    assert sorted(path.name for path in (b.folder / "home/hub").iterdir() if path.is_dir()) == ["v1"]
    assert select(b, "all,v1") == (["v0", "v1", "w1"], "")
    assert select(b, "w?,v1") == (["w1", "v1"], "")
    assert select(b, "x*")[1] == "error: run_id x*: no finished run; there are 3, list them with `grpo runs`\n"


def test_without_a_registry_all_are_those_of_this_machine_and_it_says_so(hub, node):
    a = node()
    a.keep("v1")
    assert select(a, "all", HF_REGISTRY_REPO="") == (["v1"], "HF_REGISTRY_REPO is not set, so runs of this machine alone are taken\n")
    assert select(a, "v1", HF_REGISTRY_REPO="") == (["v1"], "")
    assert hub.seen == []


def test_a_run_whose_folder_is_gone_comes_from_the_hub(hub, node, refused):
    a = node()
    run_dir = a.keep("v1")
    a.grpo("publish", "v1")
    run_dir.rename(run_dir.with_name("elsewhere"))
    assert "its folder" in refused(a.grpo("runs", "show", "v1", HF_REGISTRY_REPO=""))
    assert a.card("v1")["published"]["tag"] == "run/v1"
    assert (a.folder / "home/hub/v1/run.json").is_file()
