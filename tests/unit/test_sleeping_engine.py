"""Covers when the engine's parts are awake: sleep mode runs on a GPU alone, so an engine that only keeps count stands in for it."""

from collections import Counter
from types import SimpleNamespace

import pytest

from qwen_vl_grpo import rollouts


class CountingEngine:
    """Fails where vLLM would write to, or compute with, memory that is not there."""

    def __init__(self):
        self.awake, self.calls = set(), Counter()
        self.llm_engine = SimpleNamespace(
            reset_encoder_cache=lambda: None,
            model_executor=SimpleNamespace(driver_worker=SimpleNamespace(model_runner=SimpleNamespace(model=self))),
        )

    def wake_up(self, tags):
        self.awake |= set(tags)

    def sleep(self, level):
        self.awake.clear()

    def load_weights(self, weights):
        assert "weights" in self.awake
        self.calls["load"] += 1

    def reset_prefix_cache(self):
        pass

    def generate(self, requests, sampling_params, use_tqdm):
        assert self.awake == {"weights", "kv_cache"}
        self.calls["generate"] += 1
        return []


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("synced_by_the_trainer", [True, False])
def test_weights_are_awake_before_they_are_written_and_used(monkeypatch, level, synced_by_the_trainer):
    monkeypatch.setattr(rollouts.FaithfulGeneration, "__init__", lambda self: None)
    monkeypatch.setattr(rollouts.FaithfulGeneration, "_sampling", lambda self, group: None)
    monkeypatch.setattr(rollouts.FaithfulGeneration, "_iter_named_params", lambda self: iter(()))
    generation = rollouts.FaithfulGeneration()
    vars(generation).update(
        mode="colocate", tensor_parallel_size=1, enable_sleep_mode=True, sleep_level=level, _llm_weights_sleeping=True,
        llm=CountingEngine(), memory={}, seconds=Counter(), pinned=(0,), _calls=0,
    )  # fmt: skip
    for _ in range(2):
        if synced_by_the_trainer:
            generation.sync_weights()
        generation._generate_here([[1]], None, 1, None)
    assert generation.llm.calls == {"load": 2, "generate": 2}
