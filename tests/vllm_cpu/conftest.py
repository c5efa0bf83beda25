"""The real vLLM engine on a CPU, under this project's own trainer.

The lane keeps linear weights as they are loaded (plain_weights.py). All else is the product: the config's `engine:` section
asks for float32 and eager mode.
"""

import os

os.environ |= {
    "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "WANDB_MODE": "disabled",
}  # fmt: skip

import gc
import json
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

vllm = pytest.importorskip("vllm", reason="the engine lane runs in an environment of its own: make test-vllm")

import plain_weights  # noqa: F401 - before anything builds an engine

from demo import tiny_qwen
from qwen_vl_grpo import assembly, dataset, hardware, vllm_backend
from qwen_vl_grpo import config as configs
from qwen_vl_grpo.ledger import Ledger

hardware.quiet_libraries()


def pytest_collection_modifyitems(items):
    for item in items:
        if "vllm_cpu" in item.path.parts:
            item.add_marker(pytest.mark.vllm_cpu)


REWARD = Path(__file__).parents[2] / "benchmarks/noise_reward.py"


def write_picture(folder, size, seed):
    """A picture of its own for each row and size; returns its name."""
    image = Image.new("RGB", size, (40 * seed % 255, 90, 200))
    ImageDraw.Draw(image).rectangle([5, 5, 20 + 3 * seed, 30], fill="white")
    name = f"{seed}-{size[0]}x{size[1]}.png"
    image.save(folder / name)
    return name


@pytest.fixture(scope="package")
def checkpoint(tmp_path_factory):
    """A tiny checkpoint of a family, built once."""
    built = {}

    def build(family):
        if family not in built:
            built[family] = tmp_path_factory.mktemp(family)
            tiny_qwen.build(built[family], family)
        return str(built[family])

    return build


@pytest.fixture
def config_of(checkpoint, tmp_path):
    """A config with data of its own: eight questions with pictures of these sizes."""

    def build(family="qwen2_5_vl", sizes=((112, 112),), lora=True, seed=0, **changes):
        rows = [
            {"question": f"Question {i}?", "images": [write_picture(tmp_path, size, i) for size in sizes], "answer": str(i)}
            for i in range(8)
        ]
        (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        raw = {
            "run_id": "lane", "output_dir": str(tmp_path), "model_name": checkpoint(family), "seed": seed,
            "dataset_name": str(tmp_path), "dataset_split": "train", "data": {"columns": {"images": "images"}},
            "rewards": [{"function": f"{REWARD}:distinct_characters"}], "lora": {"enabled": lora},
            "use_vllm": True, "vllm_enable_sleep_mode": False, "vllm_max_model_length": 512, "engine": {"enforce_eager": True},
            "batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 4, "max_completion_length": 16, "max_steps": 3,
            "learning_rate": 1e-2, "tracking": {"report_to": "none", "log_completions": False},
        }  # fmt: skip
        return configs.check(raw | changes)

    return build


@pytest.fixture
def trainer_of(config_of, tmp_path):
    """A trainer with its engine, built as a run builds it."""
    made = []

    def build(*arguments, **changes):
        config = config_of(*arguments, **changes)
        prepared = assembly.prepare(config)
        ledger = Ledger(tmp_path, config.max_steps)
        trainer = assembly.build_trainer(config, prepared, assembly.load_policy(config, prepared, tmp_path), tmp_path, ledger)
        made.append((trainer, ledger))
        return trainer, [dataset.to_sample(row) for row in prepared.rows]

    yield build
    for trainer, ledger in made:
        ledger.close()
        vars(trainer.vllm_generation).pop("llm", None)  # a server's trainer has none
    made.clear()
    gc.collect()


@pytest.fixture
def without_tower_lora(monkeypatch):
    """vLLM as it is for a model whose tower takes no adapters."""
    published = vllm_backend.lora_options
    monkeypatch.setattr(
        vllm_backend, "lora_options", lambda *given: {k: v for k, v in published(*given).items() if k != "enable_tower_connector_lora"}
    )
