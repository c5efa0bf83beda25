"""Covers the whole claim on the real engine: three training steps whose samples have the trainer's own log-probabilities."""

import pytest
from trl.generation.vllm_generation import VLLMGeneration

from qwen_vl_grpo import parity, rollouts

BOUND = 1e-5
ONE, TWO = ((112, 112),), ((112, 112), (100, 150))


def metrics(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
@pytest.mark.parametrize("sizes", [ONE, TWO], ids=["one picture", "two pictures"])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_three_steps_sample_what_the_trainer_scores(trainer_of, family, sizes, lora):
    trainer, samples = trainer_of(family, sizes, lora)
    before = parity.check(trainer, samples, "before the first step")
    trainer.train()
    after = parity.check(trainer, samples, "after the last step")
    differences = metrics(trainer, "rollouts/logp_difference/mean")
    assert len(differences) == 3
    assert max(*differences, before["parity/pictures"], after["parity/pictures"], after["parity/text"]) < BOUND
    assert any(abs(loss) > 1e-8 for loss in metrics(trainer, "loss"))
    assert min(metrics(trainer, "grad_norm")) > 0
    assert min(metrics(trainer, "rollouts/raw_effective_sample_size")) > 0.999


def test_trl_as_published_fails_the_same_check(trainer_of, monkeypatch):
    monkeypatch.setattr(rollouts.FaithfulGeneration, "generate", VLLMGeneration.generate)
    trainer, _ = trainer_of()
    trainer.train()
    assert max(metrics(trainer, "rollouts/logp_difference/mean")) > 100 * BOUND


def test_the_seed_decides_the_rollouts_and_a_group_is_no_copy(trainer_of):
    def drawn(seed):
        trainer, _ = trainer_of(seed=seed)
        encoded = trainer.processing_class.apply_chat_template(
            [[{"role": "user", "content": [{"type": "text", "text": "Question?"}]}]], tokenize=True, add_generation_prompt=True,
            return_dict=True,
        )  # fmt: skip
        return trainer.vllm_generation.sample([list(encoded["input_ids"][0])], None, 4, 1.0)[0]

    first = drawn(0)
    assert len({tuple(answer) for answer in first}) == 4
    assert drawn(0) == first
    assert drawn(1) != first
