"""Covers that what a checkpoint's folder says of sampling reaches vLLM's defaults and none of our requests."""

import json
import shutil
from pathlib import Path

from qwen_vl_grpo import policy

PENALTY = {"do_sample": True, "repetition_penalty": 5.0, "temperature": 1e-6, "top_k": 1, "top_p": 0.001, "min_p": 0.9}


def test_the_engine_samples_the_same_whatever_the_folder_would(trainer_of, checkpoint, tmp_path):
    answered = []
    for name, changes in (("plain", {}), ("opinionated", PENALTY)):
        folder = Path(shutil.copytree(checkpoint("qwen2_5_vl"), tmp_path / name))
        ids = {"eos_token_id": [2, 0], "pad_token_id": 0}
        (folder / "generation_config.json").write_text(json.dumps(ids | changes))
        trainer, samples = trainer_of("qwen2_5_vl", model_name=str(folder))
        engine = trainer.vllm_generation
        assert engine.llm.get_default_sampling_params().repetition_penalty == changes.get("repetition_penalty", 1.0)
        prompts = [policy.encode(trainer.processing_class, [sample])["input_ids"][0].tolist() for sample in samples]
        engine.sync_weights()
        answered.append(
            [engine.sample(prompts, [sample.images for sample in samples], count, heat) for count, heat in ((1, 0.0), (2, 1.0))]
        )
    assert answered[0] == answered[1]
