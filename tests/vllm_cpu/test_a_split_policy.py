"""Covers a whole policy that FSDP2 splits between two processes, with a vLLM engine in each: a run from config to card."""

import json

import two_ranks
from safetensors.torch import load_file
from three_steps import BOUND

from qwen_vl_grpo import attempts, launch


def test_a_run_whose_policy_is_split_between_two_processes(config_of, tmp_path):
    trl = {"use_cpu": False, "ddp_backend": "gloo"}
    halves = {"batch_size": 2, "gradient_accumulation_steps": 2}
    config = config_of(lora=False, **halves, save_steps=1, parity_every=2, tracking={"report_to": "none"}, trl=trl)
    sharded = launch.TOLD["fsdp2"] | {
        "ACCELERATE_TORCH_DEVICE": "cpu", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
        "FSDP_RESHARD_AFTER_FORWARD": "true",
    }  # fmt: skip
    two_ranks.started("fsdp2_rank.py", config, tmp_path, **sharded)
    card, lines = json.loads((config.run_dir / "run.json").read_text()), attempts.metrics(config.run_dir)
    assert card["state"] == "finished"
    gaps = [card["metrics"]["parity"][f"parity/pictures_{rank}"] for rank in range(2)]
    steps = [line for line in lines if "rollouts/logp_difference/mean" in line]
    assert max(gaps) < BOUND > max(line["rollouts/logp_difference/mean"] for line in steps)
    assert [line["step"] for line in steps] == [1, 2, 3] and min(line["grad_norm"] for line in steps) > 0
    first, last = (load_file(config.run_dir / f"checkpoint-{step}/model.safetensors") for step in (1, 3))
    assert "lm_head.weight" not in first  # it is the embeddings'
    assert any((last[name] - weight).abs().max() > 0 for name, weight in first.items())
