"""What the container tests share: a Docker Engine, base images on it, and the image of stage 2.

Where no engine answers, one is set up from Debian's packages, if this is CI and root may install them; else the tests are skipped
and say why. Everything that is made is removed at the end.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import bases
import pytest

PROJECT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent


@dataclass
class Docker:
    """A client of one engine; `made` are the images to remove."""

    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    made: list[str] = field(default_factory=list)

    def run(self, *arguments: str | Path, check: bool = True, timeout: float = 600, **options) -> subprocess.CompletedProcess[str]:
        """One docker command; raises AssertionError with its messages if it fails and `check` is true."""
        done = subprocess.run(
            ["docker", *map(str, arguments)], env=self.environment, capture_output=True, text=True, timeout=timeout, check=False, **options
        )
        assert not check or done.returncode == 0, f"docker {' '.join(map(str, arguments))}\n{done.stdout}\n{done.stderr}"
        return done

    def __call__(self, *arguments: str | Path, **options) -> str:
        done = self.run(*arguments, **options)
        return done.stdout + done.stderr

    def build(
        self, name: str, folder: Path = PROJECT, *, check: bool = True, target: tuple[str, ...] = (), **arguments: str
    ) -> subprocess.CompletedProcess[str]:
        """Stage 2 as docs/containers.md builds it; its whole log is in stderr."""
        self.made.append(name)
        given = [part for key, value in arguments.items() for part in ("--build-arg", f"{key}={value}")]
        return self.run("build", "--progress=plain", "--network=host", *given, *target, "-t", name, folder, check=check)

    def answers(self) -> bool:
        try:
            version = self.run("buildx", "version", check=False)
            lints = tuple(map(int, re.findall(r"\d+", version.stdout)[:2])) >= (0, 15)
            return lints and self.run("info", check=False, timeout=30).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False


@pytest.fixture(scope="session")
def docker():
    own = Docker()
    if own.answers():
        yield own
        own.run("rmi", "--force", *dict.fromkeys(own.made), check=False)
        return
    if os.environ.get("CI") != "true" or os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("no Docker Engine with buildx 0.15 answers; as root on Debian, `CI=true make containers` sets one up")
    folder = Path(tempfile.mkdtemp(prefix="engine-"))
    try:
        started = subprocess.run([HERE / "engine.sh", folder], capture_output=True, text=True, timeout=300, check=False)
        if started.returncode:
            pytest.skip(f"no Docker Engine could be set up: {' '.join(started.stderr.split())[-300:]}")
        path = f"{folder}/usr/bin:{folder}/usr/sbin:{os.environ['PATH']}"
        yield Docker({**os.environ, "PATH": path, "DOCKER_HOST": f"unix://{folder}/docker.sock", "DOCKER_CONFIG": f"{folder}/client"})
    finally:
        end(folder)


def end(folder: Path) -> None:
    """Stop the engine in this folder, unmount what it leaves behind, and remove it all."""
    pid_file = folder / "dockerd.pid"
    if pid_file.exists():
        pid = int(pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and Path(f"/proc/{pid}/exe").exists():
            time.sleep(0.1)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in sorted((place for place in mounts if place.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", place], check=False)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def core(docker) -> str:
    """The base that the others are marked from."""
    if reason := bases.missing():
        pytest.skip(reason)
    docker.made.append("grpo-test-core")
    bases.core(docker, "grpo-test-core")
    return "grpo-test-core"


@pytest.fixture(scope="session")
def base(docker, core):
    """base("rocm"), base("cuda", "0.32.0"), …: the name of such a base image."""

    def made(kind: str, vllm: str = "0.25.1") -> str:
        name = f"grpo-test-{kind}:{vllm}"
        if name not in docker.made:
            docker.made.append(name)
            bases.base(docker, core, name, kind, vllm)
        return name

    return made


@pytest.fixture(scope="session")
def image(docker, base) -> str:
    """Stage 2 on the ROCm base, as `docker build -t mi300x-grpo-env .` makes it."""
    docker.build("grpo-test-env", BASE_IMAGE=base("rocm"))
    return "grpo-test-env"


@pytest.fixture(scope="session")
def cpu_image(docker, base) -> str:
    """The CPU target of stage 2: the image that a training runs in here, since the stub of vLLM trains nothing."""
    docker.build("grpo-test-cpu", target=("--target=cpu",), BASE_IMAGE=base("cpu"), ACCELERATOR="cpu")
    return "grpo-test-cpu"


@pytest.fixture
def checkout(tmp_path):
    """A copy of what an image is built from, to be changed."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("src", "configs", "demo", "containers", "requirements"):
        shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("Dockerfile", ".dockerignore", "requirements.txt", "pyproject.toml"):
        shutil.copy(PROJECT / name, folder)
    return folder
