"""What the command tests share: a workshop with tiny models and digits, and one finished run in it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import yaml
from forked import Fork, Forks

from qwen_vl_grpo import attempts

PROJECT = Path(__file__).resolve().parents[2]
QUESTION = "Which digit is this?"
OWN_REWARD = """\
import os, time

def brevity(completions, trainer_state=None, **_):
    while trainer_state is not None and os.path.exists(f"hold-at-{trainer_state.global_step + 1}"):
        time.sleep(0.05)
    return [-0.01 * len(completion[0]["content"]) for completion in completions]
"""
TINY = {
    "output_dir": "runs", "model_name": "tiny-qwen2.5-vl", "dataset_name": "digits", "dataset_split": "train", "use_vllm": False,
    "learning_rate": 1e-3, "max_steps": 3, "batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 4,
    "max_completion_length": 12, "gradient_checkpointing": False, "lora": {"enabled": False}, "data": {"limit": 12},
    "rewards": [{"function": "brevity.py:brevity"}], "tracking": {"report_to": "none"},
}  # fmt: skip


@dataclass
class Workshop:
    """A folder in which real commands run as processes, with a registry of its own and no GPU in sight."""

    folder: Path

    @cached_property
    def forks(self) -> Forks:
        return Forks(self.environment)

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "HF_", "GRPO_", "PYTHONPATH"))}
        own = {"GRPO_HOME": str(self.folder / "home"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
        return kept | own | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(PROJECT / "src")}

    def config(self, run_id: str, **changes) -> str:
        """Write a config for a run of a few steps and return its file's name."""
        name = f"{len(list(self.folder.glob('*.yaml')))}.yaml"
        (self.folder / name).write_text(yaml.safe_dump({"run_id": run_id} | TINY | changes), encoding="utf-8")
        return name

    def start(self, *command: str, **variables: str) -> Fork:
        """Begin `-m MODULE …` or `SCRIPT …`."""
        return self.forks.start(command, self.folder, self.environment | variables)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess:
        """Wait for `-m MODULE …`, `SCRIPT …` or `-c CODE …`."""
        if command[0] == "-c":
            given = {"cwd": self.folder, "env": self.environment | variables, "capture_output": True, "text": True, "timeout": 300}
            return subprocess.run([sys.executable, *command], check=False, **given)
        process = self.start(*command, **variables)
        try:
            stdout, stderr = process.communicate(300)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, process.wait(), stdout, stderr)

    def train(self, run_id: str, *arguments: str, **changes) -> subprocess.CompletedProcess:
        return self.run(str(PROJECT / "src/fine_tuning/train.py"), "--config", self.config(run_id, **changes), *arguments)

    def infer(self, *arguments: str) -> subprocess.CompletedProcess:
        return self.run(str(PROJECT / "src/inference/inference.py"), *arguments)

    def grpo(self, *arguments: str) -> subprocess.CompletedProcess:
        return self.run("-m", "qwen_vl_grpo", *arguments)

    def run_dir(self, run_id: str) -> Path:
        return self.folder / "runs" / run_id

    @contextmanager
    def held_before(self, step: int, run_id: str, process: Fork):
        """Let a run that was just started do the steps before this one, and hold it there until the block ends.

        What is done to it inside comes at this step, however fast or busy the machine is.
        """
        hold, deadline = self.folder / f"hold-at-{step}", time.monotonic() + 300
        hold.touch()
        try:
            while not any(line["step"] == step - 1 for line in attempts.metrics(self.run_dir(run_id))):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield
        finally:
            hold.unlink()

    def killed_at(self, step: int, run_id: str, process: Fork) -> None:
        """Kill a run that was just started in the middle of a step, with -9."""
        with self.held_before(step, run_id, process):
            process.kill()
            process.communicate()

    def card(self, run_id: str) -> dict:
        return json.loads((self.run_dir(run_id) / "run.json").read_text(encoding="utf-8"))

    def metrics(self, run_id: str) -> list[dict]:
        return [json.loads(line) for line in (self.run_dir(run_id) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def demonstration(folder: Path, *command: str) -> subprocess.CompletedProcess:
    """Run Python in a folder of its own that shows a demonstration the checkout's files."""
    for name in ("configs", "demo", "src"):
        if not (folder / name).exists():
            (folder / name).symlink_to(PROJECT / name)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "HF_", "GRPO_"))}
    environment = kept | {"GRPO_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{folder / 'src'}:{folder}"}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture
def demo(tmp_path):
    """A module of a demonstration, run in a folder of its own."""
    return lambda *arguments: demonstration(tmp_path, "-m", *arguments)


@pytest.fixture(scope="package")
def workshop(tmp_path_factory) -> Iterator[Workshop]:
    from demo import digits, tiny_qwen

    folder = tmp_path_factory.mktemp("workshop")
    tiny_qwen.build(folder / "tiny-qwen2.5-vl", "qwen2_5_vl")
    tiny_qwen.build(folder / "tiny-qwen3-vl", "qwen3_vl")
    digits.write(folder / "digits")
    (folder / "brevity.py").write_text(OWN_REWARD, encoding="utf-8")
    workshop = Workshop(folder)
    yield workshop
    if "forks" in vars(workshop):
        workshop.forks.close()


@pytest.fixture(scope="package")
def finished(workshop) -> str:
    """The id of a run of three steps: warmed up, fully fine-tuned with the documented rewards, scored before and after."""
    done = workshop.train(
        "first",
        task={"mode": "documented"},
        rewards=[],
        warmup={"dataset_name": "digits", "steps": 2, "batch_size": 4},
        evaluation={"dataset_split": "test", "samples": 2},
    )
    assert done.returncode == 0, done.stderr
    return "first"


@pytest.fixture
def refused():
    """Check that a command ended in one line on stderr and exit code 1, and return the line."""

    def check(done: subprocess.CompletedProcess) -> str:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert (done.returncode, done.stdout, len(errors)) == (1, "", 1), done.stderr
        assert done.stderr.splitlines()[-1] == errors[0]
        assert "Traceback" not in done.stderr
        return errors[0]

    return check
