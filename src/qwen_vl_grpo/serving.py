"""Runs as models of a vLLM server, which begins to listen when every adapter in its engine is seen to be in use.

The server is vLLM's own, put together here from its parts, since `vllm serve` listens before its engine can be asked anything.
It listens on the loopback alone and wants a key; it fetches no URL for anyone, so pictures come as data: URLs. What vLLM's
key does not guard (vLLM's security guide: everything outside /v1) is why it must not listen elsewhere, and why its dev mode, which
lets anyone run methods of the engine, is refused.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import secrets
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from qwen_vl_grpo import loading, registry, vllm_backend
from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.loading import Question, RunPolicy
from qwen_vl_grpo.rollouts import engine_errors

log = logging.getLogger("qwen_vl_grpo")

MOST_IMAGES = 8
"""Pictures in one request; the server keeps memory for them."""


def serve(runs: Sequence[RunPolicy], port: int, ready: Callable[[], object]) -> None:
    """Serve runs of one base until a signal, calling `ready` before the first request is taken.

    Raises ConfigError for runs of several bases, EngineError if vLLM does not start, and RegistryError, before it listens, for a run
    whose adapter is not in use.
    """
    words = arguments(runs, port)
    import uvloop

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # vLLM takes it over when it listens; until then it ends the engine, too
    uvloop.run(_serve(words, runs, ready))


async def _serve(words: list[str], runs: Sequence[RunPolicy], ready: Callable[[], object]) -> None:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.launchers import cli_args
        from vllm.entrypoints.launchers.api_server import entry
    except ImportError:  # vLLM 0.25 has them elsewhere
        from vllm.entrypoints.openai import api_server as entry
        from vllm.entrypoints.openai import cli_args
    parsed = cli_args.make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    async with AsyncExitStack() as engines:
        with engine_errors("the server started"):
            address, line = entry.setup_server(parsed, reuse_port=False)
            engine = await engines.enter_async_context(entry.build_async_engine_client(parsed))
        await _check(engine, runs)
        ready()
        ended = await entry.build_and_serve(engine, address, line, parsed)
    await ended


async def _check(engine: Any, runs: Sequence[RunPolicy]) -> None:
    """Raise RegistryError for a run whose adapter, or a part of it, leaves what the server's engine answers as it is."""
    loop = asyncio.get_running_loop()

    def wait(call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, loop).result()

    def next_token(question: Question, adapter: Any) -> dict[int, float]:
        return wait(_next_token(engine, question, adapter))

    def forget(number: int) -> None:
        wait(engine.remove_lora(number))  # the server gives its own adapters the same numbers

    adapters = vllm_backend.adapters_of(runs)
    for run, adapter in adapters.items():
        asked = run, loading.canary(run), adapter, len(adapters) + 1, next_token, forget
        moved = await asyncio.to_thread(vllm_backend.moved, *asked)
        await engine.remove_lora(adapter.lora_int_id)
        log.info("%s: its adapter moves a canary's log-probabilities%s", run.run_id, f" by {moved:.2g}" * math.isfinite(moved))


async def _next_token(engine: Any, question: Question, adapter: Any) -> dict[int, float]:
    prompt, _ = vllm_backend.request(question)
    with engine_errors("it was asked with and without an adapter"):
        answered = [one async for one in engine.generate(prompt, vllm_backend.one_token(), secrets.token_hex(8), lora_request=adapter)]
        return vllm_backend.likely(answered[-1])


def arguments(runs: Sequence[RunPolicy], port: int) -> list[str]:
    """The arguments of `vllm serve` for runs of one base; raises ConfigError for runs of several."""
    groups = loading.groups(runs)
    if len(groups) > 1:
        parted = "; ".join(", ".join(run.run_id for run in group) for group in groups)
        raise ConfigError(f"grpo serve: a server has one base model, and these runs have {len(groups)} ({parted}); start one for each")
    options = vllm_backend.engine_options(runs, MOST_IMAGES)
    named = "base" if runs[0].has_adapter else runs[0].run_id
    modules = [json.dumps({"name": run.run_id, "path": str(run.folder)}) for run in runs if run.has_adapter]
    return [
        "--host", "127.0.0.1", "--port", str(port), "--served-model-name", named, "--generation-config", "vllm",
        "--allowed-media-domains", "none.invalid", *_flags(options), *(["--lora-modules", *modules] if modules else []),
    ]  # fmt: skip


def settle(environment: Any) -> Path | None:
    """Put the server's key and manners into the environment; returns the file that the key is in unless VLLM_API_KEY gave it."""
    environment["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] = "0"
    environment.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # as the command of vLLM does
    if environment.get("VLLM_API_KEY"):
        return None
    path = registry.home() / "serve.key"
    path.parent.mkdir(parents=True, exist_ok=True)
    environment["VLLM_API_KEY"] = secrets.token_urlsafe(32)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(environment["VLLM_API_KEY"] + "\n")
    return path


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
