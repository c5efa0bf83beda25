"""Covers `grpo launch` on two processes, with an engine in each or one on both: each gets its own answers, and all are the policy's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from three_steps import BOUND

from benchmarks import gpu_scaling
from qwen_vl_grpo import attempts

HERE = Path(__file__).parent


@pytest.mark.parametrize("processes_an_engine", [1, 2])
def test_a_run_of_two_processes(config_of, tmp_path, processes_an_engine):
    alone = {"question": "And one?", "images": ["7-112x112.png"], "answer": "8"}  # one process has no held-out row to answer
    (tmp_path / "heldout.jsonl").write_text(json.dumps(alone))
    changes = {"engine": {"enforce_eager": True, "worker_extension_cls": "plain_weights.PlainWeights"}, "parity_every": 2}
    changes |= {"trl": {"vllm_tensor_parallel_size": processes_an_engine}, "evaluation": {"dataset_split": "heldout", "samples": 2}}
    config = config_of(batch_size=4, tracking={"report_to": "none"}, **changes)
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    command = [sys.executable, "-m", "qwen_vl_grpo", "launch", "--config", str(tmp_path / "two.yaml"), "--cpu", "2"]
    own = {
        "PYTHONPATH": os.pathsep.join(map(str, (HERE.parents[1] / "src", HERE, HERE / "an_engine_is_allowed"))),
        "GRPO_HOME": str(tmp_path / "home"),
    }
    done = subprocess.run(command, env=os.environ | own, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    card, lines = json.loads((config.run_dir / "run.json").read_text()), attempts.metrics(config.run_dir)
    assert card["state"] == "finished" and card["hardware"]["processes"] == 2 and "greedy" in card["metrics"]["after"]
    gaps = [card["metrics"]["parity"][f"parity/pictures_{rank}"] for rank in range(2)]
    assert gaps[0] != gaps[1] and max(gaps) < BOUND  # each has drawn its own answers
    later = [line for line in lines if "parity/pictures_1" in line]
    steps = [line for line in lines if "rollouts/logp_difference/mean" in line]
    assert [line["step"] for line in later] == [2] and [line["step"] for line in steps] == [1, 2, 3]
    assert max(line["parity/pictures"] for line in later) < BOUND > max(line["rollouts/logp_difference/mean"] for line in steps)
    assert min(line["grad_norm"] for line in steps) > 0
    assert gpu_scaling.found(config.run_dir)["parity"][1]["parity/pictures_1"] == round(later[0]["parity/pictures_1"], 4)
