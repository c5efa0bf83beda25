"""Covers the benchmark of answers by run_id: what it does on a GPU is done here with a tiny model, to the last ratio."""

import json
from pathlib import Path

from PIL import Image

from benchmarks import gpu_answers
from qwen_vl_grpo import config as configs

SOURCE = Path(__file__).parents[2] / "src"


def test_the_row_measures_all_three_ratios_and_keeps_what_it_has(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.setattr(gpu_answers, "RUNS", 2)
    monkeypatch.setattr(gpu_answers, "SHARE", 2)
    for number in range(6):
        Image.new("RGB", (56 + number, 84), (40 * number, 90, 200)).save(tmp_path / f"{number}.png")
    rows = [{"question": "Which digit is this?", "image": f"{number}.png"} for number in range(6)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {
        "run_id": "rows", "model_name": checkpoint("qwen2_5_vl"), "output_dir": str(tmp_path), "max_completion_length": 8,
        "dtype": "float32", "vllm_max_model_length": 512, "engine": {"enforce_eager": True},
    }  # fmt: skip
    gpu_answers.make(configs.check(given), tmp_path)
    gpu_answers.questions(tmp_path / "train.jsonl", tmp_path)
    whole = gpu_answers.throughput(tmp_path, rounds=1)
    assert whole["answers of LLM.chat that are ours"] == whole["requests"] == 6
    assert all(moved > 0 for moved in whole["adapters moved a canary by"].values())
    assert whole["tokens until the two part, median"] > 1
    assert whole["tokens"]["one adapter"] == whole["tokens"]["LLM.chat"] > 6
    (tmp_path / "throughput.json").write_text(json.dumps(whole))
    (tmp_path / "answers-1.json").write_text(json.dumps({"seconds": 7.0, "answers": 2}))
    found = gpu_answers.row(tmp_path)
    assert [found["measured"][name].get("answers") for name in ("all", "answers-0", "answers-1")] == [4, 2, 2], found
    assert found["measured"]["answers-1"]["seconds"] == 7.0
    assert found["ratios"].keys() == gpu_answers.NEEDED.keys()
    assert found["ratios"]["eight engines / one engine"]["engines that ran"] == 2
