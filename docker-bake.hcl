# Stage 2 for each machine: docker buildx bake mi300x|h200|cpu. The commit goes into the labels:
#   REVISION=$(git rev-parse HEAD) docker buildx bake h200
variable "VLLM_VERSION" { default = "v0.25.1" } # the tag of stage 1's image, and the second tag of stage 2's
variable "TAG" { default = "v${trimprefix(VLLM_VERSION, "v")}" } # with or without the v, as stage 1 takes it
variable "REVISION" { default = "unknown" }
variable "TORCH_INDEX_URL" { default = "" } # an index of torch's CPU builds, for cpu

group "default" { targets = ["mi300x"] }

target "gpu" {
  platforms = ["linux/amd64"]
  args      = { REVISION = REVISION }
}

target "mi300x" {
  inherits = ["gpu"]
  args     = { BASE_IMAGE = "vllm-mi300x:${TAG}", ACCELERATOR = "rocm" }
  tags     = ["mi300x-grpo-env:latest", "mi300x-grpo-env:${TAG}"]
}

target "h200" {
  inherits = ["gpu"]
  args     = { BASE_IMAGE = "vllm-cuda:${TAG}", ACCELERATOR = "cuda" }
  tags     = ["h200-grpo-env:latest", "h200-grpo-env:${TAG}"]
}

# No GPU: the demo and the tests. Nothing of stage 1 is needed.
target "cpu" {
  target = "cpu"
  args   = { BASE_IMAGE = "cpu-base", ACCELERATOR = "cpu", TORCH_INDEX_URL = TORCH_INDEX_URL }
  tags   = ["cpu-grpo-env:latest"]
}
