#!/usr/bin/env bash
# Stage 1 for AMD MI300X (gfx942): vLLM's own Dockerfile at the pinned tag -> vllm-mi300x:<version>. `--help` has the options.
# Not run on a machine with an MI300X yet.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/containers/stage1.sh"

image=vllm-mi300x
chip="MI300X (gfx942)"
oldest=$VLLM_OLDEST_ON_ROCM
dockerfile=docker/Dockerfile.rocm
target=final
prebuilt=vllm/vllm-openai-rocm:$VLLM_VERSION
# The -base image of the release holds ROCm, PyTorch, Triton, flash-attention and AITER; the Dockerfile's default is a tag that moves.
arguments=("BASE_IMAGE=$prebuilt-base" ARG_PYTORCH_ROCM_ARCH=gfx942 NIC_BACKEND=none)

make_image "$@"
