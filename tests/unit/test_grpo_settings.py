"""Covers the one place where our keys become TRL's GRPOConfig."""

import dataclasses

import pytest
from trl.trainer.grpo_config import GRPOConfig

from qwen_vl_grpo import assembly, launch, policy
from qwen_vl_grpo import config as configs
from qwen_vl_grpo.errors import ConfigError

FIELDS = {field.name for field in dataclasses.fields(GRPOConfig)}


@pytest.fixture
def settings(checkpoint, config_of, tmp_path):
    def make(weights=(1.0,), **changes):
        config = config_of(model_name=checkpoint("qwen2_5_vl"), **changes)
        return assembly.grpo_config(config, policy.load_processor(config), list(weights), tmp_path)

    return make


def test_gradients_under_fsdp2_are_parted_after_every_micro_step(settings, monkeypatch):
    parted = lambda: settings(gradient_accumulation_steps=2).accelerator_config.gradient_accumulation_kwargs  # noqa: E731
    assert parted() is None
    for name, value in launch.TOLD["fsdp2"].items():
        monkeypatch.setenv(name, value)
    assert parted() == {"sync_each_batch": True}


@pytest.mark.parametrize("key", configs.TRL_KEYS)
def test_every_key_that_may_not_be_repeated_is_a_field_of_trl(key):
    assert key in FIELDS


@pytest.mark.parametrize(
    "keys",
    [
        {"learning_rate": 1e-3}, {"max_steps": 7}, {"seed": 9}, {"num_generations": 4}, {"max_completion_length": 33}, {"temperature": 0.7},
        {"beta": 0.04}, {"loss_type": "dr_grpo"}, {"scale_rewards": "none"}, {"gradient_accumulation_steps": 4}, {"logging_steps": 5},
        {"save_steps": 3}, {"gradient_checkpointing": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_key_of_ours_reaches_the_field_of_the_same_name(settings, keys):
    made = settings(**keys)
    assert {key: getattr(made, key) for key in keys} == keys


def test_batch_size_is_completions_a_device(settings):
    made = settings(batch_size=4, gradient_accumulation_steps=2)
    assert (made.per_device_train_batch_size, made.generation_batch_size) == (4, 8)


def test_without_save_steps_only_the_last_step_is_saved(settings):
    assert settings(max_steps=7).save_steps == 7


def test_the_weights_of_the_rewards_reach_trl(settings):
    assert settings(weights=[1.0, 0.25]).reward_weights == [1.0, 0.25]


@pytest.mark.parametrize(("report_to", "given"), [("none", []), ("wandb", ["wandb"]), (["tensorboard", "wandb"], ["tensorboard", "wandb"])])
def test_the_tracker_is_the_one_of_the_config(settings, report_to, given):
    assert settings(tracking={"report_to": report_to}).report_to == given


def test_the_trl_section_sets_any_other_field(settings):
    made = settings(trl={"epsilon_high": 0.28, "lr_scheduler_type": "cosine", "warmup_steps": 2})
    assert (made.epsilon_high, made.lr_scheduler_type, made.warmup_steps) == (0.28, "cosine", 2)


def test_generation_arguments_of_the_user_come_beside_the_forbidden_placeholders(settings):
    made = settings(trl={"generation_kwargs": {"length_penalty": 1.5}})
    assert made.generation_kwargs["length_penalty"] == 1.5
    assert len(made.generation_kwargs["suppress_tokens"]) == 2


def test_a_field_that_trl_does_not_have_gets_the_nearest_one(config_of):
    with pytest.raises(ConfigError, match=r"trl\.epsilon_hi: GRPOConfig has no such field; did you mean 'epsilon_high'\?"):
        assembly.check_trl_fields(config_of(trl={"epsilon_hi": 0.28}))
    assembly.check_trl_fields(config_of(trl={"epsilon_high": 0.28}))


def test_what_trl_refuses_is_refused_in_one_sentence(settings):
    with pytest.raises(ConfigError, match=r"^TRL refuses these settings: ") as error:
        settings(trl={"generation_batch_size": 16, "steps_per_generation": 2})
    assert "\n" not in str(error.value)


def test_the_reference_of_full_fine_tuning_is_of_the_revision_that_the_policy_is_of(settings):
    asked = {"model_revision": "abc", "beta": 0.1}
    assert settings(**asked, lora={"enabled": False}).model_init_kwargs == {"revision": "abc"}
    assert settings(**asked).model_init_kwargs is None  # an adapter is switched off instead
