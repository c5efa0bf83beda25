"""Covers the entrypoint and a training in the container: whose files they are, which devices open, how it stops."""

import json
import os
import re
import shlex
import stat
import subprocess
import sys
import time
from pathlib import Path

import bases
import pytest
import yaml

pytestmark = pytest.mark.containers
PROJECT = Path(__file__).resolve().parents[2]
DOCUMENTED = "docker run -it --network=host --device=/dev/kfd --device=/dev/dri"
OWNER, RENDER = 4242, 31109
"""A host's user and a host's render group; neither is known in the image."""


@pytest.fixture
def mounted(checkout):
    """A checkout that belongs to the host's user."""
    give(checkout)
    return checkout


def give(folder):
    subprocess.run(["chown", "-R", f"{OWNER}:{OWNER}", folder], check=True)


@pytest.fixture
def kfd(tmp_path):
    """What /dev/kfd is on a host: root's, and open to the render group."""
    device = tmp_path / "kfd"
    os.mknod(device, 0o660 | stat.S_IFCHR, os.makedev(1, 3))
    os.chmod(device, 0o660)
    os.chown(device, 0, RENDER)
    return device


@pytest.fixture(autouse=True, scope="module")
def as_root():
    if os.geteuid() != 0:
        pytest.skip("the mounts and devices of another user are made by root")


def run(docker, *arguments, check=True):
    return docker.run("run", "--rm", "--network=none", *arguments, check=check)


def test_what_a_container_writes_belongs_to_the_owner_of_the_mount(docker, image, mounted):
    run(docker, "-v", f"{mounted}:/workspace", image, "sh", "-c", "mkdir -p outputs && touch outputs/made && id -u > outputs/who")
    made = mounted / "outputs/made"
    assert (made.stat().st_uid, made.stat().st_gid) == (OWNER, OWNER)
    assert (mounted / "outputs/who").read_text() == f"{OWNER}\n"


def test_without_a_mount_nobody_is_root_and_the_baked_code_runs(docker, image):
    done = run(docker, image, "sh", "-c", "id -u; touch outputs/made; grpo --help; python3 src/inference/inference.py --help")
    assert done.stdout.startswith("1000\n")
    assert "--run_id" in done.stdout


def test_the_mounted_code_is_the_code_that_runs(docker, image, mounted):
    (mounted / "src/qwen_vl_grpo/__main__.py").write_text("print('the checkout')\n")
    assert run(docker, "-v", f"{mounted}:/workspace", image, "grpo", "--help").stdout == "the checkout\n"


def test_a_mount_without_the_project_is_named(docker, image, tmp_path):
    done = run(docker, "-v", f"{tmp_path}:/workspace", image, "true")
    assert done.stderr == "entrypoint: /workspace holds no src/qwen_vl_grpo; mount a checkout of this project there, or nothing at all\n"


def test_the_devices_groups_are_kept(docker, image, mounted, kfd):
    given = ["-v", f"{mounted}:/workspace", f"--device={kfd}:/dev/kfd", "--group-add=video", image]
    done = run(docker, *given, "sh", "-c", "id -u; id -G; echo opened > /dev/kfd && echo opened")
    user, groups, opened = done.stdout.splitlines()
    assert (user, opened) == (str(OWNER), "opened")
    assert {str(RENDER), "44"} <= set(groups.split())
    assert "0" not in groups.split()


def test_a_user_of_ones_own_is_kept_and_told_which_group_opens_the_gpu(docker, image, kfd):
    done = run(docker, "--user=4321:4321", f"--device={kfd}:/dev/kfd", image, "sh", "-c", "id -u; touch outputs/made; echo $HOME")
    assert done.stdout == "4321\n/cache/home-4321\n"
    assert f"/dev/kfd belongs to group {RENDER} and user 4321 is not in it; add --group-add {RENDER}" in done.stderr
    done = run(docker, "--user=4321:4321", f"--group-add={RENDER}", f"--device={kfd}:/dev/kfd", image, "true")
    assert "--group-add" not in done.stderr


