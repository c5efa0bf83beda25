"""Covers `grpo runs …` as a person types it: filters, orders, names, and the questions before anything is deleted."""

import json

import pytest

from qwen_vl_grpo import attempts, checkpoints, cli, registry
from qwen_vl_grpo.interfaces import RunCard


@pytest.fixture
def keep(config_of, tmp_path):
    """Claim a run and write its card; returns its folder."""

    def make(run_id, right=None, **card):
        folder = registry.claim(config_of(run_id=run_id, output_dir=str(tmp_path / "outputs")))
        scores = {} if right is None else {when: {"sampled": {"correct": right, "n": 8}} for when in ("before", "after")}
        made = {"task": "visual_reasoning", "base_model": "Qwen/Qwen2.5-VL-7B-Instruct", "state": "finished", "metrics": scores} | card
        registry.write(RunCard(run_id=run_id, **made), folder)
        return folder

    return make


@pytest.fixture
def grpo(capsys):
    """Run a command as its process would; returns what it printed, or raises SystemExit with its error."""

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main(["runs", *arguments])
        if end.value.code:
            raise SystemExit(end.value.code)
        return capsys.readouterr().out

    return run


@pytest.fixture
def three(keep):
    keep("a", 0.5, created="2026-01-03T00:00:00+00:00")
    keep("b", 0.9, created="2026-01-01T00:00:00+00:00", state="failed", base_model="Qwen/Qwen3-VL-4B-Instruct")
    keep("c", created="2026-01-02T00:00:00+00:00", task="counting")


@pytest.mark.parametrize(
    ("asked", "listed"),
    [
        ([], "acb"), (["--state", "failed"], "b"), (["--task", "counting"], "c"), (["--base", "qwen3"], "b"), (["--base", "qwen2.5"], "ac"),
        (["--sort", "run_id"], "abc"), (["--sort", "run_id", "--reverse"], "cba"), (["--sort", "right"], "bac"), (["--reverse"], "bca"),
        (["--sort", "state", "--task", "visual_reasoning"], "ba"), (["--sort", "base"], "acb"),
    ],
)  # fmt: skip
def test_runs_are_filtered_and_sorted(three, grpo, asked, listed):
    lines = grpo(*asked).splitlines()
    assert "".join(line.split()[0] for line in lines[1:]) == listed
    assert "".join(card["run_id"] for card in json.loads(grpo(*asked, "--json"))) == listed


def test_a_filter_that_nothing_passes_says_so(three, grpo):
    assert grpo("--task", "none") == "no such run\n"
    assert json.loads(grpo("--task", "none", "--json")) == []


def test_the_json_of_a_list_is_the_cards_with_their_folders(keep, grpo):
    folder = keep("a", 0.5)
    assert json.loads(grpo("--json")) == [json.loads((folder / "run.json").read_text()) | {"folder": str(folder)}]


def test_an_alias_is_given_shown_moved_and_forgotten(three, grpo):
    assert grpo("alias", "champion", "a") == "champion -> a\n"
    assert "champion" in grpo().splitlines()[1]
    assert json.loads(grpo("show", "champion", "--json"))["run_id"] == "a"
    assert grpo("alias", "champion", "latest") == "champion -> a\n"
    assert grpo("alias", "champion", "b") == "champion -> b (was a)\n"
    assert grpo("alias") == "champion -> b\n"
    grpo("alias", "champion", "--remove")
    assert grpo("alias") == "no alias yet\n"


@pytest.mark.parametrize("name", ["all", "latest", "../x", "a"])
def test_a_name_that_cannot_be_an_alias_is_refused(three, grpo, name):
    with pytest.raises(SystemExit, match=rf"error: (run_id: |alias {name}: )"):
        grpo("alias", name, "b")


def test_a_run_that_starts_from_an_alias_keeps_the_id_it_stood_for(three, grpo, write_yaml, capsys):
    grpo("alias", "champion", "a")
    path = write_yaml("run_id: next\ninit_from: champion\n")
    with pytest.raises(SystemExit):
        cli.main(["train", "--config", str(path), "--dry_run"])
    assert "\ninit_from: a\n" in capsys.readouterr().out


