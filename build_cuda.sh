#!/usr/bin/env bash
# Stage 1 for NVIDIA H200 and H100 (sm_90): vLLM's own Dockerfile at the pinned tag -> vllm-cuda:<version>. `--help` has the options.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/containers/stage1.sh"

image=vllm-cuda
chip="H200 and H100 (sm_90)"
oldest=$VLLM_OLDEST
dockerfile=docker/Dockerfile
target=vllm-openai
prebuilt=vllm/vllm-openai:$VLLM_VERSION
# BuildKit sees no GPU, so the architecture is named; the check of the wheel's size is about PyPI.
arguments=(torch_cuda_arch_list=9.0 nvcc_threads=4 RUN_WHEEL_CHECK=false)

make_image "$@"
