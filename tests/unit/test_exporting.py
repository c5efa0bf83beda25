"""Covers a run as one full checkpoint: it is base and adapter and not the base, on every family, or it is not there."""

import json
import subprocess
import sys

import pytest
import torch
from peft import get_peft_model
from transformers import AutoModelForImageTextToText

from qwen_vl_grpo import exporting, policy, registry, transformers_backend
from qwen_vl_grpo.errors import RegistryError
from qwen_vl_grpo.interfaces import RunCard


@pytest.fixture
def run(checkpoint, config_of, tmp_path):
    """A run whose adapter, or whose whole model, was pushed this far; returns its card and folder."""

    def make(push, family="qwen2_5_vl", **changes):
        config = config_of(run_id="v1", model_name=checkpoint(family), output_dir=str(tmp_path / "outputs"), **changes)
        folder = registry.claim(config)
        processor, model = policy.load_processor(config), policy.load_model(config)
        torch.manual_seed(0)
        if config.lora.enabled:
            model = get_peft_model(model, policy.adapter(config.lora))
        for name, weight in model.named_parameters():
            if "lora_B" in name or not config.lora.enabled:
                weight.data += push * torch.randn_like(weight)
        model.save_pretrained(folder / "checkpoint-1")
        processor.save_pretrained(folder / "checkpoint-1")
        files = registry.hash_files(folder, "checkpoint-1")
        card = RunCard(
            run_id="v1", task="t", base_model="b", state="finished", config=config.model_dump(mode="json"), checkpoint="checkpoint-1",
            checkpoint_files=files, system_prompt="Reply.",
        )  # fmt: skip
        registry.write(card, folder)
        return card, folder

    return make


@pytest.mark.parametrize(
    ("family", "lora"),
    [
        ("qwen2_vl", {}), ("qwen2_5_vl", {"vision": True}), ("qwen3_vl", {"vision": True}),
        ("qwen2_vl", {"enabled": False}), ("qwen2_5_vl", {"enabled": False}), ("qwen3_vl", {"enabled": False}),
    ],
)  # fmt: skip
def test_the_checkpoint_is_the_policy_to_transformers(run, tmp_path, family, lora):
    card, folder = run(0.1, family, lora=lora)
    record = exporting.export(card, folder, tmp_path / "merged")
    assert record["moved_by_writing"] < 1e-4 < 0.01 < record["moved_by_training"]
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged")
    model, processor, _ = transformers_backend.load_run(card, folder)
    again = policy.AutoProcessor.from_pretrained(tmp_path / "merged")
    assert exporting.apart(exporting.probabilities(loaded, again), exporting.probabilities(model, processor)) < 1e-4
    assert not list((tmp_path / "merged").glob("adapter*"))
    assert json.loads((tmp_path / "merged/grpo_export.json").read_text()) == record
    assert record["system_prompt"] == "Reply."


def test_an_export_in_bfloat16_is_within_its_bound(run, tmp_path):
    record = exporting.export(*run(0.1), tmp_path / "merged", "bfloat16")
    assert record["dtype"] == "bfloat16"
    assert 0 < record["moved_by_writing"] <= exporting.BOUNDS["bfloat16"]


def test_an_adapter_that_bfloat16_rounds_away_is_not_exported_in_it(run, tmp_path):
    card, folder = run(1e-5)
    with pytest.raises(RegistryError, match="is not the run's policy and was deleted; export it with --dtype float32"):
        exporting.export(card, folder, tmp_path / "merged", "bfloat16")
    assert not list(tmp_path.glob("*merged*"))
    assert exporting.export(card, folder, tmp_path / "merged", "float32")["moved_by_training"] > 0


def test_a_merge_that_leaves_the_adapter_out_is_caught(run, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "plain", lambda model: model.unload())
    with pytest.raises(RegistryError, match="is not the run's policy"):
        exporting.export(*run(0.1), tmp_path / "merged")
    assert not list(tmp_path.glob("*merged*"))


def test_a_full_fine_tune_that_is_its_base_is_said_to_be_so(run, tmp_path):
    with pytest.raises(RegistryError, match="is the base model to the last digit"):
        exporting.export(*run(0.0, lora={"enabled": False}), tmp_path / "merged")


def test_a_folder_that_holds_something_is_not_written_over(run, tmp_path):
    (tmp_path / "merged").mkdir()
    (tmp_path / "merged/mine.txt").write_text("mine")
    with pytest.raises(RegistryError, match="is there already, and is not written over"):
        exporting.refuse(*run(0.1), tmp_path / "merged")


def test_an_adapter_on_a_base_in_four_bits_is_refused(run, tmp_path):
    card, folder = run(0.1)
    card.config["lora"]["quantization"] = "4bit"
    with pytest.raises(RegistryError, match="trained on a base in 4 bits"):
        exporting.refuse(card, folder, tmp_path / "merged")


def test_a_full_disk_leaves_nothing_behind(run, tmp_path):
    import resource

    card, folder = run(0.1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
        with pytest.raises(RegistryError, match=r"cannot be written \(.*\); make room"):
            exporting.export(card, folder, tmp_path / "merged")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.glob("*merged*"))


def test_a_merged_copy_is_deleted_once_the_process_that_used_it_is_dead(tmp_path):
    copy = tmp_path / "v1-abc"
    copy.mkdir()
    (copy / "model.safetensors").write_bytes(b"weights")
    holding = "import pathlib, sys, time; from qwen_vl_grpo import attempts; f = attempts.hold(pathlib.Path(sys.argv[1]))"
    process = subprocess.Popen([sys.executable, "-c", f"{holding}; print(flush=True); time.sleep(60)", copy], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    exporting.sweep(tmp_path)
    assert (copy / "model.safetensors").exists()
    process.kill()
    process.communicate()
    exporting.sweep(tmp_path)
    assert not copy.exists()
