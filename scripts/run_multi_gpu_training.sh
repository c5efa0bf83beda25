#!/usr/bin/env bash
# Prompt enhancement on three cards: the policy on the first, Stable Diffusion 3 on the second, CLIP on the third.
#   ./scripts/run_multi_gpu_training.sh --gpus 4,5,6
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" -m qwen_vl_grpo launch --gpus 3 --config configs/prompt_enhancement.yaml "$@"
