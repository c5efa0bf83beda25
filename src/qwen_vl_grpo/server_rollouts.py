"""Rollouts from a vLLM server of its own, on another card: for machines where an engine in the trainer's process hangs (open-r1#482).

TRL 1.16 sends weights to its server over NCCL, hands each rank's prompts to one process, and seeds nothing. Here the weights go
through a folder that both sides see, every rank asks for its own prompts, and the seed decides each request. A server takes a
prompt as the trainer scores it, with the pictures already expanded; what it counts in that prompt is compared in every answer.
"""

from __future__ import annotations

import base64
import io
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors.torch import save_file
from trl.generation.vllm_client import parse_logprobs

from qwen_vl_grpo.engine_prompts import check_prompts, group_size
from qwen_vl_grpo.errors import RolloutError
from qwen_vl_grpo.rollouts import EngineSettings, FaithfulGeneration, engine_errors
from qwen_vl_grpo.vllm_server import GENERATE, VLLMServer

AT_ONCE = 64
"""Requests under way at a time; the server batches them."""
FILE_BYTES = 2**31
"""Weights are written in files of about this size, so that the trainer's host never holds a second copy of all of them."""
FINAL_ONLY = 2
"""vLLM's RequestOutputKind: without it versions before vllm#52399 answer with the completions that ended last only."""


@dataclass
class ServerSettings(EngineSettings):
    """Where the server is, and the folder through which it gets the weights."""

    url: str = "http://127.0.0.1:8000"
    weights: str = "/dev/shm"  # noqa: S108


class ServerGeneration(FaithfulGeneration):
    """The engine of FaithfulGeneration in another process: same prompts, weights, seeds and figures."""

    settings: ServerSettings

    @property
    def batches_alike(self) -> bool:
        """A server batches requests as they arrive, and what a GPU rounds follows the batch."""
        return False

    @engine_errors("the run reached for its server")
    def _init_vllm(self) -> None:
        self.server = VLLMServer(self.settings.url)
        self.model_served = self.server.name()
        self.enable_sleep_mode, self.tensor_parallel_size = False, 1  # the server's own affair
        self.sent = 0
        self.accelerator.wait_for_everyone()

    @engine_errors("it took the policy's weights")
    def sync_weights(self) -> None:
        """Write every weight, LoRA merged out of place, to a folder that the server loads and that is then removed."""
        self.accelerator.wait_for_everyone()  # no rank may still be generating
        with self._timed("sync"):
            if self.accelerator.is_main_process:
                with tempfile.TemporaryDirectory(prefix="weights-", dir=self.settings.weights) as folder:
                    self.sent = write(self._iter_named_params(), Path(folder))
                    self.server.load(folder)
            else:
                for _ in self._iter_named_params():  # gathering a sharded weight takes every rank
                    pass
        self.accelerator.wait_for_everyone()

    @engine_errors("it generated")
    def generate(self, prompts: list[list[int]], images: list[Any] | None, num_generations: int, profiler: Any = None) -> tuple[Any, ...]:
        """Answer the prompts as the trainer scores them, one request a prompt with `num_generations` completions.

        Returns what FaithfulGeneration.generate returns; raises RolloutError if the server's pictures are of other sizes, or if it
        read another prompt.
        """
        group = group_size(prompts, num_generations)
        asked = prompts[::group]
        pictures = [row or [] for row in images[::group]] if images else [[] for _ in asked]
        seeds = numpy.random.SeedSequence([abs(part) for part in self._moment(profiler is not None)]).generate_state(len(asked)).tolist()
        with profiler or nullcontext(), self._timed("generate"), ThreadPoolExecutor(AT_ONCE) as threads:
            answers = list(threads.map(partial(self._answer, group), asked, pictures, seeds))
        check_prompts([read(answer, ids) for answer, ids in zip(answers, asked, strict=True)], asked)
        choices = [choice for answer in answers for choice in answer["choices"]]
        return prompts, [choice["token_ids"] for choice in choices], *parse_logprobs([choice["logprobs"] for choice in choices])

    def _answer(self, group: int, ids: list[int], pictures: list[Any], seed: int) -> Any:
        """One prompt's completions; the seed of completion i of a group is `seed` + i (vLLM)."""
        sampling = self._sampling(group) | {"seed": seed, "output_kind": FINAL_ONLY}
        request = {"model": self.model_served, "token_ids": ids, "sampling_params": sampling, "return_token_ids": True}
        if pictures:
            request["features"] = self._features(ids, pictures)
        return self.server.post(GENERATE, request)

    def _features(self, ids: list[int], pictures: list[Any]) -> dict[str, Any]:
        """Let the server preprocess the pictures of a prompt, and say where they stand in it."""
        content = [{"type": "image_url", "image_url": {"url": as_url(picture)}} for picture in pictures]
        chat = {"model": self.model_served, "messages": [{"role": "user", "content": content}], "max_tokens": 1}
        features = self.server.post("/v1/chat/completions/render", chat)["features"]
        processor: Any = self.processing_class
        places = runs(ids, processor.image_token_id)
        theirs, ours = ([place["length"] for place in found] for found in (features["mm_placeholders"]["image"], places))
        if theirs != ours:
            raise RolloutError(
                f"rollouts: the vLLM server reads pictures of {theirs} tokens and the trainer scores {ours}; check data.min_pixels and "
                "data.max_pixels against the server's --mm-processor-kwargs"
            )
        return features | {"mm_placeholders": {"image": places}}

    def figures(self) -> dict[str, float]:
        return super().figures() | {"rollouts/sync_gib": round(self.sent / 2**30, 4)}


def write(weights: Iterable[tuple[str, torch.Tensor]], folder: Path) -> int:
    """Write weights as safetensors files and return their bytes."""
    held: dict[str, torch.Tensor] = {}
    files = total = size = 0
    for name, weight in weights:
        held[name] = weight.detach().cpu().contiguous()
        size += weight.nbytes
        if size >= FILE_BYTES:
            save_file(held, folder / f"{files}.safetensors")
            files, total, size, held = files + 1, total + size, 0, {}
    if held:
        save_file(held, folder / f"{files}.safetensors")
    return total + size


def runs(ids: Sequence[int], token: int) -> list[dict[str, int]]:
    """Where runs of a token begin and how long they are, in the form that the server takes."""
    found: list[dict[str, int]] = []
    for place, seen in enumerate(ids):
        if seen == token and place and ids[place - 1] == token:
            found[-1]["length"] += 1
        elif seen == token:
            found.append({"offset": place, "length": 1})
    return found


def read(answer: dict[str, Any], asked: list[int]) -> list[int]:
    """The prompt that the server read; vLLM 0.25.1 tells its length alone."""
    told = answer.get("prompt_token_ids")
    return told if told is not None else asked if answer["usage"]["prompt_tokens"] == len(asked) else []


def as_url(picture: Any) -> str:
    """A picture without loss as a data URL."""
    written = io.BytesIO()
    picture.save(written, "PNG")
    return f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"
