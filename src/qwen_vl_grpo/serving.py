"""Runs as models of a vLLM server, which begins to listen when every adapter in its engine is seen to be in use.

The server is vLLM's own, put together here from its parts, since `vllm serve` listens before its engine can be asked anything.
It listens on the loopback alone and wants a key; it fetches no URL for anyone, so pictures and clips come as data: URLs, and what is
seen of a clip is what the run saw in training, in place of vLLM's own choice of frames. What vLLM's
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

from qwen_vl_grpo import clip_times, fetching, loading, policy, processors, registry, row_clips, vllm_backend
from qwen_vl_grpo.errors import ConfigError, DataError
from qwen_vl_grpo.loading import Question, RunPolicy
from qwen_vl_grpo.rollouts import engine_errors

log = logging.getLogger("qwen_vl_grpo")

MOST_IMAGES, MOST_CLIPS = 8, 2
"""Pictures and clips in one request; the server keeps memory for them."""
FRAMES = "grpo_run"
"""What vLLM calls our way from a file to frames."""
SEEN = {"fps", "frames", "min_frames", "max_frames", "max_tokens", "min_pixels", "max_pixels"}
"""What of a `video` section decides what a policy sees of a clip."""


def serve(runs: Sequence[RunPolicy], port: int, ready: Callable[[], object]) -> None:
    """Serve runs of one base until a signal, calling `ready` before the first request is taken.

    Raises ConfigError for runs of several bases, EngineError if vLLM does not start, and RegistryError, before it listens, for a run
    whose adapter is not in use.
    """
    options = _options(runs)
    import uvloop

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # vLLM takes it over when it listens; until then it ends the engine, too
    uvloop.run(_serve(options, port, runs, ready))


async def _serve(options: dict[str, Any], port: int, runs: Sequence[RunPolicy], ready: Callable[[], object]) -> None:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.launchers import cli_args
        from vllm.entrypoints.launchers.api_server import entry
    except ImportError:  # vLLM 0.25 has them elsewhere
        from vllm.entrypoints.openai import api_server as entry
        from vllm.entrypoints.openai import cli_args
    parsed = cli_args.make_arg_parser(FlexibleArgumentParser()).parse_args(_arguments(runs, port, options))
    clip_times.told()
    if "media_io_kwargs" in options:
        _see_as(next(run for run in runs if run.card.watches))
    async with AsyncExitStack() as engines:
        with engine_errors("the server started"):
            address, line = entry.setup_server(parsed, reuse_port=False)
            engine = await engines.enter_async_context(entry.build_async_engine_client(parsed))
        await _check(engine, runs, watched=options.get("limit_mm_per_prompt", {}).get("image") == 0)
        ready()
        ended = await entry.build_and_serve(engine, address, line, parsed)
    await ended


async def _check(engine: Any, runs: Sequence[RunPolicy], watched: bool) -> None:
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
        asked = run, loading.canary(run, watched), adapter, len(adapters) + 1, next_token, forget
        moved = await asyncio.to_thread(vllm_backend.moved, *asked)
        await engine.remove_lora(adapter.lora_int_id)
        log.info("%s: its adapter moves a canary's log-probabilities%s", run.run_id, f" by {moved:.2g}" * math.isfinite(moved))


async def _next_token(engine: Any, question: Question, adapter: Any) -> dict[int, float]:
    prompt, _ = vllm_backend.request(question)
    if question.sample.videos:
        prompt.pop("mm_processor_kwargs", None)  # this server's engine was told for all clips
    with engine_errors("it was asked with and without an adapter"):
        answered = [one async for one in engine.generate(prompt, vllm_backend.one_token(), secrets.token_hex(8), lora_request=adapter)]
        return vllm_backend.likely(answered[-1])


def _see_as(run: RunPolicy) -> None:
    """Let vLLM's server see in a clip what this run saw in training: its frames, in its sizes, at their times."""
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY, VideoLoader

    patch = processors.merged_patch(run.processor)

    @VIDEO_LOADER_REGISTRY.register(FRAMES)
    class Frames(VideoLoader):
        @classmethod
        def load_bytes(cls, data: bytes, **_: Any) -> tuple[Any, dict[str, Any]]:
            try:
                (clip,), _remarks = row_clips.seen([fetching.clip_of(data)], run.config, patch)
            except DataError as error:
                raise ValueError(str(error)) from None  # what vLLM answers with 400
            return clip.frames, processors.metadata(clip) | {"do_sample_frames": False}


