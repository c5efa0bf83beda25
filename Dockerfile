# Stage 2: this project on a vLLM base image (stage 1: build_vllm_mi300x.sh or build_cuda.sh).
#   docker build -t mi300x-grpo-env .
#   docker build -t h200-grpo-env --build-arg BASE_IMAGE=vllm-cuda:v0.25.1 --build-arg ACCELERATOR=cuda .
#   docker buildx bake mi300x|h200|cpu                        # the same, with the commit and the version in labels and tags
# docs/containers.md has the lines to run it with. The default base is the MI300X one; stage 2 never changes its torch or vLLM.
ARG BASE_IMAGE=vllm-mi300x:v0.25.1
ARG CPU_BASE_IMAGE=python:3.12-slim-bookworm

# A base without a GPU: `--build-arg BASE_IMAGE=cpu-base --build-arg ACCELERATOR=cpu --target cpu`.
FROM ${CPU_BASE_IMAGE} AS cpu-base
# An index of torch's CPU builds; PyPI's has the CUDA libraries too, 5 GB that a CPU has no use for.
ARG TORCH_INDEX_URL
RUN --mount=type=cache,target=/root/.cache/pip \
    PIP_INDEX_URL=${TORCH_INDEX_URL} python3 -m pip install torch==2.14.1 torchvision==0.29.1

FROM ${BASE_IMAGE} AS installed
ARG ACCELERATOR=rocm
ENV PIP_BREAK_SYSTEM_PACKAGES=1 PYTHONDONTWRITEBYTECODE=1
COPY containers/stage2.py containers/versions.env /opt/grpo/
RUN ACCELERATOR=${ACCELERATOR} python3 /opt/grpo/stage2.py record
COPY requirements.txt requirements/image-${ACCELERATOR}.lock /opt/grpo/
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 /opt/grpo/stage2.py install /opt/grpo/image-${ACCELERATOR}.lock && python3 /opt/grpo/stage2.py prove

# Every cache lies on one volume that any user may write to, so that a read-only root and --user work and a second run is warm.
ENV HF_HOME=/cache/huggingface VLLM_CACHE_ROOT=/cache/vllm TRITON_CACHE_DIR=/cache/triton TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    WANDB_CACHE_DIR=/cache/wandb WANDB_CONFIG_DIR=/cache/wandb XDG_CACHE_HOME=/cache \
    PYTHONPATH=/workspace/src PYTHONUNBUFFERED=1
COPY --chmod=755 containers/entrypoint.sh containers/grpo /usr/local/bin/
RUN mkdir -m 1777 /cache && install -d -o 1000 -g 1000 /workspace && install -d -m 1777 /workspace/outputs
VOLUME /cache
WORKDIR /workspace
HEALTHCHECK NONE
ENTRYPOINT ["dumb-init", "--single-child", "--", "entrypoint.sh"]
CMD ["bash"]

# Modules apart from packages, so that a changed module is one layer of less than a megabyte.
FROM installed AS parts
COPY src src
RUN mkdir modules && mv src/qwen_vl_grpo/*.py modules

FROM installed AS source
COPY --chown=1000:1000 pyproject.toml ./
COPY --chown=1000:1000 configs configs
COPY --from=parts --chown=1000:1000 /workspace/src src
COPY --from=parts --chown=1000:1000 /workspace/modules src/qwen_vl_grpo
RUN grpo --help >/dev/null

FROM source AS cpu
COPY --chown=1000:1000 . .

FROM source
ARG BASE_IMAGE
ARG REVISION=unknown
LABEL org.opencontainers.image.title="qwen-vl-grpo" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
