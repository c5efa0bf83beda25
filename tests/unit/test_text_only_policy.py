"""Covers a text-only policy from training to a checkpoint of its own: whole weights, another attempt, export, the engine's options."""

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from qwen_vl_grpo import assembly, exporting, loading, model_card, registry, training, transformers_backend, vllm_backend
from qwen_vl_grpo.errors import PolicyError

BREVITY = "def brevity(completions, **_):\n    return [-0.01 * len(completion[0]['content']) for completion in completions]\n"


@pytest.fixture
def settings(tmp_path, monkeypatch, checkpoint):
    """A run of text prompts with a reward of one's own, on the tiny Qwen3 of text alone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("a purple cat\na square wheel\n")
    (tmp_path / "brevity.py").write_text(BREVITY)
    return {
        "model_name": checkpoint("qwen3"), "dataset_name": "prompts.txt", "task": {"name": "prompt_enhancement"}, "output_dir": "runs",
        "rewards": [{"function": "brevity.py:brevity"}], "max_completion_length": 8, "batch_size": 4, "num_generations": 4,
        "gradient_accumulation_steps": 1, "learning_rate": 0.05, "max_steps": 1, "tracking": {"report_to": "none"},
    }  # fmt: skip


@pytest.mark.parametrize("lora", [{"enabled": False}, {"r": 4}], ids=["whole", "adapter"])
def test_a_run_goes_on_and_is_exported_as_what_transformers_loads(config_of, settings, tmp_path, lora):
    training.train(config_of(**settings, lora=lora))
    card = training.train(config_of(**settings | {"max_steps": 2}, lora=lora), resume=True)
    assert card.checkpoint == "checkpoint-2" and card.proof["outputs"]
    run_dir = registry.resolve("unit")[1]
    record = exporting.export(card, run_dir, tmp_path / "full")
    assert record["moved_by_training"] > 0.01 > record["moved_by_writing"]
    asked = AutoTokenizer.from_pretrained("full")("a cat", return_tensors="pt")
    own, *_ = transformers_backend.load_run(card, run_dir)
    written = AutoModelForCausalLM.from_pretrained("full")
    assert own(**asked).logits.sub(written(**asked).logits).abs().max() < 1e-3
    page = model_card.render(card, "me/runs", "v1")
    assert "AutoModelForCausalLM.from_pretrained(" in page and "ImageText" not in page and "image" not in page.split("## Use it")[1][:400]
    assert "pipeline_tag: text-generation" in page


def test_the_engine_is_told_nothing_of_pictures_and_another_base_is_refused(config_of, settings, checkpoint):
    config = config_of(**settings, engine={"max_num_seqs": 8})
    assert assembly.engine_options(config, assembly.prepare(config)) == {"dtype": "float32", "max_num_seqs": 8}
    card = training.train(config)
    options = vllm_backend.engine_options([loading.load(*registry.resolve("unit"))], most_images=0)
    assert {"limit_mm_per_prompt", "mm_processor_kwargs"}.isdisjoint(options)
    moved = card.model_copy(update={"config": card.config | {"model_name": checkpoint("qwen3_vl")}})
    with pytest.raises(PolicyError, match="has no picture processor; use a Qwen-VL checkpoint"):
        loading.load(moved, config.run_dir)


def test_a_row_with_a_picture_is_refused_before_the_run_has_a_folder(config_of, settings, tmp_path):
    from PIL import Image

    Image.new("RGB", (56, 56), "red").save(tmp_path / "red.png")
    (tmp_path / "seen.jsonl").write_text(json.dumps({"image": "red.png", "question": "Which colour?", "answer": "red"}) + "\n")
    config = config_of(**settings | {"dataset_name": "seen.jsonl", "task": {"name": "visual_reasoning"}, "data": {"overlong": "drop"}})
    with pytest.raises(
        PolicyError, match=r"reads text alone, and row 0 of task visual_reasoning has a picture; take a Qwen-VL checkpoint$"
    ):
        training.train(config)
    assert not (tmp_path / "runs").exists()
