#!/usr/bin/env bash
# Image editing on eight cards, every weight of the policy learns: what a card is too small for is split over all of them.
#   ./scripts/run_8gpu_full_finetune.sh --strategy zero3          # needs DeepSpeed
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" -m qwen_vl_grpo launch --gpus 8 --config configs/image_edit.yaml --set lora.enabled=false --set run_id=drgrpo-qwenie-full "$@"
