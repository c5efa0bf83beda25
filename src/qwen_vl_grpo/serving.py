"""Runs as models of a vLLM server: the command, and the environment it runs in.

The server listens on the loopback alone and wants a key; it fetches no URL for anyone, so pictures come as data: URLs. What vLLM's
key does not guard (vLLM's security guide: everything outside /v1) is why it must not listen elsewhere, and why its dev mode, which
lets anyone run methods of the engine, is refused.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qwen_vl_grpo import loading, registry
from qwen_vl_grpo.errors import ConfigError, HardwareError
from qwen_vl_grpo.loading import RunPolicy
from qwen_vl_grpo.vllm_backend import engine_options

MOST_IMAGES = 8
"""Pictures in one request; the server keeps memory for them."""
UNSAFE = ("VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING")


def refuse_unsafe(environment: Mapping[str, str]) -> None:
    """Raise ConfigError for variables that would let a client change or call what it should only ask; HardwareError without vLLM."""
    for name in UNSAFE:
        if environment.get(name, "0").strip().lower() not in ("", "0", "false"):
            raise ConfigError(f"{name}={environment[name]}: grpo serve does not start with it; unset it")
    if importlib.util.find_spec("vllm") is None:
        raise HardwareError("grpo serve: vLLM is not installed here; run it in a container that has it")


def command(runs: Sequence[RunPolicy], port: int) -> list[str]:
    """The command line of `vllm serve` for runs of one base; raises ConfigError for runs of several."""
    groups = loading.groups(runs)
    if len(groups) > 1:
        parted = "; ".join(", ".join(run.run_id for run in group) for group in groups)
        raise ConfigError(f"grpo serve: a server has one base model, and these runs have {len(groups)} ({parted}); start one for each")
    options = engine_options(runs, MOST_IMAGES)
    named = "base" if runs[0].has_adapter else runs[0].run_id
    modules = [json.dumps({"name": run.run_id, "path": str(run.folder)}) for run in runs if run.has_adapter]
    return [
        sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", options.pop("model"), "--host", "127.0.0.1", "--port", str(port),
        "--served-model-name", named, "--generation-config", "vllm", "--allowed-media-domains", "none.invalid",
        *_flags(options), *(["--lora-modules", *modules] if modules else []),
    ]  # fmt: skip


def environment(given: Mapping[str, str]) -> tuple[dict[str, str], Path | None]:
    """The server's environment with its key, and the file that the key is in unless VLLM_API_KEY gave it; it is on no command line."""
    kept = dict(given) | {"VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0"}
    if kept.get("VLLM_API_KEY"):
        return kept, None
    path = registry.home() / "serve.key"
    path.parent.mkdir(parents=True, exist_ok=True)
    kept["VLLM_API_KEY"] = secrets.token_urlsafe(32)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(kept["VLLM_API_KEY"] + "\n")
    return kept, path


def _flags(options: Mapping[str, Any]) -> list[str]:
    """Arguments of vLLM's LLM as flags of its server."""
    flags = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            flags.append(flag)
        elif value is not None and value is not False:
            flags += [flag, json.dumps(value) if isinstance(value, (dict, list)) else str(value)]
    return flags
