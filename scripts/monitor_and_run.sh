#!/usr/bin/env bash
# A run that is started again from its newest whole checkpoint when it dies, three times at most; every reason is in its log and card.
#   ./scripts/monitor_and_run.sh --config configs/text_to_image.yaml
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" -m qwen_vl_grpo launch --monitor 3 --resume --config configs/image_edit.yaml "$@"
