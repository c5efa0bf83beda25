"""Covers the stage-2 build on bases with a real torch: what it installs, what it refuses, what it keeps out, how fast it is."""

import ast
import hashlib
import json
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import bases
import pytest

PROJECT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.containers


def refusal(built):
    """The one line that a build ended with."""
    assert built.returncode != 0, built.stderr
    return re.search(r"stage 2: (.*)", built.stderr).group(1)


def torch_of(docker, name):
    code = "import torch, vllm; print(torch.__version__, torch.version.hip, torch.version.cuda, vllm.__version__)"
    return docker("run", "--rm", "--network=none", "--entrypoint=python3", name, "-c", code).strip()


def test_the_default_build_keeps_the_rocm_torch(docker, image):
    assert torch_of(docker, image) == "2.13.0+rocm7.2.3 7.2.3 None 0.25.1"


def test_the_cuda_build_keeps_the_cuda_torch_and_is_labelled(docker, base, tmp_path):
    docker.made += ["h200-grpo-env:latest", "h200-grpo-env:v0.25.1"]
    (tmp_path / "here.hcl").write_text(
        f'target "h200" {{\n  network = "host"\n  args = {{ BASE_IMAGE = "{base("cuda")}", REVISION = "abc" }}\n}}\n'
    )
    files = ["--file", "docker-bake.hcl", "--file", tmp_path / "here.hcl"]
    docker("buildx", "bake", *files, "--allow=network.host", "--allow=fs=*", "h200", cwd=PROJECT)
    assert torch_of(docker, "h200-grpo-env:v0.25.1") == "2.13.0+cu130 None 13.0 0.25.1"
    labels = docker("image", "inspect", "--format", "{{json .Config.Labels}}", "h200-grpo-env")
    assert '"org.opencontainers.image.revision":"abc"' in labels
    assert f'"org.opencontainers.image.base.name":"{base("cuda")}"' in labels


def test_a_base_for_another_gpu_is_refused(docker, base):
    said = refusal(docker.build("grpo-test-refused", check=False, BASE_IMAGE=base("cuda")))
    assert said == (
        "the base image's torch 2.13.0+cu130 was built for cuda and ACCELERATOR is rocm; give --build-arg ACCELERATOR=cuda, "
        "or a BASE_IMAGE for rocm"
    )


@pytest.mark.parametrize(("kind", "vllm", "range_"), [("rocm", "0.24.0", "0.25.0 to 0.31.0"), ("cuda", "0.32.0", "0.22.0 to 0.31.0")])
def test_a_base_whose_vllm_is_out_of_range_is_refused(docker, base, kind, vllm, range_):
    said = refusal(docker.build("grpo-test-refused", check=False, BASE_IMAGE=base(kind, vllm), ACCELERATOR=kind))
    assert said == f"the base image's vLLM is {vllm} and this project works with {range_} on {kind}; use another BASE_IMAGE"


def test_a_base_without_torch_is_refused(docker, core):
    docker.made.append("grpo-test-bare")
    without = f"FROM {core}\nRUN rm -r /usr/local/lib/python3*/dist-packages/torch-*\n"
    docker("build", "--network=host", "-t", "grpo-test-bare", "-", input=without)
    said = refusal(docker.build("grpo-test-refused", check=False, BASE_IMAGE="grpo-test-bare"))
    assert said.startswith("the base image holds no torch; give --build-arg BASE_IMAGE an image of build_vllm_mi300x.sh")


def test_a_base_without_python_is_refused(docker, core):
    docker.made.append("grpo-test-bare")
    docker("build", "--network=host", "-t", "grpo-test-bare", "-", input=f"FROM {core}\nRUN rm /usr/bin/python3*\n")
    built = docker.build("grpo-test-refused", check=False, BASE_IMAGE="grpo-test-bare")
    assert built.returncode != 0
    assert "python3: not found" in built.stderr
    assert "`python3: not found`" in (PROJECT / "docs/containers.md").read_text(encoding="utf-8")


def test_a_base_whose_python_is_too_old_is_refused():
    """Told so by its version, since no older Python need be here; the file is one that 3.10 can read."""
    stage2 = PROJECT / "containers/stage2.py"
    ast.parse(stage2.read_text(encoding="utf-8"), feature_version=(3, 10))
    older = "sys.version, sys.version_info, sys.argv[1:] = '3.10.13 (main)', (3, 10, 13), ['record']"
    code = f"import runpy, sys; {older}; runpy.run_path({str(stage2)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], env={"ACCELERATOR": "rocm"}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "stage 2: the base image's Python is 3.10.13 and this project needs 3.11 or newer; use another BASE_IMAGE\n"


