"""Covers what only the heavy libraries can refuse: still one sentence, and still before the run has a folder."""

import importlib.util
import json
import shutil

import pytest
from PIL import Image
from transformers import LlamaConfig

from qwen_vl_grpo import assembly, hardware, training
from qwen_vl_grpo.errors import GrpoError, HardwareError

CHANGES = {
    "a reward file that cannot be imported": ({"rewards": [{"function": "broken_reward.py:f"}]}, "broken_reward.py cannot be imported"),
    "a field that TRL does not have": ({"trl": {"epsilon_hi": 0.3}}, "did you mean 'epsilon_high'"),
    "settings that TRL refuses": ({"trl": {"generation_batch_size": 16, "steps_per_generation": 2}}, "TRL refuses these settings"),
    "a warm-up without targets": ({"warmup": {"dataset_name": "rows", "dataset_split": "train"}}, "every row needs a `target`"),
    "a model that is not there": ({"model_name": "./nowhere"}, "model_name ./nowhere"),
    "a model of another family": ({"model_name": "stranger"}, "is of the family llama"),
    "a split that is not there": ({"evaluation": {"dataset_split": "test"}}, "no split 'test'"),
    "a data set that is not there": ({"dataset_name": "./gone"}, "there is no file or folder ./gone"),
    "a server that is not there": (
        {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": "http://127.0.0.1:9", "vllm_server_weights": "."},
        "start it with: VLLM_SERVER_DEV_MODE=1 vllm serve ",
    ),
}
if importlib.util.find_spec("flash_attn") is None:
    CHANGES["an attention kernel that is not installed"] = ({"attn_implementation": "flash_attention_2"}, "take auto or sdpa")
if importlib.util.find_spec("bitsandbytes") is None:
    CHANGES["a 4-bit base without its library"] = ({"lora": {"quantization": "4bit"}}, "needs the bitsandbytes package")


@pytest.fixture
def folder(tmp_path, checkpoint, monkeypatch):
    """A folder to train in: two rows, a checkpoint of another family, and a reward that cannot be imported."""
    (tmp_path / "rows").mkdir()
    Image.new("RGB", (56, 56), "red").save(tmp_path / "rows/red.png")
    row = json.dumps({"image": "red.png", "question": "Which colour?", "answer": "red"}) + "\n"
    (tmp_path / "rows/train.jsonl").write_text(row * 2)
    (tmp_path / "broken_reward.py").write_text("import nothing_like_this\n")
    shutil.copytree(checkpoint("qwen2_5_vl"), tmp_path / "stranger")
    LlamaConfig().save_pretrained(tmp_path / "stranger")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_that_cannot_start_leaves_no_folder_and_no_entry(folder, own_home, checkpoint, config_of, change):
    changes, said = CHANGES[change]
    base = {"output_dir": "runs", "model_name": checkpoint("qwen2_5_vl"), "dataset_name": "rows", "dataset_split": "train"}
    config = config_of(**(base | {"max_completion_length": 8, "tracking": {"report_to": "none"}} | changes))
    with pytest.raises(GrpoError) as error:
        training.train(config)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert not (folder / "runs").exists()
    assert not (own_home / "index").exists()


def test_a_run_that_its_own_rows_make_too_large_leaves_no_folder_either(folder, own_home, checkpoint, config_of, monkeypatch):
    monkeypatch.setattr(hardware, "memory_gib", lambda machine: 0.5)
    base = {"output_dir": "runs", "model_name": checkpoint("qwen2_5_vl"), "dataset_name": "rows", "dataset_split": "train"}
    config = config_of(**base, max_completion_length=8)
    with pytest.raises(HardwareError, match=r"run unit: does not fit this card's 0\.5 GiB by `grpo plan`, with prompts of up to \d+"):
        training.train(config)
    assert not (folder / "runs").exists()
    assert assembly.prepare(config.model_copy(update={"allow_tight_memory": True}))
