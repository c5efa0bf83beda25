"""Covers the look at sleep mode on the real engine: on a CPU it frees nothing, which must be found, and its answers are compared."""

import gc

import pytest
import torch

from qwen_vl_grpo import parity, sleep_check

BOUND = parity.MEAN_BOUND[torch.bfloat16]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The small model and an engine on it; a CPU's engine ignores sleep and wake-up."""
    folder = tmp_path_factory.mktemp("small")
    model = sleep_check.write_model(folder)
    llm = [sleep_check.engine(folder, dtype="bfloat16")]
    yield model, llm[0]
    llm.clear()
    gc.collect()


def test_an_engine_that_keeps_its_memory_is_found_and_its_answers_are_compared(small):
    model, llm = small
    loaded = []

    def reload():
        sleep_check.load(llm, model)
        loaded.append(True)

    figures = sleep_check.measure(llm, reload, lambda: 10.0, 20.0)
    assert loaded == [True]  # after level 2 alone
    assert {level: told["equal"] for level, told in figures["levels"].items()} == {"1": True, "2": True}
    found = sleep_check.judge(figures, wanted=True)
    assert (found.verdict, found.figures["taken_gib"]) == ("warn", 10.0)


def test_weights_that_come_back_wrong_are_found(small):
    model, llm = small
    spoiled = {name: torch.zeros_like(weight) if "mlp" in name else weight for name, weight in model.state_dict().items()}

    def reload():
        weights = llm.llm_engine.model_executor.driver_worker.model_runner.model
        weights.load_weights(spoiled.items())
        llm.reset_prefix_cache()

    found = sleep_check.judge(sleep_check.measure(llm, reload, lambda: 10.0, 20.0), wanted=True)
    bad = sleep_check.differences(llm, model)
    sleep_check.load(llm, model)
    assert found.verdict == "fail"
    assert "answers differently after level 2" in found.found
    assert bad["mean"] > BOUND
    assert sleep_check.agree(bad | {"bound": BOUND}, wanted=True).verdict == "fail"


def test_the_engine_scores_what_it_samples_as_transformers_does(small):
    model, llm = small
    told = sleep_check.differences(llm, model)
    assert told["tokens"] == 64
    assert 0 < told["mean"] <= told["max"] < BOUND