def test_an_image_for_another_processor_is_told_as_the_documentation_lists_it(docker, tmp_path):
    """This machine stands for the arm node, and an image for arm for one that is for amd64."""
    docker.made.append("grpo-test-arm")
    program = bytearray(Path("/bin/sh").read_bytes())
    program[18:20] = (183).to_bytes(2, "little")  # what the header says of the processor: AArch64
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sh").write_bytes(program)
    (tmp_path / "bin/sh").chmod(0o755)
    subprocess.run(["tar", "-C", tmp_path, "-cf", tmp_path / "arm.tar", "bin"], check=True)
    docker("import", "--platform=linux/arm64", tmp_path / "arm.tar", "grpo-test-arm")
    ran = docker.run("run", "--rm", "--network=none", "grpo-test-arm", "/bin/sh", "-c", "true", check=False).stderr
    built = docker.build("grpo-test-refused", check=False, BASE_IMAGE="grpo-test-arm").stderr  # asked for at a registry, since none fits
    listed = (PROJECT / "docs/containers.md").read_text(encoding="utf-8")
    for said, told in ((ran, "does not match the detected host platform"), (ran, "exec format error"), (built, "failed to resolve source")):
        assert told in said
        assert f"`{told}" in listed


def test_a_bake_of_each_machine_builds_on_its_own_base_and_has_the_version_as_its_second_tag(docker):
    made = docker.run("buildx", "bake", "--print", "mi300x", "h200", "cpu", cwd=PROJECT).stdout
    targets = json.loads(made)["target"]
    told = {name: (each["args"]["ACCELERATOR"], each["args"]["BASE_IMAGE"], each["tags"]) for name, each in targets.items()}
    assert told == {
        "mi300x": ("rocm", "vllm-mi300x:v0.25.1", ["mi300x-grpo-env:latest", "mi300x-grpo-env:v0.25.1"]),
        "h200": ("cuda", "vllm-cuda:v0.25.1", ["h200-grpo-env:latest", "h200-grpo-env:v0.25.1"]),
        "cpu": ("cpu", "cpu-base", ["cpu-grpo-env:latest"]),
    }
    assert {name: each.get("platforms") for name, each in targets.items()} == {
        "mi300x": ["linux/amd64"], "h200": ["linux/amd64"], "cpu": None,
    }  # fmt: skip
    dockerfile = (PROJECT / "Dockerfile").read_text(encoding="utf-8")
    for each in targets.values():
        assert set(each["args"]) <= set(re.findall(r"^ARG (\w+)", dockerfile, re.MULTILINE))
        assert (PROJECT / f"requirements/image-{each['args']['ACCELERATOR']}.lock").is_file()
        assert "target" not in each or re.search(rf"^FROM .* AS {each['target']}$", dockerfile, re.MULTILINE)
    assert list(json.loads(docker.run("buildx", "bake", "--print", cwd=PROJECT).stdout)["target"]) == ["mi300x"]


def test_a_bake_takes_the_version_as_stage_1_does(docker, monkeypatch):
    for given in ("0.26.0", "v0.26.0"):
        monkeypatch.setitem(docker.environment, "VLLM_VERSION", given)
        made = json.loads(docker.run("buildx", "bake", "--print", "h200", cwd=PROJECT).stdout)["target"]["h200"]
        assert (made["args"]["BASE_IMAGE"], made["tags"][1]) == ("vllm-cuda:v0.26.0", "h200-grpo-env:v0.26.0")


def test_an_unknown_base_is_named(docker):
    built = docker.build("grpo-test-refused", check=False, BASE_IMAGE="localhost:1/nobody/made:this")
    assert built.returncode != 0
    assert "localhost:1/nobody/made:this" in built.stderr


def test_a_lock_that_names_another_torch_fails_the_build(docker, base, image, checkout):
    lock = checkout / "requirements/image-rocm.lock"
    lock.write_text(f"torch==2.14.1 \\\n    --hash=sha256:{'0' * 64}\n{lock.read_text()}")
    built = docker.build("grpo-test-refused", checkout, check=False, BASE_IMAGE=base("rocm"))
    assert refusal(built) == "image-rocm.lock names torch==2.14.1, and the base image brings torch 2.13.0+rocm7.2.3; run `make lock` again"
    record = re.search(r"(#\d+) \[installed \d/\d] RUN .* record\n", built.stderr).group(1)
    assert f"{record} CACHED" in built.stderr, "a change of the lock looked at the base again"


