"""Covers the whole claim on the real engine: three training steps whose samples have the trainer's own log-probabilities."""

import pytest
import three_steps
import torch
from three_steps import BOUND, metrics
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer.grpo_trainer import GRPOTrainer

from qwen_vl_grpo import parity, rollouts
from qwen_vl_grpo import trainer as trainer_module
from qwen_vl_grpo.correction import importance_weights
from qwen_vl_grpo.errors import RolloutError

ONE, TWO = ((112, 112),), ((112, 112), (100, 150))


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
@pytest.mark.parametrize("sizes", [ONE, TWO], ids=["one picture", "two pictures"])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_three_steps_sample_what_the_trainer_scores(trainer_of, family, sizes, lora):
    trainer, samples = trainer_of(family, sizes, lora)
    three_steps.take(trainer, samples)
    assert min(metrics(trainer, "rollouts/raw_effective_sample_size")) > 0.999


def test_the_policy_reads_each_sample_once_a_step(trainer_of, monkeypatch):
    trainer, _ = trainer_of(batch_size=4, gradient_accumulation_steps=2, importance_correction="sequence_mask")
    published, ratios = GRPOTrainer._get_per_token_logps_and_entropies, []
    rows = []

    def counted(self, model, ids, *arguments, **named):
        rows.append(len(ids))
        return published(self, model, ids, *arguments, **named)

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", counted)
    monkeypatch.setattr(trainer_module, "importance_weights", lambda *given: ratios.append(importance_weights(*given)) or ratios[-1])
    trainer.train()
    assert rows == [4] * 2 * 3
    assert [tuple(ratio.shape) for ratio in ratios] == [(4, 1)] * 6
    assert all(torch.allclose(ratio, torch.ones(4, 1), atol=1e-3) for ratio in ratios)


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


def test_at_another_temperature_too(trainer_of):
    trainer, samples = trainer_of(temperature=0.7)
    before = parity.check(trainer, samples, "before the first step")
    trainer.train()
    after = parity.check(trainer, samples, "after the last step")
    gaps = [*metrics(trainer, "rollouts/logp_difference/mean"), before["parity/pictures"], after["parity/pictures"], after["parity/text"]]
    assert len(gaps) == 6
    assert max(gaps) < BOUND


def test_the_gate_sees_log_probabilities_that_are_not_scaled_by_the_temperature(trainer_of):
    trainer, samples = trainer_of(temperature=0.7, engine={"enforce_eager": True, "logprobs_mode": "raw_logprobs"})
    with pytest.raises(RolloutError, match="look at the weight sync, then at dtype and temperature"):
        parity.check(trainer, samples, "now")
