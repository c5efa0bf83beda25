#!/usr/bin/env bash
# The documented launcher of the run on clips (docs/video.md); what stands behind it goes to `grpo train`.
#   ./scripts/train_grpo.sh --set dataset_use=my_clips --set run_id=my-clips
#   ./scripts/train_grpo.sh --dry_run
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" src/fine_tuning/train.py --config configs/video_actions.yaml "$@"