def test_a_package_that_writes_into_the_bases_files_fails_the_build(docker, base, checkout):
    wheel = checkout / "containers/poison-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("flash_attn/__init__.py", "__version__ = '2.8.3'  # not the base's\n")
        archive.writestr("poison-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: poison\nVersion: 1.0\n")
        archive.writestr("poison-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("poison-1.0.dist-info/RECORD", "flash_attn/__init__.py,,\n")
    (checkout / "poison.Dockerfile").write_text(f"FROM {base('rocm')}\nCOPY containers/{wheel.name} /\n")
    docker.made.append("grpo-test-poison")
    docker("build", "-q", "-t", "grpo-test-poison", "-f", checkout / "poison.Dockerfile", checkout)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (checkout / "requirements/image-rocm.lock").write_text(f"poison @ file:///{wheel.name} \\\n    --hash=sha256:{digest}\n")
    said = refusal(docker.build("grpo-test-refused", checkout, check=False, BASE_IMAGE="grpo-test-poison"))
    assert said == "flash-attn 2.8.3 is no longer byte for byte the base's: a package wrote into its files"


def test_a_changed_source_file_costs_seconds_and_less_than_a_megabyte(docker, base, image, checkout):
    docker.build("grpo-test-again", checkout, BASE_IMAGE=base("rocm"))
    held = layers(docker, "grpo-test-again")
    with (checkout / "src/qwen_vl_grpo/errors.py").open("a") as file:
        file.write("\n# changed\n")
    started = time.monotonic()
    docker.build("grpo-test-again", checkout, BASE_IMAGE=base("rocm"))
    assert time.monotonic() - started < bases.patience(5)
    assert 0 < sum(new_sizes(docker, "grpo-test-again", held)) < 1_000_000
    assert len(history(docker, image)) == len(history(docker, "grpo-test-again"))


def new_sizes(docker, name, held):
    """The bytes of each layer of the image that is none of these."""
    sizes = [int(float(line.split()[0])) for line in history(docker, name) if line.split()[1:2] in (["RUN"], ["COPY"])]  # the newest first
    return sizes[: len([layer for layer in layers(docker, name) if layer not in held])]


def history(docker, name):
    return docker("history", "--human=false", "--no-trunc", "--format", "{{.Size}} {{.CreatedBy}}", name).splitlines()


def layers(docker, name):
    """The hashes of an image's layers, which are equal where what they hold is."""
    return json.loads(docker("inspect", "--format", "{{json .RootFS.Layers}}", name))


def test_the_context_is_small(docker, base, checkout):
    (checkout / "outputs").mkdir()
    (checkout / "outputs/model.safetensors").write_bytes(bytes(5_000_000))
    (checkout / "src/fresh.txt").write_text("so that something is sent")
    log = docker.build("grpo-test-again", checkout, BASE_IMAGE=base("rocm")).stderr
    sent = re.search(r"transferring context: ([\d.]+)(B|kB|MB)", log)
    assert float(sent.group(1)) * {"B": 1, "kB": 1e3, "MB": 1e6}[sent.group(2)] < 2e6


def test_no_secret_is_in_any_layer_or_in_the_history(docker, base, checkout, monkeypatch):
    secret = "hf_" + "CANARY" * 5
    for place in (".env", "src/.env", "configs/.env", ".git/config", "wandb/settings"):
        (checkout / place).parent.mkdir(exist_ok=True)
        (checkout / place).write_text(f"HF_TOKEN={secret}\n")
    docker.environment["HF_TOKEN"] = secret
    docker.build("grpo-test-secret", checkout, BASE_IMAGE=base("rocm"))
    del docker.environment["HF_TOKEN"]
    assert secret not in docker("history", "--no-trunc", "grpo-test-secret")
    assert secret not in docker("image", "inspect", "grpo-test-secret")
    with subprocess.Popen(["docker", "save", "grpo-test-secret"], env=docker.environment, stdout=subprocess.PIPE) as save:
        read, tail = 0, b""
        while chunk := save.stdout.read(1 << 20):
            assert secret.encode() not in tail + chunk
            read, tail = read + len(chunk), chunk[-64:]
    assert save.returncode == 0
    assert read > 1e9, "the layers were not there to be read"


def test_the_dockerfile_is_clean(docker):
    checked = docker.run(
        "build", "--check", "--build-arg=BASE_IMAGE=cpu-base", "--build-arg=CPU_BASE_IMAGE=scratch", "--target=cpu", PROJECT
    )
    assert "no warnings found" in checked.stdout + checked.stderr
    checked = docker.run("build", "--check", "--build-arg=BASE_IMAGE=scratch", "--build-arg=CPU_BASE_IMAGE=scratch", PROJECT)
    assert "no warnings found" in checked.stdout + checked.stderr


def test_hadolint_finds_nothing():
    hadolint = PROJECT / ".venv/bin/hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint is not in .venv: make setup")
    subprocess.run([hadolint, PROJECT / "Dockerfile"], check=True)


def test_changed_requirements_cost_their_layer_and_the_source_that_stands_on_it(docker, base, image, checkout):
    """Last of all: its layer is large, and the engine's disk may be memory."""
    with (checkout / "requirements/image-rocm.lock").open("a") as file:
        file.write("\n# changed\n")
    docker.build("grpo-test-again", checkout, BASE_IMAGE=base("rocm"))
    *others, packages = sorted(new_sizes(docker, "grpo-test-again", layers(docker, image)))
    assert packages > 100_000_000
    assert sum(others) < 2_000_000
