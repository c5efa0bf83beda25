"""Covers what a group of seeds is made of, and how its scores are put together; tests/commands/test_seeds.py runs one."""

import signal

import pytest

from qwen_vl_grpo import registry, seeds
from qwen_vl_grpo.errors import ConfigError, RegistryError
from qwen_vl_grpo.interfaces import RunCard


def test_the_seeds_count_on_from_the_configs_own(config_of):
    runs = [(run.run_id, run.seed, run.registry.group) for run in seeds.members(config_of(seed=7), 3)]
    assert runs == [("unit-s0", 7, "unit"), ("unit-s1", 8, "unit"), ("unit-s2", 9, "unit")]


def test_an_id_that_leaves_no_room_for_the_number_is_refused(config_of):
    with pytest.raises(ConfigError, match="run_id: "):
        seeds.members(config_of(run_id="A" * 62), 2)


def test_finished_runs_alone_are_scored_and_one_value_has_no_spread(config_of, tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    config = config_of(output_dir=str(tmp_path))
    first, second, _ = runs = seeds.members(config, 3)
    after = {"greedy": {"correct": 0.5, "interval": [0.4, 0.6], "n": 8, "rows": 8, "rewards": {"form": None}}}
    metrics = {"after": after, "parity": {"parity/mean": 0.0}, "last_step": {"reward": 0.25, "loss": 0.0}}
    for run, state in ((first, "finished"), (second, "interrupted")):
        run.run_dir.mkdir()
        registry.write(RunCard(run_id=run.run_id, task="task", base_model="model", state=state, metrics=metrics), run.run_dir)
    found = seeds.summary("unit", runs)
    assert [run["state"] for run in found["runs"]] == ["finished", "interrupted", "not started"]
    assert found["scores"].keys() == {"after/greedy/correct", "last_step/reward"}
    assert found["scores"]["after/greedy/correct"] == {"mean": 0.5, "sd": None, "n": 1, "values": [0.5]}
    assert seeds.text(found).splitlines()[-2].split() == ["after/greedy/correct", "0.5000", "-", "1", "0.5000"]


def test_a_seed_that_is_taken_refuses_the_group_before_any_run_starts(config_of, tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    (tmp_path / "unit-s1").mkdir()
    with pytest.raises(RegistryError, match="run_id unit-s1: exists already"):
        seeds.left(config_of(output_dir=str(tmp_path)), 2, resume=False)


def test_a_launcher_of_many_processes_is_refused(config_of, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="launch each seed alone"):
        seeds.left(config_of(), 2, resume=False)


def test_a_signal_that_comes_as_a_run_ends_well_stops_the_group(tmp_path, monkeypatch):
    program = tmp_path / "ends-well"
    program.write_text("#!/bin/sh\ntrap '' TERM\nsleep 0.5\nkill -TERM $PPID\nsleep 0.2\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(seeds.sys, "executable", str(program))
    before = signal.getsignal(signal.SIGTERM)
    assert seeds._process([]) == 143
    assert signal.getsignal(signal.SIGTERM) == before
