"""Covers a real engine that breaks down in the middle of a run: what is said, what is kept, and that the run goes on from there."""

import gc

import pytest
import vllm

from qwen_vl_grpo import assembly, registry, training
from qwen_vl_grpo.errors import EngineError
from qwen_vl_grpo.ledger import Ledger


@pytest.fixture
def dying(monkeypatch, tmp_path):
    """Let the engine raise in its n-th generation of a whole group; the parity gate asks for single completions."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    published, calls = vllm.LLM.generate, []

    def generate(self, requests, sampling_params, **named):
        if sampling_params[0].n > 1:
            calls.append(1)
            if len(calls) == 2:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return published(self, requests, sampling_params=sampling_params, **named)

    monkeypatch.setattr(vllm.LLM, "generate", generate)
    return calls


def test_a_run_whose_engine_dies_in_its_second_step_keeps_the_first_and_goes_on(dying, config_of, tmp_path):
    config = config_of()
    with pytest.raises(EngineError) as error:
        training.train(config)
    assert str(error.value).startswith("vLLM broke down while it generated: RuntimeError: CUDA error: an illegal memory access")
    card, run_dir = registry.resolve("lane")
    assert error.value.__notes__ == [f"step 1 of 3 is kept in {run_dir / 'checkpoint-1'}"]
    assert (card.state, card.checkpoint) == ("failed", "checkpoint-1")
    registry.verify_files(card, run_dir)
    del error  # its traceback holds the dead engine, and two at once share a process group
    gc.collect()

    folder = tmp_path / "resumed"
    folder.mkdir()
    again = config.model_copy(update={"run_id": "again"})
    prepared, ledger = assembly.prepare(again), Ledger(folder, again.max_steps)
    trainer = assembly.build_trainer(again, prepared, assembly.load_policy(again, prepared, folder), folder, ledger)
    trainer.train(resume_from_checkpoint=str(run_dir / card.checkpoint))
    ledger.close()
    assert trainer.state.global_step == 3
    assert len(dying) == 4  # two generations before the end, and those of the steps 2 and 3
    del trainer.vllm_generation.llm
    gc.collect()
