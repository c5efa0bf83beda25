#!/usr/bin/env bash
# The learned GPU task: a random 115 M Qwen2.5-VL is warmed up, then learns to read digits with GRPO on a LoRA adapter, through vLLM.
# Needs a GPU, vLLM, this project's requirements and scikit-learn. Arguments go to the training command (--set key=value).
# Usage: bash benchmarks/gpu_digits.sh      (from the project's root; about 7 minutes on one H100)
set -euo pipefail
python=${PYTHON:-python3}
export VLLM_USE_FLASHINFER_SAMPLER=0 PYTHONPATH=src:.${PYTHONPATH:+:$PYTHONPATH}
$python -m demo.tiny_qwen outputs/gpu/qwen2.5-vl-100m-random --size 100m
$python -c "from pathlib import Path; from demo import digits; print(digits.write(Path('outputs/gpu/digits-noisy'), warmup_rows=3771))"
$python src/fine_tuning/train.py --config configs/gpu/digits.yaml "$@"
$python benchmarks/curves.py outputs/gpu/gpu-digits
$python src/inference/inference.py --run_id gpu-digits --image_path outputs/gpu/digits-noisy/pictures/0000.png \
  --prompt "Which digit is this?" --json