@pytest.mark.parametrize(("given", "verdict", "said"), [([], "warn", "holds 64 MiB"), (["--shm-size=2g"], "ok", "2.0 GiB")])
def test_dockers_own_shared_memory_is_found_to_be_too_little(docker, image, kfd, given, verdict, said):
    given = [*given, f"--device={kfd}:/dev/kfd", f"--device={kfd}:/dev/dri/renderD128"]
    found = doctor(run(docker, *given, image, *DOCTOR, check=False))["shared memory"]
    assert (found["verdict"], said in found["found"]) == (verdict, True)


DOCTOR = ("grpo", "doctor", "--quick", "--json", "--config", "configs/qwen_grpo.yaml")


def doctor(done):
    return {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_outputs_that_are_mounted_to_be_read_are_told_with_what_to_change(docker, image, tmp_path):
    tmp_path.chmod(0o755)
    found = doctor(run(docker, "-v", f"{tmp_path}:/workspace/outputs:ro", image, *DOCTOR, check=False))["outputs"]
    assert found["verdict"] == "fail"
    assert "/workspace/outputs cannot be written by user 1000 (Read-only file system)" in found["found"]
    assert found["remedy"] == "mount a volume there that this user may write to, or set output_dir"


def test_outputs_of_somebody_else_are_told_in_one_line(docker, image, tmp_path):
    """As a container that ran as root may have left them: not even to be looked into."""
    tmp_path.chmod(0o700)
    done = run(docker, "-v", f"{tmp_path}:/workspace/outputs", image, "grpo", "runs", check=False)
    verdict, said = done.stderr.splitlines()
    assert verdict.startswith("entrypoint: not ready: ")
    assert said.startswith("error: /workspace/outputs/index: user 1000 may not open it; ")


def test_volumes_that_kubernetes_gave_the_images_group_are_written_to(docker, image, tmp_path):
    """As fsGroup: 1000 leaves them: root's, and the group's to write to."""
    mounts = []
    for name, place in (("outputs", "/workspace/outputs"), ("cache", "/cache")):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, 0, 1000)
        (tmp_path / name).chmod(0o2775)
        mounts += ["-v", f"{tmp_path / name}:{place}"]
    done = run(docker, *mounts, "--group-add=1000", image, "bash", "-c", "id -u; touch outputs/made /cache/made && echo written")
    assert done.stdout == "1000\nwritten\n"
    assert "cannot be written" not in done.stderr


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--group-add=render"], "unable to find group render"),
        (["--device=/dev/kfd"], "error gathering device information"),
        (["--gpus=all"], "could not select device driver"),
    ],
)
def test_what_docker_says_of_a_host_is_what_the_documentation_lists(docker, image, given, told):
    done = run(docker, *given, image, "true", check=False)
    assert told in done.stderr, done.stderr
    assert f"`{told}" in (PROJECT / "docs/containers.md").read_text(encoding="utf-8")


def test_without_a_gpu_the_verdict_says_what_to_add(docker, image):
    done = run(docker, image, "echo", "handed on")
    assert done.stdout == "handed on\n"
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("entrypoint: not ready: ")
    assert "in docker add --device=/dev/kfd --device=/dev/dri on AMD, --gpus all on NVIDIA" in done.stderr


def test_a_read_only_root_is_enough(docker, image, tmp_path):
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    os.chown(outputs, 1000, 1000)
    locked = ["--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--cap-add=SETUID", "--cap-add=SETGID", "--security-opt=no-new-privileges"]
    code = "import torch, trl, wandb; open('outputs/made', 'w'); print('ran')"
    command = f'grpo runs; python3 -c "{code}"; touch /etc/x'
    done = run(docker, *locked, "-v", f"{outputs}:/workspace/outputs", image, "sh", "-c", command, check=False)
    assert "ran\n" in done.stdout
    assert "/etc/x" in done.stderr
    assert (outputs / "made").stat().st_uid == 1000


def test_the_exit_code_and_the_environment_are_handed_on(docker, image, tmp_path):
    env = tmp_path / ".env"
    env.write_text((PROJECT / ".env.example").read_text().replace("HF_TOKEN=", "HF_TOKEN=hf_made_up"))
    done = run(docker, f"--env-file={env}", image, "sh", "-c", 'echo "$HF_TOKEN[$WANDB_API_KEY]"; exit 7', check=False)
    assert (done.returncode, done.stdout) == (7, "hf_made_up[]\n")


