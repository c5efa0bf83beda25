"""Covers the arms of benchmarks/gpu_scaling.py: each is a config that is read, of a step that two cards divide, and launched rightly;
and that nothing outlives a row of benchmarks/gpu_rig.py."""

import time

import pytest

from benchmarks import gpu_rig, gpu_scaling
from benchmarks.gpu_rig import SMOKE
from qwen_vl_grpo import config as configs
from qwen_vl_grpo import following, launch, strategies


@pytest.mark.parametrize("name", gpu_scaling.ARMS)
def test_every_arm_is_a_run_that_its_strategy_can_train(name, monkeypatch):
    strategy = gpu_scaling.ARMS[name].strategy
    monkeypatch.setenv("WORLD_SIZE", "1" if strategy == "single" else "2")
    config = configs.load(SMOKE, gpu_scaling.changes(name, 2))
    configs.arithmetic(config)
    strategies.refuse(config, strategy, True, launch.TOLD.get(strategy, {}))
    assert config.run_id == f"scaling-{name}-2" and config.max_steps > gpu_scaling.WARM


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
