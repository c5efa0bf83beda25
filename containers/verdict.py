"""Say in one line what this container can do, for the entrypoint; nothing heavy is imported."""

from qwen_vl_grpo import hardware

seen = hardware.detect()
versions = hardware.versions()
if not seen.accelerated:
    said = "no GPU is visible; on AMD add --device=/dev/kfd --device=/dev/dri to docker run, on NVIDIA --gpus all"
elif misfit := hardware.vllm_misfit():
    said = misfit
else:
    said = f"{seen.devices} x {seen.name} ({seen.kind}), torch {versions.get('torch')}, vLLM {hardware.vllm_version()}"
print(f"entrypoint: {said}")
