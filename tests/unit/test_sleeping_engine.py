"""Covers when the engine's parts are awake: sleep mode runs on a GPU alone, so an engine that only keeps count stands in for it."""

from collections import Counter
from types import SimpleNamespace

import pytest

from qwen_vl_grpo import rollouts
from qwen_vl_grpo.errors import EngineError, HardwareError


class CountingEngine:
    """Fails where vLLM would write to, or compute with, memory that is not there."""

    def __init__(self):
        self.awake, self.calls = set(), Counter()
        self.llm_engine = SimpleNamespace(
            reset_encoder_cache=lambda: None,
            model_executor=SimpleNamespace(driver_worker=SimpleNamespace(model_runner=SimpleNamespace(model=self))),
        )

    def wake_up(self, tags=("weights", "kv_cache")):
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


@pytest.fixture
def generation(monkeypatch):
    """An engine that sleeps, with the engine that only counts in place of vLLM's."""
    monkeypatch.setattr(rollouts.FaithfulGeneration, "__init__", lambda self: None)
    monkeypatch.setattr(rollouts.FaithfulGeneration, "_sampling", lambda self, group: {})
    monkeypatch.setattr(rollouts.vllm_generation, "SamplingParams", dict, raising=False)
    monkeypatch.setattr(rollouts.FaithfulGeneration, "_iter_named_params", lambda self: iter(()))
    generation = rollouts.FaithfulGeneration()
    processor = SimpleNamespace(image_token_id=7, video_token_id=8)
    vars(generation).update(
        mode="colocate", tensor_parallel_size=1, enable_sleep_mode=True, sleep_level=2, _llm_weights_sleeping=True,
        llm=CountingEngine(), memory={}, seconds=Counter(), pinned=(0,), processing_class=processor,
        accelerator=SimpleNamespace(process_index=0),
    )  # fmt: skip
    return generation


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("synced_by_the_trainer", [True, False])
def test_weights_are_awake_before_they_are_written_and_used(generation, level, synced_by_the_trainer):
    generation.sleep_level = level
    for _ in range(2):
        if synced_by_the_trainer:
            generation.sync_weights()
        generation._generate_here([[1]], None, 1, None)
    assert generation.llm.calls == {"load": 2, "generate": 2}


SLEEPS = {
    # free GiB awake, asleep at level 2, asleep at level 1; the level that is chosen, and whether the engine sleeps at all
    "level 2 frees": ((40, 95, 0), 2, True),
    "level 1 alone frees": ((40, 41, 90), 1, True),
    "neither frees": ((40, 41, 42), 0, False),
}


@pytest.mark.parametrize("case", SLEEPS)
def test_an_engine_whose_sleep_frees_nothing_stays_awake_and_says_so(generation, monkeypatch, caplog, case):
    free, level, sleeps = SLEEPS[case]
    told = iter(free)
    monkeypatch.setattr(rollouts.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(rollouts.torch.cuda, "mem_get_info", lambda: (next(told) * 2**30, 141 * 2**30))
    generation.memory["before the engine"], generation.sleep_level = 100.0, 0
    generation._choose_sleep_level()
    assert (generation.sleep_level, generation.enable_sleep_mode, generation._llm_weights_sleeping) == (level, sleeps, sleeps)
    assert generation.llm.awake == (set() if sleeps else {"weights", "kv_cache"})
    assert ("sleep mode frees nothing on this machine, so the engine stays awake" in caplog.text) == (not sleeps)


class EngineDeadError(Exception):
    """As vLLM's: no RuntimeError."""


@pytest.mark.parametrize("dies_in", ["wake_up", "load_weights", "reset_prefix_cache", "generate", "sleep"])
def test_an_engine_that_dies_is_one_sentence_that_says_when(generation, monkeypatch, dies_in):
    def die(*_, **__):
        raise EngineDeadError("EngineCore encountered an issue.\nSee stack trace.")

    monkeypatch.setattr(generation.llm, dies_in, die)
    with pytest.raises(EngineError) as error:
        generation.generate([[1]], None, 1)
    when = {"wake_up": "it woke", "load_weights": "it took the policy's weights", "reset_prefix_cache": "it took the policy's weights"}
    said = f"vLLM broke down while {when.get(dies_in, 'it generated')}: EngineDeadError: EngineCore encountered an issue. See stack trace."
    assert str(error.value) == said
    assert isinstance(error.value.__cause__, EngineDeadError)


def test_memory_that_is_short_on_waking_is_still_told_as_that(generation, monkeypatch):
    def short(tags):
        raise RuntimeError("CUDA Error: out of memory")

    monkeypatch.setattr(generation.llm, "wake_up", short)
    with pytest.raises(HardwareError, match="cannot wake its weights"):
        generation.generate([[1]], None, 1)


def test_a_resumed_engine_draws_with_the_seeds_of_the_uninterrupted_one(generation):
    """Whatever was answered in earlier steps, and however often the policy was looked at in this one."""
    step = 0

    def fresh():
        generation.settings, generation.pinned = rollouts.EngineSettings(seed=3, moment=lambda: step), None
        generation._calls = Counter()

    fresh()
    generation._moment(training=True)
    step = 2
    looks = [generation._moment(training=False) for _ in range(2)]
    expected = [generation._moment(training=True) for _ in range(2)]
    fresh()
    assert [generation._moment(training=True) for _ in range(2)] == expected
    assert len({*expected, *looks}) == 4


def test_the_seed_is_looked_at_hot_and_the_run_goes_on_as_it_was(generation, monkeypatch):
    seen = []
    generation.temperature, generation.max_completion_length, generation.pinned = 0.7, 512, None

    def now():
        return generation.temperature, generation.max_completion_length, generation.pinned

    monkeypatch.setattr(rollouts.FaithfulGeneration, "generate", lambda self, prompts, *_: seen.append(now()) or ([], [[5]], [], []))
    assert generation.drawn([[1]], 3) == [[5]]
    assert seen == [(rollouts.HOT, 16, (3,))]
    assert now() == (0.7, 512, None)
