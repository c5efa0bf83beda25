"""Base images as small as they can be and still hold a real torch: Debian, the engine lane's CPU torch, stubs for vLLM.

The torch says that it was built for ROCm, for CUDA or for nothing, as the stage-2 build asks it; everything else in it is real, so
that the packages of stage 2 are really imported, and a training really runs in the image.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from importlib import metadata
from io import BytesIO
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = PROJECT / ".venv-vllm/lib/python3.11/site-packages"
SITE = "usr/local/lib/python3.11/dist-packages"
HELD = ("torch", "torchvision", "transformers", "pip")
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"

MARK = """\
import pathlib, sys
site, kind, vllm = pathlib.Path("/usr/local/lib/python3.11/dist-packages"), sys.argv[1], sys.argv[2]
local, field, built_for = {"rocm": ("rocm7.2.3", "hip", "7.2.3"), "cuda": ("cu130", "cuda", "13.0"), "cpu": ("cpu", "xpu", "")}[kind]
version = site / "torch/version.py"
text = version.read_text().replace("+cpu", "+" + local)
version.write_text(text.replace(f"{field}: Optional[str] = None", f"{field}: Optional[str] = {built_for or None!r}"))
described = next(site.glob("torch-*.dist-info")) / "METADATA"
described.write_text(described.read_text().replace("+cpu", "+" + local, 1))
stubs = {} if kind == "cpu" else {"vllm": vllm, "triton": "3.6.0", "flash_attn": "2.8.3"}
for name, number in stubs.items():
    module = "its_triton" if name == "triton" else name  # torch looks into an importable triton
    (site / module).mkdir()
    (site / module / "__init__.py").write_text(f"__version__ = '{number}'\\n")
    info = site / f"{name}-{number}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {number}\\n")
    (info / "RECORD").write_text(f"{module}/__init__.py,,\\n{info.name}/METADATA,,\\n{info.name}/RECORD,,\\n")
    (info / "top_level.txt").write_text(module + "\\n")
"""


def missing() -> str:
    """Why no base can be made here, or an empty string."""
    if not (PACKAGES / "torch").is_dir():
        return "the base image takes its torch from .venv-vllm on Python 3.11, and there is none: run make test-vllm first"
    if shutil.which("mmdebstrap") is None:
        return "the base image is made with mmdebstrap, and there is none (Debian: apt-get install mmdebstrap)"
    return ""


def core(docker, name: str) -> None:
    """Import the part that every base shares: about 1.4 GB, half a minute."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "core.tar"
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3", "bookworm", str(archive)], check=True, capture_output=True
        )
        with tarfile.open(archive, "a") as tar:
            for file, path in sorted(held().items()):
                tar.add(file, f"{SITE}/{path}")
            if Path("/", CERTIFICATES).exists():  # whoever stands between this machine and PyPI
                tar.add(Path("/", CERTIFICATES).resolve(), CERTIFICATES)
            entry = tarfile.TarInfo("mark.py")
            entry.size = len(MARK)
            tar.addfile(entry, BytesIO(MARK.encode()))
        docker("import", "--change", f"ENV PIP_CERT=/{CERTIFICATES}", str(archive), name)


def base(docker, core_name: str, name: str, kind: str, vllm: str = "0.25.1") -> None:
    """Mark a core as rocm, cuda or cpu, with a stub of this vLLM."""
    docker("build", "--network=host", "-t", name, "-", input=f"FROM {core_name}\nRUN python3 /mark.py {kind} {vllm}\n")


def patience(seconds: float) -> float:
    """A time limit in seconds, stretched by how many programs want each core."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def held() -> dict[Path, str]:
    """The files of torch, transformers, pip and all that they need, by their place in site-packages."""
    found: dict[Path, str] = {file: file.name for file in PACKAGES.glob("torchvision_schema*")}
    waiting, seen = list(HELD), set()
    while waiting:
        name = canonicalize_name(waiting.pop())
        known = list(metadata.distributions(name=name, path=[str(PACKAGES)]))
        if name in seen or not known:
            continue
        seen.add(name)
        requirements = map(Requirement, known[0].requires or [])
        waiting += [each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
        for file in known[0].files or []:
            if ".." not in file.parts and (PACKAGES / file).is_file() and "torch/include" not in str(file):
                found[PACKAGES / file] = str(file)
    return found