def _options(runs: Sequence[RunPolicy]) -> dict[str, Any]:
    """Arguments of vLLM's LLM for what these runs may be shown; raises ConfigError for runs that one server cannot show it alike."""
    groups = loading.groups(runs)
    if len(groups) > 1:
        parted = "; ".join(", ".join(run.run_id for run in group) for group in groups)
        raise ConfigError(f"grpo serve: a server has one base model, and these runs have {len(groups)} ({parted}); start one for each")
    images = MOST_IMAGES
    for run in runs:
        if run.card.watches and run.config.video.mode == "frames":
            log.warning("%s learned from clips as pictures of their frames behind their times; the client has to send them so", run.run_id)
            images = max(images, run.config.video.max_frames)
    watching = [run for run in runs if run.card.watches and run.config.video.mode == "video"]
    if not watching:
        return vllm_backend.engine_options(runs, images)
    if len({run.config.video.model_dump_json(include=SEEN) for run in watching}) > 1:
        names = ", ".join(run.run_id for run in watching)
        raise ConfigError(
            f"grpo serve: a server chooses the frames of clips in one way, and the video sections of {names} differ; start one for each"
        )
    tower = [run.run_id for run in runs if run.has_adapter and any(policy.part(name) != "language" for name in run.tensors)]
    if tower and len(watching) < len(runs):
        raise ConfigError(
            f"grpo serve: with adapters in the vision tower ({', '.join(tower)}) vLLM shows pictures or clips, and these runs learned from "
            "both; start one server for each"
        )
    options = vllm_backend.engine_options(runs, 0 if tower else images, MOST_CLIPS)
    if tower:
        log.info("clips alone are taken: with adapters in the vision tower (%s) vLLM shows pictures or clips", ", ".join(tower))
        options["limit_mm_per_prompt"] = options["limit_mm_per_prompt"] | {"image": 0}
    sized = {"mm_processor_kwargs": options["mm_processor_kwargs"] | {"videos_kwargs": {"do_resize": False}}}
    return options | sized | {"media_io_kwargs": {"video": {"video_backend": FRAMES}}}


def _arguments(runs: Sequence[RunPolicy], port: int, options: Mapping[str, Any]) -> list[str]:
    """Arguments of `vllm serve`."""
    named = "base" if runs[0].has_adapter else runs[0].run_id
    modules = [json.dumps({"name": run.run_id, "path": str(run.folder)}) for run in runs if run.has_adapter]
    return [
        "--host", "127.0.0.1", "--port", str(port), "--served-model-name", named, "--generation-config", "vllm",
        "--allowed-media-domains", "none.invalid", *_flags(options), *(["--lora-modules", *modules] if modules else []),
    ]  # fmt: skip


def settle(environment: Any, port: int) -> Path | None:
    """Put the server's key and manners into the environment; returns the file that `keep_key` is to write unless VLLM_API_KEY gave it."""
    environment["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] = "0"
    environment.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # as the command of vLLM does
    if environment.get("VLLM_API_KEY"):
        return None
    environment["VLLM_API_KEY"] = secrets.token_urlsafe(32)
    return registry.home() / f"serve-{port}.key"


def keep_key(path: Path, key: str) -> None:
    """Write a server's key for its owner alone; once the port is its own, since another server's key lies there until then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(key + "\n")


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
