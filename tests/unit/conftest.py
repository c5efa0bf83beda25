"""What the unit tests share: a registry of their own, small configs, and tiny real checkpoints of every family."""

import os
from pathlib import Path

import pytest

from qwen_vl_grpo import config as configs

# Before any library reads them: no test asks the Hub for anything, or reports that it ran.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    """No test sees or touches the runs of this checkout, a launcher's variables or a tracker's key."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    for variable in ("WORLD_SIZE", "WANDB_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "home"


@pytest.fixture
def config_of():
    """Make a config for a CPU out of the keys that a test cares about."""

    def make(**changes):
        return configs.check({"run_id": "unit", "use_vllm": False, "gradient_checkpointing": False} | changes)

    return make


@pytest.fixture
def write_yaml(tmp_path):
    """Write a run config as text and return its path."""

    def write(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="package")
def checkpoint(tmp_path_factory):
    """Build a tiny checkpoint of a family once and return its folder."""
    from demo import tiny_qwen

    built: dict[str, str] = {}

    def folder(family: str) -> str:
        if family not in built:
            built[family] = str(tmp_path_factory.mktemp(family))
            tiny_qwen.build(built[family], family)
        return built[family]

    return folder


@pytest.fixture
def prepare(config):
    """Prepare the rows of a run, the keys given changed; `config` is the fixture of the module that asks."""
    from qwen_vl_grpo import dataset, policy, tasks

    def run(**changes):
        made = config(**changes)
        return dataset.prepare(made, tasks.build(made.task), policy.load_processor(made), made.dataset_name, made.dataset_split)

    return run


@pytest.fixture
def own_endpoint(monkeypatch):
    """A judge's endpoint gets nothing from the environment, and is asked again at once."""
    from qwen_vl_grpo.judges import endpoint

    for name in [name for name in os.environ if name.startswith("OPENAI_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(endpoint, "PAUSE", 0.01)
