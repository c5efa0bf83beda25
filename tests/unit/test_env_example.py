"""Covers .env.example: it names every variable that the code reads, in a form that docker's --env-file reads as python-dotenv does."""

import ast
import re
from importlib import metadata
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
TEXT = (PROJECT / ".env.example").read_text(encoding="utf-8")
NAMED = set(re.findall(r"^(?:# )?([A-Z][A-Z0-9_]+)=", TEXT, re.MULTILINE))
VARIABLE = re.compile(r"(HF|WANDB|OPENAI|GRPO|VLLM|PYTORCH|CUDA|HIP|ROCR|HSA|NCCL|XDG|OMP|TOKENIZERS|TRANSFORMERS|TORCH)(_[A-Z0-9]+)+")
NOT_THE_USERS = {
    "HF_HUB_DISABLE_TELEMETRY", "HF_DATASETS_DISABLE_PROGRESS_BARS", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_VERBOSITY", "WANDB_SILENT",
    "WANDB_ERROR_REPORTING", "WANDB_FINISH_TIMEOUT", "WANDB_FINISH_TIMEOUT_RAISES", "HF_HUB_DISABLE_PROGRESS_BARS", "VLLM_NO_USAGE_STATS",
    "VLLM_LOGGING_STREAM", "VLLM_MEDIA_URL_ALLOW_REDIRECTS", "VLLM_SERVER_DEV_MODE",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_WORKER_MULTIPROC_METHOD",
    "GRPO_LAUNCH_RECORDS", "GRPO_LAUNCH_LOGS", "GRPO_LAUNCH_PID",
}  # fmt: skip
"""What the code sets or refuses itself: quiet libraries, what makes a server unsafe, and what a launcher tells its ranks."""


def read_by_the_code():
    """Every string constant of the package that has the form of a variable's name."""
    for path in (PROJECT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and VARIABLE.fullmatch(node.value):
                yield node.value


def test_every_variable_that_the_code_reads_is_named():
    read = set(read_by_the_code())
    assert {"HF_TOKEN", "GRPO_HOME", "PYTORCH_ALLOC_CONF"} <= read
    assert read - NOT_THE_USERS <= NAMED


def test_every_variable_that_is_named_is_read_by_the_code_or_by_the_library_that_is_said_to():
    code = set(read_by_the_code())
    for paragraph in TEXT.split("\n\n"):
        for name in set(re.findall(r"^(?:# )?([A-Z][A-Z0-9_]+)=", paragraph, re.MULTILINE)) - code:
            library = re.search(r"read by (\w+)", paragraph)
            assert library, f"{name} is read by nothing that the paragraph names"
            assert mentions(library.group(1), name), f"{library.group(1)} does not read {name}"


def mentions(library, name):
    files = [Path(str(file.locate())) for file in metadata.distribution(library).files or () if file.suffix == ".py"]
    parts = name.removeprefix(f"{library.upper()}_").lower()  # wandb reads WANDB_BASE_URL as its setting base_url
    return any(name in text or (library == "wandb" and f"{parts}:" in text) for text in (path.read_text("utf-8") for path in files))


@pytest.mark.parametrize("line", [line for line in TEXT.splitlines() if line and not line.startswith("# ")])
def test_no_line_has_what_docker_would_keep(line):
    assert re.fullmatch(r"[A-Z][A-Z0-9_]+=[^\s'\"#]*", line)
