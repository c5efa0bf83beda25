"""Covers the locks of the images: they hold what is asked for and nothing that the base brings, and the bounds of vLLM are TRL's."""

import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = Path(__file__).resolve().parents[2]
REQUIREMENTS = PROJECT / "requirements"
IMAGES = ("rocm", "cuda", "cpu")


def asked(file):
    """The requirements of an input, those of the inputs it includes too."""
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.split("#")[0].strip()
        if text.startswith("-r "):
            yield from asked(file.parent / text.removeprefix("-r "))
        elif text:
            yield Requirement(text)


def pinned(file):
    return {
        canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==([^ ;\n]+)", file.read_text("utf-8"), re.MULTILINE)
    }


def input_of(image):
    return REQUIREMENTS / ("image-cpu.in" if image == "cpu" else "image.in")


@pytest.mark.parametrize("image", IMAGES)
def test_a_lock_holds_what_its_input_asks_for(image):
    lock = pinned(REQUIREMENTS / f"image-{image}.lock")
    for requirement in asked(input_of(image)):
        assert requirement.specifier.contains(lock[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("image", IMAGES)
def test_a_lock_holds_no_build_for_a_gpu(image):
    lock = pinned(REQUIREMENTS / f"image-{image}.lock")
    assert len(lock) > 50
    assert not [name for name in lock if re.match(r"(torch|triton|pytorch|vllm|nvidia|cuda|flash|flashinfer|xformers|aiter)", name)]


@pytest.mark.parametrize("image", ["rocm", "cuda"])
def test_a_lock_agrees_with_what_its_base_holds(image):
    base = pinned(REQUIREMENTS / f"{image}.constraints")
    lock = pinned(REQUIREMENTS / f"image-{image}.lock")
    assert {name: version for name, version in lock.items() if base[name] != version} == {}
    assert not {"transformers", "huggingface-hub"} & set(lock)
    for requirement in asked(REQUIREMENTS / f"{image}-base.in"):
        assert requirement.specifier.contains(base[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("image", IMAGES)
def test_every_pin_of_a_lock_has_a_hash(image):
    text = (REQUIREMENTS / f"image-{image}.lock").read_text(encoding="utf-8")
    assert all("--hash=sha256:" in block for block in re.findall(r"^[\w.-]+==(?:.*\\\n)*.*", text, re.MULTILINE))


def test_the_bounds_of_vllm_are_those_of_the_pinned_trl():
    bounds = dict(re.findall(r"^(\w+)=v(.+)$", (PROJECT / "containers/versions.env").read_text(encoding="utf-8"), re.MULTILINE))
    accepted = next(
        requirement.specifier
        for requirement in map(Requirement, metadata.requires("trl") or [])
        if requirement.name == "vllm" and requirement.marker and requirement.marker.evaluate({"extra": "vllm"})
    )
    assert sorted((bound.version for bound in accepted), key=Version) == [bounds["VLLM_OLDEST"], bounds["VLLM_NEWEST"]]
    assert accepted.contains(bounds["VLLM_OLDEST_ON_ROCM"])
    assert accepted.contains(bounds["VLLM_VERSION"])


@pytest.mark.parametrize("file", ["Dockerfile", "docker-bake.hcl", "docs/containers.md"])
def test_the_pinned_vllm_is_the_same_everywhere(file):
    pinned_here = re.search(r"^VLLM_VERSION=(.+)$", (PROJECT / "containers/versions.env").read_text(encoding="utf-8"), re.MULTILINE)
    text = (PROJECT / file).read_text(encoding="utf-8")
    assert set(re.findall(r"vllm-(?:mi300x|cuda):(v[\d.]+\d)", text)) | set(re.findall(r'default = "(v[\d.]+)"', text)) == {
        pinned_here.group(1)
    }


def test_the_label_has_the_projects_version():
    version = re.search(r'^version = "(.+)"$', (PROJECT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE).group(1)
    assert f'org.opencontainers.image.version="{version}"' in (PROJECT / "Dockerfile").read_text(encoding="utf-8")


def test_no_build_fetches_a_frontend():
    """A `# syntax` line would: a build without a network fails by it."""
    assert not re.search(r"^#\s*syntax", (PROJECT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE | re.IGNORECASE)


def test_every_package_that_stage_2_adds_has_its_reason():
    lines = [line for line in (PROJECT / "requirements.txt").read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert len(lines) > 15
    assert [line for line in lines if not re.fullmatch(r"\S+ +# .{5,}", line)] == []
