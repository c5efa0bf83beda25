"""What the Hub's tests share: a Hub on the loopback, nodes with a registry of their own, and runs to publish."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from qwen_vl_grpo.interfaces import RunCard
from tests.hub.loopback import WRITER, Hub

PROJECT = Path(__file__).resolve().parents[2]
OTHER_CLIENT = PROJECT / ".venv-hub2/bin/python"
REPO = "someone/runs"


@dataclass
class Node:
    """A machine of its own, as far as the product can tell: real commands as subprocesses, the client unmodified."""

    folder: Path
    url: str
    token: str = WRITER
    python: str = sys.executable
    timeout: float = 20
    python_options: tuple[str, ...] = ("-m", "qwen_vl_grpo")

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "HF_", "GRPO_", "PYTHONPATH"))}
        own = {"GRPO_HOME": str(self.folder / "home"), "HF_HOME": str(self.folder / "hf"), "PYTHONPATH": str(PROJECT / "src")}
        hub = {"HF_ENDPOINT": self.url, "HF_HUB_DISABLE_XET": "1", "HF_REGISTRY_REPO": REPO, "GRPO_HUB_TIMEOUT": str(self.timeout)}
        return kept | own | hub | ({"HF_TOKEN": self.token} if self.token else {})

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            [self.python, *self.python_options, *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def grpo(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=120)
        assert "hf_wwww" not in out + err and "hf_rrrr" not in out + err
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def keep(self, run_id: str = "v1", weights: bytes = b"w" * 5000, state: str = "finished", **card) -> Path:
        """A run's folder as training leaves it: card, config, metrics, an adapter, and an optimizer that must never leave."""
        run_dir = self.folder / "runs" / run_id
        checkpoint = run_dir / "checkpoint-3"
        checkpoint.mkdir(parents=True)
        (checkpoint / "adapter_model.safetensors").write_bytes(weights)
        (checkpoint / "adapter_config.json").write_text('{"r": 16}')
        (checkpoint / "optimizer.pt").write_bytes(b"pickled")
        (run_dir / "config.yaml").write_text(f"run_id: {run_id}\n")
        (run_dir / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
        (run_dir / "training.log").write_text("2026-01-01 started\n")
        files = {f"checkpoint-3/{name}": sha(checkpoint / name) for name in ("adapter_model.safetensors", "adapter_config.json")}
        given = {"created": "2026-01-01T00:00:00+00:00", "digest": "d1", "checkpoint": "checkpoint-3", "checkpoint_files": files} | card
        made = RunCard(run_id=run_id, task="visual_reasoning", base_model="Qwen/Qwen2.5-VL-3B-Instruct", state=state, **given)
        (run_dir / "run.json").write_text(made.model_dump_json())
        index = self.folder / "home/index"
        index.mkdir(parents=True, exist_ok=True)
        (index / f"{run_id}.json").write_text(json.dumps({"path": str(run_dir)}))
        return run_dir

    def card(self, run_id: str = "v1") -> dict:
        shown = self.grpo("runs", "show", run_id, "--json")
        assert shown.returncode == 0, shown.stderr
        return json.loads(shown.stdout)

    def waiting(self) -> list[str]:
        return sorted(path.stem for path in (self.folder / "home/unpublished").glob("*.json"))


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def hub():
    with Hub() as server:
        yield server


@pytest.fixture
def client(request) -> str:
    """The interpreter whose huggingface_hub is used: this one (1.33), or that of .venv-hub2 (2.4) in a test marked `both_clients`."""
    if getattr(request, "param", "this") == "this":
        return sys.executable
    if not OTHER_CLIENT.is_file():
        pytest.skip("huggingface_hub 2.4 needs an environment of its own, which is not there: make .venv-hub2/.ready")
    return str(OTHER_CLIENT)


both_clients = pytest.mark.parametrize("client", ["this", "2.4"], indirect=True)


@pytest.fixture
def node(hub, tmp_path, client):
    """Make a machine by name; each has its own home, cache and runs."""

    def make(name: str = "a", **given) -> Node:
        (tmp_path / name).mkdir(exist_ok=True)
        return Node(tmp_path / name, hub.url, **({"python": client} | given))

    return make


@pytest.fixture
def refused():
    """Check that a command ended in one line on stderr and exit code 1, and return the line."""

    def check(done: subprocess.CompletedProcess) -> str:
        lines = done.stderr.splitlines()
        assert (done.returncode, done.stdout, len(lines)) == (1, "", 1), done.stderr
        assert lines[0].startswith("error: ")
        return lines[0]

    return check
