"""Add this project's packages to a base image, and prove that what the base was built around is byte for byte what it was.

    stage2.py record             # before anything is installed: what is there, and whether it is the base that was asked for
    stage2.py install LOCK       # what the lock names and the base lacks, with --no-deps and hashes
    stage2.py prove              # nothing of the base has changed, versions fit each other, everything imports

Run by the Dockerfile with the base's own Python; standard library only, since nothing else is there yet. Every refusal is one line.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent
RECORD = HERE / "base.json"
BUILDS = r"torch|torchvision|torchaudio|triton|pytorch-triton.*|vllm.*|flash-?attn.*|flashinfer.*|xformers|(amd-)?aiter|nvidia-.*"
"""What was compiled for one GPU: only a base brings it."""
GUARDED = re.compile(BUILDS + "|transformers|huggingface-hub")
"""What vLLM was compiled against, or tested with: where the base has it, no package of ours may touch it."""


def record(expected: str) -> None:
    """Write down the base; `expected` is rocm, cuda or cpu."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this runs in whatever base it is given
        refuse(f"the base image's Python is {sys.version.split()[0]} and this project needs 3.11 or newer; use another BASE_IMAGE")
    present = installed()
    check_torch(expected, present)
    if expected != "cpu":
        check_vllm(expected, present)
    guarded = {name: version for name, version in present.items() if GUARDED.fullmatch(name)}
    RECORD.write_text(
        json.dumps({"present": present, "digests": digests(sorted(guarded)), "complaints": complaints()}, indent=1), encoding="utf-8"
    )
    print(f"the base brings {', '.join(f'{name} {version}' for name, version in sorted(guarded.items()))}")


def install(lock: Path) -> None:
    """Install what the lock names and the base lacks; what this project pins itself is installed over another version of it."""
    present = json.loads(RECORD.read_text(encoding="utf-8"))["present"]
    own = {name for name, _ in pins((HERE / "requirements.txt").read_text(encoding="utf-8"))}
    wanted = []
    for name, block in pins(lock.read_text(encoding="utf-8")):
        if GUARDED.fullmatch(name) and name in present and not block.startswith(f"{name}=={present[name]} "):
            refuse(f"{lock.name} names {block.split()[0]}, and the base image brings {name} {present[name]}; run `make lock` again")
        if name not in present or (name in own and not block.startswith(f"{name}=={present[name]} ")):
            wanted.append(block)
    chosen, constraints = HERE / "chosen.txt", HERE / "constraints.txt"
    chosen.write_text("\n".join(wanted), encoding="utf-8")
    constraints.write_text("".join(f"{name}=={present[name]}\n" for name in present if GUARDED.fullmatch(name)), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--require-hashes", "--requirement", chosen, "--constraint", constraints]
    if subprocess.run([*pip, "--quiet", "--disable-pip-version-check", "--root-user-action=ignore"], check=False).returncode:
        refuse(f"pip could not install {lock.name}; its own message stands above")


def prove() -> None:
    """Compare with the record, then import; raises SystemExit with the first thing that is wrong."""
    before = json.loads(RECORD.read_text(encoding="utf-8"))
    present = installed()
    for name in before["digests"]:
        if present.get(name) != before["present"][name]:
            refuse(f"{name} was {before['present'][name]} in the base and is {present.get(name, 'gone')} now: a package replaced it")
    for name, digest in digests(sorted(before["digests"])).items():
        if digest != before["digests"][name]:
            refuse(f"{name} {present[name]} is no longer byte for byte the base's: a package wrote into its files")
    if strange := sorted(name for name in set(present) - set(before["present"]) if re.fullmatch(BUILDS, name)):
        refuse(f"{', '.join(strange)} came with stage 2, and only the base image may bring it; run `make lock` again")
    if new := [line for line in complaints() if line not in before["complaints"]]:
        refuse("; ".join(new))
    modules = {name: modules for modules, names in metadata.packages_distributions().items() for name in map(canonical, names)}
    own = [name for name, _ in pins((HERE / "requirements.txt").read_text(encoding="utf-8"))]
    for name in ["torch", *(["vllm"] if "vllm" in present else []), *own]:
        try:
            importlib.import_module(modules[name])
        except Exception as error:
            root = first(error)
            refuse(f"{name} {present.get(name)} does not import: {type(root).__name__}: {' '.join(str(root).split())}")
    print(f"{len(before['digests'])} packages of the base are as they were, and {len(own)} of this project import")


def check_torch(expected: str, present: dict[str, str]) -> None:
    """The public version of torch says nothing of what it was built for: ask the build."""
    if "torch" not in present:
        refuse("the base image holds no torch; give --build-arg BASE_IMAGE an image of build_vllm_mi300x.sh or build_cuda.sh")
    version = importlib.import_module("torch").version
    found = "rocm" if version.hip else "cuda" if version.cuda else "cpu"
    if found != expected:
        refuse(
            f"the base image's torch {present['torch']} was built for {found} and ACCELERATOR is {expected}; "
            f"give --build-arg ACCELERATOR={found}, or a BASE_IMAGE for {expected}"
        )


def check_vllm(expected: str, present: dict[str, str]) -> None:
    bounds = dict(re.findall(r"^(\w+)=v(.+)$", (HERE / "versions.env").read_text(encoding="utf-8"), re.MULTILINE))
    oldest, newest = bounds["VLLM_OLDEST_ON_ROCM" if expected == "rocm" else "VLLM_OLDEST"], bounds["VLLM_NEWEST"]
    found = present.get("vllm")
    if found is None:
        refuse("the base image holds no vLLM; give --build-arg BASE_IMAGE an image of build_vllm_mi300x.sh or build_cuda.sh")
    if not release(oldest) <= release(found) <= release(newest):
        refuse(f"the base image's vLLM is {found} and this project works with {oldest} to {newest} on {expected}; use another BASE_IMAGE")


def installed() -> dict[str, str]:
    return {canonical(found.metadata["Name"]): found.version for found in metadata.distributions() if found.metadata["Name"]}


def digests(names: list[str]) -> dict[str, str]:
    """One SHA-256 over every file of each package; compiled bytecode comes and goes, and is left out."""
    with ThreadPoolExecutor() as pool:
        found = {}
        for name in names:
            files = [file for file in metadata.distribution(name).files or () if file.suffix != ".pyc"]
            lines = pool.map(lambda file: f"{file} {digest(Path(str(file.locate())))}\n", sorted(files))
            found[name] = hashlib.sha256("".join(lines).encode()).hexdigest()
    return found


def digest(path: Path) -> str:
    if not path.is_file():
        return "missing"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def complaints() -> list[str]:
    """What pip has to say against the versions that are installed; a base has some of its own, which are not ours to mend."""
    checked = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    return sorted(checked.stdout.splitlines()) if checked.returncode else []


def pins(text: str) -> list[tuple[str, str]]:
    """Each requirement's canonical name and its whole text, hashes included."""
    blocks = re.findall(r"^[A-Za-z0-9](?:.*\\\n)*.*", text, re.MULTILINE)
    return [(canonical(re.split(r"[\s=<>~!\[;]", block)[0]), block) for block in blocks]


def first(error: BaseException) -> BaseException:
    """What an import really failed of: transformers and others raise another error over it."""
    while below := error.__cause__ or error.__context__:
        error = below
    return error


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def refuse(sentence: str) -> NoReturn:
    sys.exit(f"stage 2: {sentence}")


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    if verb == "record":
        record(os.environ["ACCELERATOR"])
    elif verb == "install":
        install(Path(rest[0]))
    else:
        prove()
