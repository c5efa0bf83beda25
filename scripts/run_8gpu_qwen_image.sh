#!/usr/bin/env bash
# Text to image on eight cards with LoRA, drawn by Qwen-Image. `tail -f outputs/grpo_qwen_image/training.log` follows it.
#   ./scripts/run_8gpu_qwen_image.sh --set data.disciplines=Biology
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" -m qwen_vl_grpo launch --gpus 8 --config configs/text_to_image.yaml "$@"
