"""Covers the arms of benchmarks/gpu_scaling.py: each is a config that is read, of a step that two cards divide, and launched rightly;
that the plan foresees what an arm takes, and that nothing outlives a row of benchmarks/gpu_rig.py."""

import json
import time
from pathlib import Path

import pytest

from benchmarks import gpu_plan, gpu_rig, gpu_scaling
from benchmarks.gpu_rig import SMOKE
from qwen_vl_grpo import config as configs
from qwen_vl_grpo import following, launch, planning, strategies
from qwen_vl_grpo.spreading import Spread


@pytest.mark.parametrize("name", gpu_scaling.ARMS)
def test_every_arm_is_a_run_that_its_strategy_can_train(name, monkeypatch):
    strategy = gpu_scaling.ARMS[name].strategy
    monkeypatch.setenv("WORLD_SIZE", "1" if strategy == "single" else "2")
    config = configs.load(SMOKE, gpu_scaling.changes(name, 2))
    configs.arithmetic(config)
    strategies.refuse(config, strategy, True, launch.TOLD.get(strategy, {}))
    assert config.run_id == f"scaling-{name}-2" and config.max_steps > gpu_scaling.WARM


RECORDS = {path.stem: path for path in (Path(__file__).parents[2] / "docs/gpu_rows/scaling").glob("*.json")}


@pytest.mark.parametrize("arm", RECORDS)
def test_the_plan_of_several_cards_is_within_a_tenth_of_what_an_arm_took(arm):
    name, _, cards = arm.rpartition("-")
    told = json.loads(RECORDS[arm].read_text(encoding="utf-8"))
    config = configs.load(SMOKE, gpu_scaling.changes(name, int(cards)))
    config = config.model_copy(update={"model_name": f"Qwen/Qwen2.5-VL-{told['model'].upper()}-Instruct"})
    planned = gpu_scaling.planned(name, config, int(cards), planning.CARDS["H200"][1])
    assert told["planned, GiB"] == pytest.approx(planned, abs=0.01)
    assert told["allocated by torch at most, GiB"] == pytest.approx(planned, rel=0.1)


def test_the_phases_of_fsdp2_are_within_a_tenth_of_what_its_arm_took():
    config = configs.load(SMOKE, gpu_scaling.changes("full-fsdp2", 2)).model_copy(update={"model_name": "Qwen/Qwen2.5-VL-3B-Instruct"})
    fit, _ = gpu_plan.predict(config, planning.CARDS["H200"][1], Spread("fsdp2", 2))
    assert fit.phases["start"] == pytest.approx(50.1, rel=0.1)  # the card of the run, 2026-11-29
    assert fit.phases["generate"] == pytest.approx(61.7, rel=0.1)
    assert fit.phases["backward"] < 31.4  # in use, what torch keeps for later among it


def test_arms_of_one_card_and_of_several_were_measured():
    assert {arm.rpartition("-")[2] for arm in RECORDS} >= {"1", "2"}


STARTER = """
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
child.wait()
"""


def test_a_row_that_is_too_slow_takes_what_it_started_along(tmp_path):
    assert gpu_rig.ended(["-c", STARTER, str(tmp_path / "pid")], tmp_path / "log", 5) == "no answer in time"
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not following.alive(pid):
            break
        time.sleep(0.05)
    assert not following.alive(pid)
