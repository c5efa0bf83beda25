#!/usr/bin/env bash
# Image editing on eight cards with LoRA: a whole policy and renderer on each. `tail -f outputs/drgrpo_qwenie/training.log` follows it.
#   ./scripts/run_8gpu.sh --set run_id=edit-2 --set max_steps=300
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" -m qwen_vl_grpo launch --gpus 8 --config configs/image_edit.yaml "$@"