def answer(monkeypatch, text):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_deleting_asks_and_no_keeps_the_run(keep, grpo, monkeypatch):
    folder = keep("a")
    answer(monkeypatch, "n\n")
    said = grpo("delete", "a", "--force")
    assert "Delete its last copy for good. Go on?" in said
    assert (folder / "run.json").is_file()


def test_deleting_without_anyone_to_ask_deletes_nothing(keep, grpo, monkeypatch):
    folder = keep("a")
    answer(monkeypatch, "")
    with pytest.raises(SystemExit, match="nobody answered, so nothing was deleted; add --yes"):
        grpo("delete", "a", "--force")
    assert (folder / "run.json").is_file()


def test_the_last_copy_needs_force_even_with_yes(keep, grpo):
    folder = keep("a")
    with pytest.raises(SystemExit, match="this is its last copy"):
        grpo("delete", "a", "--yes")
    assert (folder / "run.json").is_file()


def test_a_published_run_is_deleted_here_with_its_aliases_named(keep, grpo):
    folder = keep("a", published={"repo": "me/runs", "commit": "0" * 40, "tag": "run/a"})
    keep("b", parent={"run_id": "a"})
    grpo("alias", "champion", "a")
    said = grpo("delete", "champion", "--yes", "--force")  # tests/hub has the Hub that is asked without --force
    assert "aliases that go with it: champion" in said
    assert "runs that started from it, which stay: b" in said
    assert said.endswith("a is deleted\n")
    assert not folder.exists()
    with pytest.raises(SystemExit, match="no such run"):
        grpo("show", "a")


def test_pruning_says_what_goes_and_what_stays_before_it_asks(keep, grpo, monkeypatch):
    folder = keep("a", checkpoint="checkpoint-2")
    for step in (1, 2):
        aside = folder / checkpoints.ASIDE / f"checkpoint-{step}"
        aside.mkdir(parents=True)
        for name in ("model.safetensors", "optimizer.pt"):
            (aside / name).write_bytes(b"0" * 2**20)
        checkpoints.publish(aside, folder)
    (folder / checkpoints.ASIDE).rmdir()
    keep("b", state="failed")
    said = grpo("prune", "--dry_run")
    assert "a (finished): frees 3.0 MiB (checkpoint-1, checkpoint-2/optimizer.pt); keeps the weights of checkpoint-2" in said
    assert "3.0 MiB in 1 of 2 runs" in said
    answer(monkeypatch, "n\n")
    grpo("prune", "a")
    assert (folder / "checkpoint-1").is_dir()
    assert grpo("prune", "a", "--yes").endswith("3.0 MiB freed\n")
    assert sorted(path.name for path in folder.glob("checkpoint-*/*")) == [checkpoints.HASHES, "model.safetensors"]


HOLD = """
import pathlib, sys
from qwen_vl_grpo import attempts
held = attempts.hold(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_run_that_is_running_is_neither_pruned_nor_deleted(keep, grpo):
    import os
    import subprocess
    import sys

    folder = keep("a", state="running")
    environment = os.environ | {"PYTHONPATH": str(registry.PROJECT / "src")}
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], env=environment, stdin=-1, stdout=-1)
    try:
        assert holder.stdout is not None and holder.stdout.readline()
        assert "a: passed over" in grpo("prune", "--yes")
        assert "running" in grpo("--state", "running") and "state: running" in grpo("show", "a")
        with pytest.raises(SystemExit, match="another process is running this run"):
            grpo("delete", "a", "--force", "--yes")
    finally:
        holder.kill()
        holder.communicate(timeout=30)
    assert "killed" in grpo("--state", "killed") and "state: killed" in grpo("show", "a")
    assert json.loads(grpo("--json"))[0]["state"] == "killed"
    assert registry.read(folder).state == "running"
    attempts.hold(folder).close()


def test_a_copy_of_a_run_that_is_running_elsewhere_is_not_called_killed(keep, grpo):
    keep("a", state="running")
    assert "running" in grpo("--state", "running")
