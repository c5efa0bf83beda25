"""Covers the whole way of a real run: trained, published at each save and its end, and answering by its id on another machine."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import yaml

from tests.hub.conftest import PROJECT, REPO
from tests.hub.loopback import READER, Fault

TINY = {
    "output_dir": "runs", "model_name": "tiny", "dataset_name": "digits", "dataset_split": "train", "use_vllm": False,
    "learning_rate": 1e-3, "max_steps": 2, "save_steps": 1, "batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 4,
    "max_completion_length": 12, "gradient_checkpointing": False, "lora": {"enabled": True, "r": 4}, "data": {"limit": 12},
    "tracking": {"report_to": "none"},
}  # fmt: skip


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """A tiny base model and digits, made once."""
    from demo import digits, tiny_qwen

    folder = tmp_path_factory.mktemp("material")
    tiny_qwen.build(folder / "tiny", "qwen2_5_vl")
    digits.write(folder / "digits")
    return folder


@pytest.fixture
def trainer(node, material):
    """Make a machine that has the base and the data, and train on it."""

    def make(name: str = "a", **given):
        machine = node(name, **given)
        for part in ("tiny", "digits"):
            os.symlink(material / part, machine.folder / part)
        return machine

    return make


def train(machine, push: str, run_id: str = "v1", **changes):
    (machine.folder / "run.yaml").write_text(yaml.safe_dump({"run_id": run_id, "registry": {"push": push}} | TINY | changes))
    done = subprocess.run(
        [sys.executable, str(PROJECT / "src/fine_tuning/train.py"), "--config", "run.yaml"],
        cwd=machine.folder, env=machine.environment | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert machine.token not in done.stdout + done.stderr
    return done


def test_a_run_is_saved_to_the_hub_as_it_goes_and_answers_from_there(hub, trainer):
    a, b = trainer("a"), trainer("b", token=READER)
    done = train(a, "save")
    assert done.returncode == 0, done.stderr
    repo = hub.repos[REPO]
    assert "checkpoint-1 is published" in done.stderr
    assert set(repo.tags) == {"run/v1"}
    kept = [name for name in repo.commits[-1][1] if "checkpoint-" in name]
    assert kept
    assert all(name.startswith("runs/v1/checkpoint-2/") for name in kept)
    assert not any("optimizer" in name or name.endswith((".pt", ".bin", ".pth")) for name in repo.commits[-1][1])
    question = ("--prompt", "Which digit is this?", "--image_path", "digits/pictures/0000.png", "--json")
    here = a.grpo("infer", "--run_id", "v1", *question)
    assert here.returncode == 0, here.stderr
    shutil.rmtree(a.folder / "runs")
    there = b.grpo("infer", "--run_id", "v1", *question)
    assert there.returncode == 0, there.stderr
    first, second = json.loads(here.stdout), json.loads(there.stdout)
    assert (first["completion"], first["sha"]) == (second["completion"], second["sha"])


def test_the_copy_on_the_hub_is_asked_what_the_policy_was_asked(hub, trainer, refused):
    hub.create(REPO)
    a = trainer("a")
    assert train(a, "none", learning_rate=0.05, max_steps=3).returncode == 0
    assert "the Hub has no whole copy of it" in refused(a.grpo("publish", "v1", "--verify"))
    assert a.grpo("publish", "v1").returncode == 0
    done = a.grpo("publish", "v1", "--verify")
    assert (done.returncode, done.stdout.strip()) == (
        0, "run_id v1: its files answer all 4 items as the policy did when it was trained (brought from the Hub)"
    ), done.stderr  # fmt: skip
    verdict = a.card("v1")["proof"]["verdict"]
    assert (verdict["state"], verdict["copy"]) == ("proved", "Hub")


def test_a_hub_that_fails_fails_no_run(hub, trainer):
    a = trainer("a")
    hub.faults = [Fault("POST", f"/api/models/{REPO}/commit/", 500)]
    done = train(a, "save")
    assert done.returncode == 0, done.stderr
    assert "checkpoint-1 is kept here, but not published: someone/runs: the Hub answered 500" in done.stderr
    assert "the run is finished and kept here, but not published: someone/runs: the Hub answered 500" in done.stderr
    assert (a.card("v1")["state"], a.waiting()) == ("finished", ["v1"])
    hub.faults = []
    assert a.grpo("publish", "--pending").returncode == 0
    assert set(hub.repos[REPO].tags) == {"run/v1"}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("taken", "another run of this id is in"),
        ("token", "HF_TOKEN may not write (403); give it 'Write access to contents/settings' (repo.write)"),
        ("public", "is public"),
    ],
)
def test_what_could_not_be_published_is_refused_before_training(hub, node, refused, fault, said):
    if fault == "taken":
        first = node("first")
        first.keep("v1")
        first.grpo("publish", "v1")
    else:
        hub.create(REPO, private=fault != "public")
    a = node("a", **({"token": READER} if fault == "token" else {}))
    assert said in refused(train(a, "end"))
    assert not (a.folder / "runs").exists()


def test_a_hub_that_is_away_at_the_start_keeps_no_run_from_starting(hub, node, refused):
    hub.faults = [Fault("GET", "/api/whoami-v2", 500)]
    done = train(node(), "end")
    assert "the Hub answered 500; try again later; the run starts all the same" in done.stderr
    assert "dataset_name: there is no file or folder digits here" in done.stderr


def test_a_base_that_is_gated_names_the_page_to_accept(hub, trainer, refused):
    hub.create("someone/gated")
    hub.faults = [Fault(method, "someone/gated", 403, headers={"X-Error-Code": "GatedRepo"}) for method in ("GET", "HEAD")]
    line = refused(train(trainer(), "none", model_name="someone/gated"))
    assert "model_name someone/gated" in line
    assert f"{hub.url}/someone/gated" in line


@pytest.mark.parametrize(("rank", "published"), [("0", {"run/v1"}), ("1", set())])
def test_of_several_ranks_the_first_alone_publishes(hub, node, rank, published):
    attempt = "from qwen_vl_grpo import publishing, registry; publishing.attempt(registry.resolve('v1')[0], False)"
    hub.create(REPO)
    a = node("a", python_options=("-c", attempt))
    a.keep("v1")
    done = a.grpo(RANK=rank)
    assert done.returncode == 0, done.stderr
    assert set(hub.repos[REPO].tags) == published
    assert a.waiting() == []