def test_the_documented_line_runs_as_it_is(docker, image, mounted, kfd):
    """In a terminal of its own, since the line says -it; only the device nodes are made up."""
    text = (PROJECT / "docs/containers.md").read_text(encoding="utf-8")
    line = re.search(rf"^ *{re.escape(DOCUMENTED)}(?:.*\\\n)*.*mi300x-grpo-env", text, re.MULTILINE).group(0).replace("\\\n", " ")
    line = line.replace("--device=/dev/kfd", f"--rm --device={kfd}:/dev/kfd").replace(
        "--device=/dev/dri", f"--device={kfd}:/dev/dri/renderD128"
    )
    (mounted / ".env").write_text("HF_TOKEN=made-up\n")
    command = f"{line.replace('mi300x-grpo-env', image)} sh -c 'id -u; tty; cat /proc/sys/kernel/hostname'"
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"],
        cwd=mounted,
        env=docker.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert f"\n{OWNER}\n/dev/pts/0\n" in done.stdout.replace("\r", "")


def test_the_projects_files_are_there_for_its_tests(docker, cpu_image):
    """Those of tests/unit that read folders beside src, as `pytest tests/unit` would in the image."""
    files = [f"tests/unit/test_{name}.py" for name in ("clusters", "lmms_eval_task", "locks", "shell_scripts", "troubleshooting")]
    command = ["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = run(docker, "--env=OMP_NUM_THREADS=1", cpu_image, *command, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


def test_a_stopped_training_leaves_its_last_step_within_two_seconds(docker, cpu_image, mounted):
    sys.path.insert(0, str(PROJECT))
    from demo import digits, tiny_qwen

    tiny_qwen.build(mounted / "tiny", "qwen2_5_vl")
    digits.write(mounted / "digits")
    (mounted / "brevity.py").write_text(
        "def brevity(completions, **_):\n    return [-0.01 * len(each[0]['content']) for each in completions]\n"
    )
    config = {
        "run_id": "stopped", "output_dir": "outputs", "model_name": "tiny", "dataset_name": "digits", "dataset_split": "train",
        "use_vllm": False, "max_steps": 100_000, "batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 4,
        "max_completion_length": 12, "gradient_checkpointing": False, "lora": {"enabled": False}, "data": {"limit": 12},
        "rewards": [{"function": "brevity.py:brevity"}], "tracking": {"report_to": "none"},
    }  # fmt: skip
    (mounted / "stopped.yaml").write_text(yaml.safe_dump(config))
    give(mounted)
    command = "python3 src/fine_tuning/train.py --config stopped.yaml"
    given = ["--detach", "--network=none", "--env=OMP_NUM_THREADS=1", "-v", f"{mounted}:/workspace", cpu_image]
    container = docker.run("run", *given, *shlex.split(command)).stdout.strip()
    try:
        metrics = mounted / "outputs/stopped/metrics.jsonl"
        deadline = time.monotonic() + 180
        while not metrics.exists() and time.monotonic() < deadline:
            assert docker.run("inspect", "--format={{.State.Running}}", container).stdout == "true\n", docker("logs", container)
            time.sleep(0.2)
        asked = time.time()
        docker("stop", "--time=60", container)
        code = docker.run("inspect", "--format={{.State.ExitCode}}", container).stdout.strip()
        logs = docker("logs", container)
    finally:
        docker.run("rm", "--force", "--volumes", container, check=False)
    assert code == "143", logs
    card = json.loads((mounted / "outputs/stopped/run.json").read_text())
    assert (card["state"], card["checkpoint"]) == ("interrupted", re.search(r"stopped/(checkpoint-\d+)", logs).group(1))
    kept = mounted / "outputs/stopped" / card["checkpoint"]
    assert kept.stat().st_uid == OWNER
    took = max(file.stat().st_mtime for file in kept.iterdir()) - asked
    assert took < bases.patience(2), f"the checkpoint was there {took:.1f} s after docker stop"
