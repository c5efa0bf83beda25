"""A vLLM server beside a run: the command that starts it, whether it fits the run, and how it is asked. Nothing heavy is imported.

It is a plain `vllm serve` of vLLM 0.25 to 0.31 in its development mode, which lets a client load weights and drop caches.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.version import Version

from qwen_vl_grpo import hardware, shapes
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import ConfigError, EngineError, HardwareError, PolicyError, briefly
from qwen_vl_grpo.footprint import GIB

GENERATE, SERVER_INFO = "/inference/v1/generate", "/server_info?config_format=json"
TIMEOUT = 1800.0
"""Seconds until a server that is up and says nothing counts as dead: longer than any generation."""
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""A server is near: a proxy that the environment names for the Hub is not asked."""
SCALE_OUT = Version("0.30")
"""The first vLLM that has the endpoints for token ids behind a flag."""


UNSAFE = ("VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING")


def refuse_unsafe(environment: Mapping[str, str]) -> None:
    """Raise ConfigError for variables that would let a client of `grpo serve` change or call what it should only ask; HardwareError
    without vLLM."""
    for name in UNSAFE:
        if environment.get(name, "0").strip().lower() not in ("", "0", "false"):
            raise ConfigError(f"{name}={environment[name]}: grpo serve does not start with it; unset it")
    if importlib.util.find_spec("vllm") is None:
        raise HardwareError("grpo serve: vLLM is not installed here; run it in a container that has it")


class NotServed(EngineError):
    """The server is up and has no such endpoint."""


class VLLMServer:
    """One server, by its address; every failure is an EngineError that names it."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")

    def get(self, path: str) -> Any:
        return self._ask(path)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._ask(path, json.dumps(body).encode())

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})  # noqa: S310 - config allows http
        try:
            with DIRECT.open(request, timeout=TIMEOUT) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            kind = NotServed if error.code == 404 else EngineError
            raise kind(f"the vLLM server at {self.url} answers {path} with {error.code}: {_told(error.read())}") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise EngineError(f"the vLLM server at {self.url} does not answer ({reason}); its own log says why") from None
        return json.loads(text) if text else None

    def name(self) -> str:
        """What requests call its model."""
        return self.get("/v1/models")["data"][0]["id"]

    def load(self, folder: str) -> None:
        """Replace every weight by those of a folder, and drop what was computed with the old ones: prefixes, picture embeddings."""
        try:
            self.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})
        except EngineError as error:
            raise EngineError(f"{error}; vllm_server_weights must be a folder that the server, too, sees under this path") from None
        self.post("/reset_prefix_cache", {})
        self.post("/reset_encoder_cache", {})


def _told(body: bytes) -> str:
    """The message in the body of an error, in one line."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace")
    return briefly(message)


def command(config: RunConfig, options: Mapping[str, Any]) -> str:
    """The command that starts a server for this config; `options` are arguments of vLLM's LLM that follow from the run."""
    address, installed = urlsplit(config.vllm_server_base_url), hardware.vllm_version()
    given: dict[str, Any] = {
        "revision": config.model_revision,
        "max_model_len": config.vllm_max_model_length,
        "gpu_memory_utilization": config.vllm_gpu_memory_utilization,
        "logprobs_mode": "processed_logprobs",
        "host": address.hostname,  # in its development mode a server obeys whoever reaches it
        "port": address.port or 80,
        "enable_scale_out": True if installed is None or installed >= SCALE_OUT else None,
    }
    words = ["vllm", "serve", config.model_name]
    for key, value in (given | dict(options)).items():
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", json.dumps(value) if isinstance(value, dict | list) else str(value)]
    return f"VLLM_SERVER_DEV_MODE=1 {shlex.join(words)}"


def check(config: RunConfig, options: Mapping[str, Any], context: int) -> None:
    """Raise, in one sentence that ends in the command to start it with, if no server that fits the run answers.

    `context` is the longest prompt and completion together, in tokens. Raises EngineError, and HardwareError if the folder for the
    weights is not there or too small.
    """
    _check_folder(config, str(options["dtype"]))
    server = VLLMServer(config.vllm_server_base_url)
    try:
        faults = "; ".join(_faults(server, config, options, context))
    except EngineError as error:
        raise EngineError(f"run {config.run_id}: {error}; start it with: {command(config, options)}") from None
    if faults:
        raise EngineError(
            f"run {config.run_id}: the vLLM server at {server.url} does not fit: {faults}; start it with: {command(config, options)}"
        )


def _faults(server: VLLMServer, config: RunConfig, options: Mapping[str, Any], context: int) -> Iterator[str]:
    version = server.get("/version")["version"]
    if accepted := hardware.trl_refuses(Version(version)):
        yield f"it is vLLM {version} and {accepted} work"
    try:
        server.get(GENERATE)
    except NotServed:
        yield "it takes no token ids (--enable-scale-out)"
    except EngineError:
        pass  # where the endpoint is, it takes no GET
    try:
        told = server.get(SERVER_INFO)["vllm_config"]["model_config"]
    except NotServed:
        yield "it takes no weights (VLLM_SERVER_DEV_MODE=1)"
        return
    if not _same_model(told["model"], config.model_name):
        yield f"its model is {told['model']} and the run's {config.model_name}"
    if told["max_model_len"] < context:
        yield f"its context is {told['max_model_len']} tokens and the longest prompt with its completion takes {context}"
    for key, wanted in {"dtype": options["dtype"], "logprobs_mode": "processed_logprobs"}.items():
        if (has := str(told[key]).removeprefix("torch.")) != wanted:
            yield f"its {key.replace('_', ' ')} is {has} and must be {wanted}"
    pictures = told.get("multimodal_config") or {}
    limits = pictures.get("mm_processor_kwargs") or {}
    for key, wanted in options.get("mm_processor_kwargs", {}).items():
        if limits.get(key) != wanted:
            yield f"its {key} is {limits.get(key, 'the one in the folder of the model')} and must be {wanted}"
    most = (pictures.get("limit_per_prompt") or {}).get("image", {"count": 999})
    most, wanted = most["count"] if isinstance(most, dict) else most, options.get("limit_mm_per_prompt", {"image": 0})["image"]
    if most < wanted:
        yield f"it takes {most} pictures a prompt and the data holds {wanted}"


def _same_model(one: str, other: str) -> bool:
    return one == other or (os.path.isdir(other) and os.path.realpath(one) == os.path.realpath(other))


def _check_folder(config: RunConfig, dtype: str) -> None:
    folder = Path(config.vllm_server_weights)
    where = f"run {config.run_id}: vllm_server_weights {folder}"
    if not os.access(folder, os.W_OK):
        raise HardwareError(f"{where}: no folder that can be written to; name one that the run and the server both see")
    try:
        needed = shapes.of(config).total() * (4 if dtype == "float32" else 2)
    except PolicyError:
        return
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise HardwareError(
            f"{where}: has {free / GIB:.1f} GiB free and the policy's weights take {needed / GIB:.1f}; give the container more shared "
            "memory (--shm-size), or name another folder that the run and the server both see"
        )
