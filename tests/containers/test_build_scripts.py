"""Covers stage 1: what the build scripts refuse, what they give to docker, and that vLLM's real Dockerfiles take it.

The docker that the scripts call is a recorder; the clone is made of the Dockerfiles in vLLM's source archive at the pinned version.
"""

import hashlib
import json
import subprocess
import tarfile
import urllib.error
import urllib.request
from io import BytesIO
from pathlib import Path

import pytest
from pip._internal.models.index import PyPI

pytestmark = pytest.mark.containers
PROJECT = Path(__file__).resolve().parents[2]
SCRIPTS = {"rocm": "build_vllm_mi300x.sh", "cuda": "build_cuda.sh"}
ARCHIVE = "vllm-0.25.1.tar.gz"
SHA256 = "ddbdec3f1c0f21afa70b7eb6ddf3faa29d26b1302ee4b5d5e00ec3af41b0c2e4"

RECORDER = """\
#!/bin/bash
printf '%s\\n' "$*" >> "$CALLS"
case "$*" in
    "version --format"*) echo "${FAKE_ARCH:-amd64}" ;;
    "info --format"*) echo "$PWD" ;;
    info) [ -z "$FAKE_DOWN" ] ;;
    "buildx version") [ -z "$FAKE_NO_BUILDX" ] ;;
    "image inspect"*) cat "$MADE" 2>/dev/null ;;
    *--label*)
        printf '%s\\n' "$@" | sed -n 's/^qwen-vl-grpo.stage1=//p' > "$MADE"
        [ "${*: -1}" != - ] || cat >> "$CALLS" ;;
esac
"""
DF = "#!/bin/bash\nprintf 'Avail\\n%s000000\\n' \"${FAKE_FREE_GB:-500}\"\n"


