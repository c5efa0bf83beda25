"""Covers the hashes of a run's checkpoint: which files count, and that any change is noticed."""

import hashlib

import pytest

from qwen_vl_grpo import registry
from qwen_vl_grpo.errors import RegistryError
from qwen_vl_grpo.interfaces import RunCard


@pytest.fixture
def run(tmp_path):
    """A run's folder with a checkpoint, and its card."""
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    for name in ("model.safetensors", "config.json", "chat_template.jinja", "optimizer.pt", "training_args.bin", "trainer_state.json"):
        (folder / name).write_text(name)
    files = registry.hash_files(tmp_path, "checkpoint-3")
    card = RunCard(run_id="a", task="t", base_model="b", state="finished", checkpoint="checkpoint-3", checkpoint_files=files)
    return card, tmp_path


def test_what_inference_needs_is_hashed_and_no_pickle_is(run):
    card, _ = run
    assert sorted(card.checkpoint_files) == [
        "checkpoint-3/chat_template.jinja", "checkpoint-3/config.json", "checkpoint-3/model.safetensors"
    ]  # fmt: skip
    assert card.checkpoint_files["checkpoint-3/config.json"] == hashlib.sha256(b"config.json").hexdigest()


def test_an_untouched_checkpoint_verifies(run):
    card, run_dir = run
    registry.verify_files(card, run_dir)
    assert registry.checkpoint_folder(card, run_dir) == run_dir / "checkpoint-3"


def test_a_changed_file_is_named(run):
    card, run_dir = run
    (run_dir / "checkpoint-3/model.safetensors").write_text("model.safetensorz")
    with pytest.raises(RegistryError, match=r"model\.safetensors is missing or has changed since the run"):
        registry.verify_files(card, run_dir)


def test_a_missing_file_is_named(run):
    card, run_dir = run
    (run_dir / "checkpoint-3/config.json").unlink()
    with pytest.raises(RegistryError, match=r"config\.json is missing or has changed"):
        registry.verify_files(card, run_dir)


def test_a_run_without_a_checkpoint_says_its_state(run):
    card, run_dir = run
    unfinished = card.model_copy(update={"checkpoint": None, "state": "running"})
    with pytest.raises(RegistryError, match=r"has no checkpoint \(state: running\)"):
        registry.checkpoint_folder(unfinished, run_dir)
