"""Covers what is kept of a run that something stops on the way: the last finished step, whole, from which it goes on."""

import json
import random
import shutil
import signal

import numpy
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import Trainer
from trl.trainer.utils import RepeatSampler

from qwen_vl_grpo import assembly, attempts, checkpoints, registry, rescue, training
from qwen_vl_grpo.errors import DataError, DivergenceError, HardwareError, RewardError
from qwen_vl_grpo.ledger import Ledger

NEEDED = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"}
REWARD = """
import os, signal
calls = {"count": 0}
def initials(completions, **_):
    calls["count"] += 1
    if calls["count"] == CALL:
        TROUBLE
    return [float(len(set(completion[0]["content"]))) for completion in completions]
"""


@pytest.fixture
def config(tmp_path, checkpoint, config_of, monkeypatch):
    """A run of four steps whose reward meets the trouble in the third."""
    (tmp_path / "rows").mkdir()
    rows = []
    for number in range(6):
        Image.new("RGB", (56, 56), (40 * number, 90, 200)).save(tmp_path / f"rows/{number}.png")
        rows.append({"image": f"{number}.png", "question": f"Question {number}?", "answer": "red"})
    (tmp_path / "rows/train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)

    def make(trouble="pass", call=3, lora=True, **changes):
        (tmp_path / "initials.py").write_text(REWARD.replace("TROUBLE", trouble).replace("CALL", str(call)))
        return config_of(
            output_dir="runs", model_name=checkpoint("qwen2_5_vl"), dataset_name="rows", dataset_split="train", max_steps=4,
            rewards=[{"function": "initials.py:initials"}], learning_rate=1e-2, batch_size=4, gradient_accumulation_steps=2,
            num_generations=4, max_completion_length=8, lora={"enabled": lora}, tracking={"report_to": "none"}, **changes,
        )  # fmt: skip

    return make


def run(config, folder, resume=None):
    """Train in a folder without a card, and return the trainer."""
    folder.mkdir(parents=True)
    prepared = assembly.prepare(config)
    ledger = Ledger(folder, config.max_steps)
    try:
        trainer = assembly.build_trainer(config, prepared, assembly.load_policy(config, prepared, folder), folder, ledger)
        trainer.train(resume_from_checkpoint=resume)
    finally:
        ledger.close()
    return trainer


def learned(folder, lora):
    return load_file(folder / ("adapter_model.safetensors" if lora else "model.safetensors"))


@pytest.mark.parametrize("lora", [True, False])
def test_a_run_that_died_in_a_step_goes_on_from_the_step_before_to_the_same_weights(config, tmp_path, lora):
    run(config(lora=lora), tmp_path / "whole")
    with pytest.raises(RewardError) as error:
        training.train(config("1 / 0", lora=lora))
    card, run_dir = registry.resolve("unit")
    assert error.value.__notes__ == ["step 2 of 4 is kept in runs/unit/checkpoint-2"]
    assert (card.state, card.checkpoint) == ("failed", "checkpoint-2")
    assert {path.name for path in (run_dir / "checkpoint-2").iterdir()} > NEEDED
    registry.verify_files(card, run_dir)
    assert card.checkpoint_files
    trainer = run(config(lora=lora, run_id="again"), tmp_path / "resumed", str(run_dir / "checkpoint-2"))
    assert trainer.state.global_step == 4
    expected, found = (learned(tmp_path / name / "checkpoint-4", lora) for name in ("whole", "resumed"))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    states = [json.loads((tmp_path / name / "checkpoint-4/trainer_state.json").read_text()) for name in ("whole", "resumed")]
    assert states[0]["num_input_tokens_seen"] == states[1]["num_input_tokens_seen"]


def test_a_run_that_died_in_its_second_epoch_goes_on_in_the_order_of_that_epoch(config, tmp_path):
    longer = {"max_steps": 6}  # three steps an epoch
    run(config().model_copy(update=longer), tmp_path / "whole")
    with pytest.raises(RewardError):
        training.train(config("1 / 0", call=5).model_copy(update=longer))
    again = config(run_id="again").model_copy(update=longer)
    run(again, tmp_path / "resumed", str(registry.resolve("unit")[1] / "checkpoint-4"))
    expected, found = (learned(tmp_path / name / "checkpoint-6", lora=True) for name in ("whole", "resumed"))
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("lora", [True, False])
def test_a_run_killed_after_its_last_step_is_finished_without_another(config, lora):
    made = config(lora=lora)
    first = training.train(made)
    registry.write(first.model_copy(update={"state": "running", "checkpoint": None}), made.run_dir)
    again = training.train(made, resume=True)
    assert (again.state, again.checkpoint, again.checkpoint_files) == ("finished", "checkpoint-4", first.checkpoint_files)
    assert again.metrics["last_step"] == first.metrics["last_step"]
    assert (again.attempts[1]["first_step"], again.attempts[1]["last_step"]) == (5, 4)


def test_rows_that_have_changed_are_not_gone_on_with(config, tmp_path):
    with pytest.raises(RewardError):
        training.train(config("1 / 0"))
    path = tmp_path / "rows/train.jsonl"
    path.write_text(path.read_text().replace("red", "green"))
    with pytest.raises(DataError, match="its rows have changed since the run began"):
        training.train(config(), resume=True)


def test_trl_alone_still_forgets_the_epoch_of_the_data_order():
    assert not hasattr(RepeatSampler, "set_epoch"), "mended upstream: drop VisionGRPOTrainer._init_training_state"


def test_transformers_alone_still_resumes_a_whole_model_without_its_weights(config, tmp_path):
    trainer = run(config(lora=False), tmp_path / "whole")
    language = trainer.model.model.language_model.norm.weight
    language.data.zero_()
    Trainer._load_from_checkpoint(trainer, str(tmp_path / "whole/checkpoint-4"))
    assert not language.any(), "mended upstream: drop VisionGRPOTrainer._load_from_checkpoint"
    trainer._load_from_checkpoint(str(tmp_path / "whole/checkpoint-4"))
    assert language.all()


@pytest.mark.parametrize(("number", "error"), [("SIGINT", KeyboardInterrupt), ("SIGUSR1", rescue.Terminated)])
def test_a_signal_in_a_step_leaves_an_interrupted_run_with_its_checkpoint(config, number, error):
    before = [signal.getsignal(known) for known in attempts.STOPS]
    with pytest.raises(error):
        training.train(config(f"os.kill(os.getpid(), signal.{number})"))
    card, run_dir = registry.resolve("unit")
    assert (card.state, card.checkpoint) == ("interrupted", "checkpoint-2")
    assert checkpoints.whole(run_dir / "checkpoint-2")
    assert [signal.getsignal(known) for known in attempts.STOPS] == before


def test_a_run_that_died_in_its_first_step_keeps_nothing(config):
    with pytest.raises(RewardError):
        training.train(config("1 / 0", call=1))
    assert registry.resolve("unit")[0].checkpoint is None


@pytest.fixture
def stopped_at_two(config, tmp_path):
    """A trainer that died in its third step, with the rescue that watches it."""
    folder = tmp_path / "watched"
    folder.mkdir()
    made = config("1 / 0", save_steps=1)
    prepared = assembly.prepare(made)
    ledger, guard = Ledger(folder, made.max_steps), rescue.Rescue()
    trainer = assembly.build_trainer(made, prepared, assembly.load_policy(made, prepared, folder), folder, ledger)
    guard.watch(trainer)
    with pytest.raises(RewardError):
        trainer.train()
    ledger.close()
    return guard, folder


def test_a_checkpoint_that_is_whole_is_not_written_again(stopped_at_two, monkeypatch):
    guard, _ = stopped_at_two
    monkeypatch.setattr(guard, "_write", lambda trainer: pytest.fail("written again"))
    assert guard.keep() == "checkpoint-2"


@pytest.mark.parametrize("trouble", ["the disk is full", "the update was under way"])
def test_where_the_last_step_cannot_be_kept_the_newest_whole_checkpoint_is(stopped_at_two, monkeypatch, trouble):
    guard, folder = stopped_at_two
    shutil.rmtree(folder / "checkpoint-2")
    if trouble == "the disk is full":

        def full(*_, **__):
            raise OSError("no space left on device")

        monkeypatch.setattr(guard.trainer, "_save_rng_state", full)
    else:
        guard.on_pre_optimizer_step(None, None, None)
    assert guard.keep() == "checkpoint-1"
    assert not (folder / "checkpoint-2").exists()


def test_a_signal_within_an_update_waits_for_its_end(stopped_at_two):
    guard, _ = stopped_at_two
    state = guard.trainer.state
    guard.on_pre_optimizer_step(None, state, None)
    guard._signalled(signal.SIGTERM, None)
    guard.on_step_end(None, state, None)
    with pytest.raises(rescue.Terminated) as end:
        guard.on_step_begin(None, state, None)
    assert end.value.code == 143
    guard.on_pre_optimizer_step(None, state, None)
    with pytest.raises(KeyboardInterrupt):  # the second one does not wait
        guard._signalled(signal.SIGINT, None)


def test_the_generators_are_put_back():
    kept = rescue.generators()

    def draw():
        return random.random(), numpy.random.rand(), torch.rand(1).item()

    first_draw = draw()
    assert draw() != first_draw
    rescue.restore(kept)
    assert draw() == first_draw


def in_backward_of_step_three(monkeypatch, trouble):
    """Let a gradient of the third step, in its first of two backward passes, become what the trouble makes of it."""
    load, passes = training.load_policy, []

    def troubled(*arguments):
        model = load(*arguments)
        weight = next(weight for name, weight in model.named_parameters() if name.endswith("mlp.down_proj.weight") and "visual" not in name)
        weight.register_hook(lambda gradient: trouble(gradient) if passes.append(1) or len(passes) == 5 else gradient)
        return model

    monkeypatch.setattr(training, "load_policy", troubled)


def test_memory_that_is_used_up_is_one_sentence_and_leaves_the_step_before(config, monkeypatch):
    in_backward_of_step_three(monkeypatch, lambda _: torch.empty(1 << 60))
    with pytest.raises(HardwareError, match=r"out of memory \(.*allocate.*\); `grpo plan` says what this run needs") as error:
        training.train(config(lora=False))
    assert error.value.__notes__ == ["step 2 of 4 is kept in runs/unit/checkpoint-2"]
    card, run_dir = registry.resolve("unit")
    assert (card.state, card.checkpoint) == ("failed", "checkpoint-2")
    assert checkpoints.whole(run_dir / "checkpoint-2")


def test_a_gradient_that_is_no_number_ends_the_run_before_it_reaches_the_weights(config, monkeypatch):
    """transformers would log the mean of the earlier losses in its place, and train on with weights that are no numbers."""
    in_backward_of_step_three(monkeypatch, lambda gradient: gradient * float("nan"))
    with pytest.raises(DivergenceError, match=r"the gradient of step 3 is nan, so it was not applied; lower learning_rate") as error:
        training.train(config(lora=False))
    assert error.value.__notes__ == ["step 2 of 4 is kept in runs/unit/checkpoint-2"]
    card, run_dir = registry.resolve("unit")
    assert (card.state, card.checkpoint) == ("failed", "checkpoint-2")
    assert all(weight.isfinite().all() for weight in learned(run_dir / "checkpoint-2", lora=False).values())