@pytest.fixture(scope="session")
def archive():
    """vLLM's source archive from PyPI, 38 MB; checked against the recorded hash."""
    request = urllib.request.Request(f"{PyPI.simple_url}/vllm/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as page:
            url = next(file["url"] for file in json.load(page)["files"] if file["filename"] == ARCHIVE)
        with urllib.request.urlopen(url, timeout=120) as file:
            content = file.read()
    except (urllib.error.URLError, TimeoutError) as error:
        pytest.skip(f"PyPI does not give {ARCHIVE}: {error}")
    assert hashlib.sha256(content).hexdigest() == SHA256
    return content


@pytest.fixture(scope="session")
def upstream(archive, tmp_path_factory):
    """A repository with the Dockerfiles of v0.25.1 under that tag."""
    folder = tmp_path_factory.mktemp("upstream")
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        for member in tar:
            if "/docker/Dockerfile" in member.name:
                target = folder / member.name.split("/", 1)[1]
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(tar.extractfile(member).read())
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"], ["tag", "v0.25.1"]):
        subprocess.run(["git", "-C", folder, *command], check=True)
    return folder


@pytest.fixture
def stage1(tmp_path, request):
    """stage1("rocm", "--jobs", "4", FAKE_ARCH="arm64"): the finished script; its calls of docker are in stage1.calls.

    stage1("line", "…") runs a line of a person's own beside the same docker.
    """
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("docker", RECORDER), ("df", DF)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    environment = {
        "PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path), "CALLS": str(tmp_path / "calls"), "MADE": str(tmp_path / "made"),
    }  # fmt: skip

    def run(kind, *arguments, upstream=None, **changes):
        if upstream is not None:
            url = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.file://{upstream}.insteadOf"}
            changes |= url | {"GIT_CONFIG_VALUE_0": "https://github.com/vllm-project/vllm.git"}
        command = ["-c", *arguments] if kind == "line" else [PROJECT / SCRIPTS[kind], *arguments]
        done = subprocess.run(["bash", *command], cwd=tmp_path, env=environment | changes, capture_output=True, text=True, check=False)
        calls = tmp_path / "calls"
        run.calls = calls.read_text().splitlines() if calls.exists() else []
        return done

    run.home = tmp_path
    run.tools = tools
    return run


@pytest.mark.parametrize(
    ("kind", "arguments", "changes", "said"),
    [
        ("rocm", [], {"VLLM_VERSION": "v0.11.2"}, "VLLM_VERSION is v0.11.2 and the pinned TRL works with v0.22.0 to v0.31.0"),
        ("rocm", [], {"VLLM_VERSION": "0.24.0"}, "on ROCm sleep mode frees memory from v0.25.0 on only"),
        ("cuda", [], {"VLLM_VERSION": "v0.33.0"}, "VLLM_VERSION is v0.33.0 and the pinned TRL works with v0.22.0 to v0.31.0"),
        ("cuda", [], {"VLLM_VERSION": "main"}, "must be a release such as v0.25.1"),
        ("cuda", ["--jobs", "many"], {}, "--jobs is 'many' and must be a number from 1 on"),
        ("cuda", ["--push"], {}, "--push needs a value"),
        ("cuda", ["--quick"], {}, "--quick is none of --prebuilt, --dry_run, --jobs, --push"),
        ("cuda", [], {"FAKE_DOWN": "1"}, "no Docker Engine answers"),
        ("cuda", [], {"FAKE_NO_BUILDX": "1"}, "docker has no buildx"),
        ("rocm", [], {"FAKE_ARCH": "arm64"}, "the Docker Engine runs on arm64 and vllm-mi300x is for amd64"),
        ("cuda", [], {"FAKE_FREE_GB": "20"}, "has 20 GB free and the build takes up to 150"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_refused_in_one_line(stage1, kind, arguments, changes, said):
    done = stage1(kind, *arguments, **changes)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith(f"{SCRIPTS[kind]}: ")
    assert said in done.stderr


def test_a_machine_without_docker_or_git_is_told_so(stage1):
    bare = stage1.home / "bare"
    bare.mkdir()
    for name in ("bash", "basename", "dirname", "awk", "sort", "head", "tail", "nproc", "df"):
        (bare / name).symlink_to(f"/usr/bin/{name}")
    assert "docker is not installed" in stage1("cuda", PATH=str(bare)).stderr
    (bare / "docker").symlink_to(stage1.tools / "docker")
    assert "git is not installed" in stage1("cuda", PATH=str(bare)).stderr


def test_a_dry_run_prints_the_commands_and_runs_none(stage1):
    done = stage1("rocm", "--dry_run", "--jobs", "8", "--push", "ghcr.io/somebody/vllm")
    clone, _, build, _, push = done.stdout.splitlines()
    assert clone.startswith("git clone --quiet --depth 1 --branch v0.25.1 https://github.com/vllm-project/vllm.git ")
    assert "--target final --build-arg BASE_IMAGE=vllm/vllm-openai-rocm:v0.25.1-base --build-arg ARG_PYTORCH_ROCM_ARCH=gfx942" in build
    assert "--build-arg max_jobs=8 " in build
    assert "--tag vllm-mi300x:v0.25.1 " in build
    assert push.strip() == "docker push ghcr.io/somebody/vllm:v0.25.1"
    assert (stage1.calls, done.returncode) == ([], 0)
    assert not (stage1.home / ".cache").exists()


@pytest.mark.parametrize("kind", ["rocm", "cuda"])
def test_vllms_own_dockerfile_knows_every_argument_and_nothing_is_built_twice(stage1, upstream, kind):
    done = stage1(kind, "--jobs", "8", upstream=upstream)
    assert done.returncode == 0, done.stderr
    assert "hours, and up to 150 GB of disk" in done.stderr
    assert sum(call.startswith("buildx build --load --file") for call in stage1.calls) == 1
    again = stage1(kind, "--jobs", "2", upstream=upstream)
    assert "is there already" in again.stdout
    assert sum(call.startswith("buildx build --load --file") for call in stage1.calls) == 1


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("rocm", ("ARG NIC_BACKEND", "ARG NETWORK_BACKEND"), "docker/Dockerfile.rocm of vLLM v0.25.1 has no ARG NIC_BACKEND"),
        ("rocm", ("AS final", "AS finished"), "docker/Dockerfile.rocm of vLLM v0.25.1 has no stage final"),
        ("cuda", ("AS vllm-openai\n", "AS vllm-server\n"), "docker/Dockerfile of vLLM v0.25.1 has no stage vllm-openai"),
        ("cuda", None, "vLLM v0.25.1 has no docker/Dockerfile; this script knows the layout of v0.22.0 to v0.31.0"),
    ],
)
def test_what_vllm_renamed_is_named_before_anything_is_built(stage1, upstream, tmp_path, kind, change, said):
    changed = tmp_path / "changed"
    subprocess.run(["git", "clone", "-q", upstream, changed], check=True)
    file = changed / ("docker/Dockerfile.rocm" if kind == "rocm" else "docker/Dockerfile")
    before = file.read_text()
    file.write_text(before.replace(*change)) if change else file.unlink()
    subprocess.run(["git", "-C", changed, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "renamed"], check=True)
    subprocess.run(["git", "-C", changed, "tag", "-f", "v0.25.1"], check=True, capture_output=True)
    done = stage1(kind, upstream=changed)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last) == (1, f"{SCRIPTS[kind]}: {said}" + ("; look there for its new name" if change else ""))
    assert built(stage1) == []


def built(stage1):
    return [call for call in stage1.calls if call.startswith("buildx build")]


def test_a_clone_that_was_interrupted_is_made_again_and_one_that_is_whole_is_kept(stage1, upstream):
    part = stage1.home / ".cache/qwen-vl-grpo/vllm-v0.25.1.part"
    (part / ".git").mkdir(parents=True)
    assert stage1("cuda", "--dry_run").returncode == 0
    assert part.exists(), "a dry run removes nothing"
    done = stage1("cuda", upstream=upstream)
    assert (done.returncode, part.exists(), len(built(stage1))) == (0, False, 1), done.stderr
    (stage1.home / "made").unlink()  # the build was interrupted, not the clone
    done = stage1("cuda", upstream="/nowhere")
    assert (done.returncode, len(built(stage1))) == (0, 2), done.stderr


def test_a_vllm_that_cannot_be_cloned_is_told_and_nothing_is_built(stage1):
    done = stage1("cuda", upstream="/nowhere")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "build_cuda.sh: vLLM could not be cloned; git's message stands above"
    assert built(stage1) == []


def test_a_clone_that_was_changed_is_not_built_from(stage1, upstream):
    stage1("cuda", upstream=upstream)
    (stage1.home / "made").unlink()
    clone = stage1.home / ".cache/qwen-vl-grpo/vllm-v0.25.1"
    (clone / "stray").touch()
    done = stage1("cuda", upstream=upstream)
    assert (done.returncode, f"{clone} is not a clean clone of v0.25.1" in done.stderr) == (1, True)


@pytest.mark.parametrize(("kind", "image", "published"), [("rocm", "vllm-mi300x", "-rocm"), ("cuda", "vllm-cuda", "")])
def test_the_published_image_is_a_base_too_and_needs_neither_git_nor_the_disk_of_a_build(stage1, kind, image, published):
    done = stage1(kind, "--prebuilt", FAKE_FREE_GB="20")
    assert done.returncode == 0, done.stderr
    name = f"vllm/vllm-openai{published}:v0.25.1"
    pulled, build, *dockerfile = stage1.calls[-4:]
    assert (pulled, dockerfile) == (f"pull {name}", [f"FROM {name}", "ENTRYPOINT []"])
    assert build == f"buildx build --load --label qwen-vl-grpo.stage1={name} --tag {image}:v0.25.1 -"
    assert "is there already" in stage1(kind, "--prebuilt").stdout


def test_what_is_there_already_is_still_pushed(stage1):
    stage1("rocm", "--prebuilt")
    done = stage1("rocm", "--prebuilt", "--push", "ghcr.io/somebody/vllm")
    assert done.returncode == 0, done.stderr
    assert stage1.calls[-2:] == ["tag vllm-mi300x:v0.25.1 ghcr.io/somebody/vllm:v0.25.1", "push ghcr.io/somebody/vllm:v0.25.1"]
    assert len(built(stage1)) == 1


@pytest.mark.parametrize("arguments", [["--prebuilt"], ["--jobs", "8"]])
def test_the_lines_of_a_dry_run_do_what_a_run_does(stage1, upstream, arguments):
    arguments = [*arguments, "--push", "ghcr.io/somebody/vllm"]
    lines = stage1("cuda", "--dry_run", *arguments).stdout
    done = stage1("line", f"set -euo pipefail\n{lines}", upstream=upstream)
    assert done.returncode == 0, done.stderr
    by_hand = stage1.calls
    for name in ("calls", "made"):
        (stage1.home / name).unlink()
    stage1("cuda", *arguments, upstream=upstream)
    assert stage1.calls[-len(by_hand) :] == by_hand
    assert len(by_hand) == (6 if "--prebuilt" in arguments else 3)


@pytest.mark.parametrize("kind", ["rocm", "cuda"])
def test_buildkit_has_nothing_against_our_arguments(stage1, upstream, docker, kind):
    """vLLM's Dockerfiles have warnings of their own; ours may add none, and a stage that is not there is an error."""
    stage1(kind, "--jobs", "8", upstream=upstream)
    call = next(call for call in stage1.calls if call.startswith("buildx build --load --file"))
    arguments = call.split(" --label ")[0].replace("--load", "--check").split()
    clone = stage1.home / ".cache/qwen-vl-grpo/vllm-v0.25.1"
    bases = [f"--build-arg={name}=scratch" for name in ("BASE_IMAGE", "CI_BASE_IMAGE", "BUILD_BASE_IMAGE", "FINAL_BASE_IMAGE")]
    ours = warnings(docker.run(*arguments, *bases, clone, check=False))
    target, file = arguments[arguments.index("--target") + 1], arguments[arguments.index("--file") + 1]
    bare = warnings(docker.run("buildx", "build", "--check", "--file", file, "--target", target, *bases, clone, check=False))
    assert ours
    assert ours == bare
    arguments[arguments.index("--target") + 1] = "no-such-stage"
    assert "no-such-stage" in docker.run(*arguments, *bases, clone, check=False).stderr


def warnings(checked):
    text = checked.stdout + checked.stderr
    assert "ERROR" not in text, text
    return [line for line in text.splitlines() if line.startswith("WARNING: ")]
