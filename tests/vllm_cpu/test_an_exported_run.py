"""Covers an exported run in vLLM: the merged checkpoint loads there and answers as the run's own policy does."""

import gc

import pytest
import torch
from peft import get_peft_model
from PIL import Image

from qwen_vl_grpo import engine_prompts, exporting, policy, processors, proof, registry
from qwen_vl_grpo.interfaces import RunCard, Sample

QUESTION = Sample(
    "0", [{"role": "user", "content": "Which digit is this?"}], [Image.linear_gradient("L").resize((112, 112)).convert("RGB")], ""
)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_vllm_answers_from_the_merged_checkpoint_as_the_adapter_does(config_of, tmp_path, family, monkeypatch):
    import vllm

    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    config = config_of(family, output_dir=str(tmp_path / "runs"), use_vllm=False)
    processor, model = policy.load_processor(config), get_peft_model(policy.load_model(config), policy.adapter(config.lora))
    base = proof.greedy(model, processor, [QUESTION], 12)[0]["ids"]
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    tuned = proof.greedy(model, processor, [QUESTION], 12)[0]["ids"]
    assert tuned != base
    folder = registry.claim(config)
    model.save_pretrained(folder / "checkpoint-1")
    processor.save_pretrained(folder / "checkpoint-1")
    files = registry.hash_files(folder, "checkpoint-1")
    card = RunCard(
        run_id=config.run_id,
        task="t",
        base_model="b",
        config=config.model_dump(mode="json"),
        checkpoint="checkpoint-1",
        checkpoint_files=files,
    )
    exporting.export(card, folder, tmp_path / "merged")
    engine = vllm.LLM(
        str(tmp_path / "merged"), dtype="float32", enforce_eager=True, max_model_len=512, limit_mm_per_prompt={"image": 1, "video": 0}
    )
    try:
        vision = processors.vision_token_ids(processor)
        prompt = engine_prompts.collapse(policy.encode(processor, [QUESTION])["input_ids"][0].tolist(), vision)
        greedy = vllm.SamplingParams(temperature=0.0, max_tokens=12, logit_bias=dict.fromkeys(vision, -100.0))
        request = {"prompt_token_ids": prompt, "multi_modal_data": {"image": list(QUESTION.images)}}
        answered = engine.generate([request], greedy, use_tqdm=False)[0].outputs[0].token_ids
        assert list(answered) == tuned
    finally:
        del engine
        gc.collect()
