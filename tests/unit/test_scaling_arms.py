"""Covers the arms of benchmarks/gpu_scaling.py: each is a config that is read, of a step that two cards divide, and launched rightly."""

import pytest

from benchmarks import gpu_scaling
from benchmarks.gpu_rig import SMOKE
from qwen_vl_grpo import config as configs
from qwen_vl_grpo import launch, strategies


@pytest.mark.parametrize("name", gpu_scaling.ARMS)
def test_every_arm_is_a_run_that_its_strategy_can_train(name, monkeypatch):
    strategy = gpu_scaling.ARMS[name].strategy
    monkeypatch.setenv("WORLD_SIZE", "1" if strategy == "single" else "2")
    config = configs.load(SMOKE, gpu_scaling.changes(name, 2))
    configs.arithmetic(config)
    strategies.refuse(config, strategy, True, launch.TOLD.get(strategy, {}))
    assert config.run_id == f"scaling-{name}-2" and config.max_steps > gpu_scaling.WARM
