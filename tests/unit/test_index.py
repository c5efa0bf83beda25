"""Covers the words for runs: aliases and `latest`, names that no run may have, two claims at once, and a disk that is full."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from qwen_vl_grpo import index, registry
from qwen_vl_grpo.errors import ConfigError, RegistryError
from qwen_vl_grpo.interfaces import RunCard
from qwen_vl_grpo.run_id import check_run_id

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def keep(config_of, tmp_path):
    """Claim a run and write its card; returns its folder."""

    def make(run_id, **card):
        folder = registry.claim(config_of(run_id=run_id, output_dir=str(tmp_path / "outputs")))
        registry.write(RunCard(run_id=run_id, task="visual_reasoning", base_model="tiny", **card), folder)
        return folder

    return make


def test_an_alias_stands_for_its_run_and_moves_on(keep):
    first, second = keep("v1"), keep("v2")
    index.set_alias("champion", "v1")
    assert registry.resolve("champion")[1] == first
    index.set_alias("champion", "v2")
    assert registry.resolve("champion")[1] == second
    assert index.aliases() == {"champion": "v2"}


def test_latest_is_the_run_that_was_begun_last(keep):
    keep("old", created="2026-01-01T00:00:00+00:00")
    keep("new", created="2026-02-01T00:00:00+00:00")
    keep("older", created="2025-01-01T00:00:00+00:00")
    assert registry.resolve("latest")[0].run_id == "new"


def test_latest_without_a_run_says_so():
    with pytest.raises(RegistryError, match="latest: there is no run yet"):
        registry.resolve("latest")


def test_a_run_may_not_have_the_name_of_an_alias(keep, config_of):
    keep("v1")
    index.set_alias("champion", "v1")
    with pytest.raises(RegistryError, match="run_id champion: is an alias of run v1; choose another"):
        registry.refuse_existing(config_of(run_id="champion"))


def test_an_alias_may_not_have_the_id_of_a_run(keep):
    keep("v1")
    keep("v2")
    with pytest.raises(RegistryError, match="alias v1: is the id of a run"):
        index.set_alias("v1", "v2")
    assert registry.resolve("v1")[0].run_id == "v1"


BAD_NAMES = ["../x", "..", "%2e", "a\x00b", "a" * 200, "all", "ALL", "latest", "Latest", "", "a/b", "é"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_a_word_that_no_run_may_have_is_refused_everywhere(keep, tmp_path, name):
    keep("v1")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="run_id: "):
        check_run_id(name)
    for take in (
        lambda: index.set_alias(name, "v1"),
        lambda: index.drop_alias(name),
        lambda: index.forget(name),
        lambda: index.place(name),
    ):
        with pytest.raises(RegistryError, match="run_id: "):
            take()
    if name != "latest":
        with pytest.raises(RegistryError, match="run_id: "):
            registry.resolve(name)
        with pytest.raises(RegistryError, match="run_id: "):
            registry.read_group(name)
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != ".claim"] == [path for path in before if path.name != ".claim"]


def test_an_alias_that_is_not_there_cannot_be_forgotten():
    with pytest.raises(RegistryError, match="alias champion: there is no such alias"):
        index.drop_alias("champion")


CLAIM = """
import sys
from qwen_vl_grpo import config, registry
run = config.check({"run_id": "same", "output_dir": sys.argv[1], "use_vllm": False})
sys.stdin.read()
try:
    registry.claim(run)
    print("claimed")
except registry.RegistryError as error:
    print(error)
"""


def test_of_two_processes_with_one_id_one_gets_it(own_home, tmp_path):
    """In output_dirs of their own, so that no folder of the other's is in the way."""
    environment = {"GRPO_HOME": str(own_home), "PYTHONPATH": str(PROJECT / "src"), "PATH": "/usr/bin:/bin"}
    several = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM, str(tmp_path / f"place{i}")],
            env=environment,
            stdin=-1,
            stdout=-1,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(4)
    ]
    for process in several:
        assert process.stdin is not None
        process.stdin.close()  # all at once
    said = sorted(process.stdout.read().strip() for process in several if process.stdout)
    assert [process.wait(60) for process in several] == [0] * 4, said
    assert said[0] == "claimed", said
    assert all("run_id same: exists already" in line for line in said[1:]), said


def test_a_full_disk_leaves_the_card_as_it_was(keep):
    folder = keep("v1")
    card, before = registry.read(folder), (folder / "run.json").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), limits[1]))
        with pytest.raises(RegistryError, match=r"run\.json: cannot be written \(.*\), and is as it was before"):
            registry.write(card.model_copy(update={"error": "x" * 1000}), folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (folder / "run.json").read_bytes() == before
    assert [path.name for path in folder.iterdir()] == ["run.json"]


@pytest.mark.parametrize("folder", ["gpu_digits", "gpu_smoke"])
def test_the_cards_of_earlier_versions_still_open(folder):
    card = registry.read(PROJECT / "docs" / folder)
    assert (card.state, card.proof, card.pruned) == ("finished", {}, False)
