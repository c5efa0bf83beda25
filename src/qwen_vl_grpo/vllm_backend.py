"""Answers from vLLM: one engine for each base model, with the adapters of all its runs in it.

The prompts are ours: each run's own chat template and picture sizes, as token ids, and what the engine read is held against them.
So both backends ask the same thing. What vLLM would ignore in silence is looked for before the first answer: an adapter whose names
do not match (vllm#34186) and the part of one that lies in the vision tower, which counts only with `enable_tower_connector_lora`
(vllm#23796) and a model that supports it: else it answers from a merged copy. On a CPU an adapter too many is allowed for (vllm#48421).
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import gc
import logging
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from qwen_vl_grpo import clip_times, policy, processors
from qwen_vl_grpo.engine_prompts import check_prompts, clips_written, collapse, forbid_vision_tokens, shown
from qwen_vl_grpo.errors import EngineError, RegistryError
from qwen_vl_grpo.loading import Completion, Question, RunPolicy, finished, positions
from qwen_vl_grpo.processors import vision_token_ids
from qwen_vl_grpo.rollouts import engine_errors

log = logging.getLogger("qwen_vl_grpo")

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as max_lora_rank."""
QUEUED = 64
"""Questions that wait in the engine beside those it answers at once; the next picture is opened when one is answered."""
AT_ONCE = 8
"""Adapters in one step of the engine; more are kept on the host and take turns."""
SEATS = 256
"""Answers that vLLM writes at once where nobody says how many; 1,024 on cards of 70 GiB and more."""
MOST_TOKENS = 32_768
"""Context that memory is kept for where neither config nor model asks for less."""


class TowerIgnored(RegistryError):
    """vLLM leaves out what an adapter learned in the vision tower or the merger; the rest of it, if any, is in use."""


class VllmBackend:
    """vLLM's engine with the base of some runs and their adapters."""

    name = "vllm"

    @engine_errors("it started")
    def __init__(self, runs: Sequence[RunPolicy], most_images: int, most_clips: int = 0, questions: int | None = None):
        from vllm import LLM

        self._requests = adapters_of(runs)
        options = engine_options(runs, most_images, most_clips, questions)
        self.context = int(options["max_model_len"])
        clip_times.told()
        self.llm: Any = LLM(**options)
        self._held = self.llm.llm_engine.vllm_config.scheduler_config.max_num_seqs + QUEUED

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()
        torch.cuda.empty_cache()

    def check(self, run: RunPolicy, canary: Question) -> float:
        """As `moved` says."""
        return moved(run, canary, self._requests[run], len(self._requests) + 1, self._next_token, self.llm.llm_engine.remove_lora)

    @engine_errors("it was asked with and without an adapter")
    def _next_token(self, question: Question, adapter: Any) -> dict[int, float]:
        return likely(self.llm.generate([request(question)[0]], one_token(), lora_request=adapter, use_tqdm=False)[0])

    def answer(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Completion]]:
        """Keep the engine full, and give each answer as it is finished; raises EngineError if another prompt was read than ours."""
        engine, left, waiting = self.llm.llm_engine, enumerate(questions), {}
        while True:
            while len(waiting) < self._held and (entry := next(left, None)):
                number, question = entry
                asked, ids = request(question)
                waiting[str(number)] = question, ids
                with engine_errors("it took a question"):
                    engine.add_request(str(number), asked, sampling(question), lora_request=self._requests.get(question.run))
            if not waiting:
                return
            with engine_errors("it answered"):
                done = [output for output in engine.step() if output.finished]
            for output in done:
                question, ids = waiting.pop(output.request_id)
                check_prompts([output.prompt_token_ids], [ids])
                yield question, finished(list(output.outputs[0].token_ids), question.run.ends, len(ids))


def adapters_of(runs: Sequence[RunPolicy]) -> dict[RunPolicy, Any]:
    """One LoRARequest an adapter; vLLM tells them apart by name and by number, and takes a path that is not there for a Hub id."""
    from vllm.lora.request import LoRARequest

    adapters = [run for run in runs if run.has_adapter]
    return {run: LoRARequest(f"{run.run_id}@{run.sha[:8]}", place, str(run.folder)) for place, run in enumerate(adapters, 1)}


def moved(
    run: RunPolicy,
    canary: Question,
    adapter: Any,
    free: int,
    next_token: Callable[[Question, Any], dict[int, float]],
    forget: Callable[[int], object],
) -> float:
    """How far the run's adapter moves the log-probabilities of a canary's next token, which `next_token` asks the engine for.

    Adapters may be numbered from `free` on. Raises RegistryError if a part of the adapter that learned something moves them no further
    than asking the base twice, and TowerIgnored if that is so of the tower alone.
    """
    from vllm.lora.request import LoRARequest

    base = next_token(canary, None)
    floor = distance(base, next_token(canary, None))
    parts = sorted(run.learned(), key=lambda part: part != "language")
    with tempfile.TemporaryDirectory() as folder:
        for number, part in enumerate(parts if len(parts) > 1 else (), free):
            alone = LoRARequest(f"{run.run_id}/{part}", number, str(only(run, part, Path(folder) / part)))
            apart = distance(base, next_token(canary, alone))
            forget(number)  # the next run's part gets its number
            if not apart > floor:
                raise ignored(run, part, f"the {part} part of its adapter")
    whole = distance(base, next_token(canary, adapter))
    if not whole > floor:
        raise ignored(run, parts[0], "its adapter")
    return whole


def one_token() -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=1, logprobs=20)


def likely(answered: Any) -> dict[int, float]:
    """The log-probabilities of the first token, as the engine tells the likeliest."""
    return {token: entry.logprob for token, entry in answered.outputs[0].logprobs[0].items()}


def engine_options(runs: Sequence[RunPolicy], most_images: int, most_clips: int = 0, questions: int | None = None) -> dict[str, Any]:
    """Arguments of vLLM's LLM for runs of one base; the `engine:` section of the first one's config comes over them.

    `most_images` and `most_clips` are those of one prompt. Few `questions` make an engine for as many: it records a graph for every size
    of a batch, twice with adapters, which took 28 s of a start on an H200 (docs/inference_guide.md).
    """
    first, adapters = runs[0], [run for run in runs if run.has_adapter]
    on_cpu = not torch.cuda.is_available()
    asked = [run.config.vllm_max_model_length for run in runs]
    own = min(positions(first), MOST_TOKENS)
    options: dict[str, Any] = {
        "model": first.base, "revision": first.revision, "seed": first.config.seed or 0,
        "dtype": str(policy.weight_dtype(first.config)).removeprefix("torch."), "enforce_eager": on_cpu, "use_tqdm_on_load": False,
        "max_model_len": own if None in asked else max(length for length in asked if length),
    }  # fmt: skip
    if questions is not None and questions < SEATS:
        options["max_num_seqs"] = questions
    if processors.sees(first.processor):
        least, most = min(run.config.data.min_pixels for run in runs), max(run.config.data.max_pixels for run in runs)
        options["limit_mm_per_prompt"] = {"image": max(1, most_images), "video": clip_limits(runs, most_clips)}
        options["mm_processor_kwargs"] = {"min_pixels": least, "max_pixels": most}
    if adapters:
        options |= lora_options(adapters, on_cpu, most_images > 0 < most_clips)
    return options | {name: value for name, value in first.config.engine.items() if name != "max_model_len"}


def clip_limits(runs: Sequence[RunPolicy], most: int) -> Any:
    """So many clips of the largest that these runs see, so that vLLM keeps no memory for thousands of frames."""
    if not most:
        return 0
    side = math.isqrt(max(run.config.video.max_pixels for run in runs))
    return {"count": most, "num_frames": max(run.config.video.max_frames for run in runs), "width": side, "height": side}


def lora_options(adapters: Sequence[RunPolicy], on_cpu: bool, mixed: bool = False) -> dict[str, Any]:
    """Room for these adapters: the smallest rank that vLLM takes and that holds the largest of them, read from their configs.

    `mixed`: pictures and clips are asked about. vLLM (0.31) then says once for both which of the tower's rows are whose and runs each
    kind from the first row on, so that one is seen through adapters of the other: tower LoRA stays off, and merged copies answer.
    """
    largest = max(run.rank for run in adapters)
    rank = next((rank for rank in RANKS if rank >= largest), None)
    if rank is None:
        names = ", ".join(run.run_id for run in adapters if run.rank > RANKS[-1])
        raise EngineError(f"vLLM holds adapters up to rank {RANKS[-1]} and {names} has {largest}; ask with --backend transformers")
    tower = [run.run_id for run in adapters if not mixed and any(policy.part(name) != "language" for name in run.tensors)]
    if tower:
        log.info("adapters in the vision tower (%s): vLLM's tower LoRA is on", ", ".join(tower))
    count = len(adapters) + on_cpu
    return {
        "enable_lora": True, "max_lora_rank": rank, "max_loras": count if on_cpu else min(count, AT_ONCE), "max_cpu_loras": count + 1,
    } | ({"enable_tower_connector_lora": True} if tower else {})  # fmt: skip


def request(question: Question) -> tuple[dict[str, Any], list[int]]:
    """A question as vLLM takes it, one token a picture or clip, and the ids that it must read."""
    processor, sample = question.run.processor, question.sample
    media = processors.in_order(sample)
    short = collapse(question.ids, vision_token_ids(processor), clips_written(processor, [media])[0])
    return {"prompt_token_ids": short} | (shown(media) if media else {}), question.ids


def sampling(question: Question) -> Any:
    """How vLLM samples an answer, which it tells when it is whole: told at each token, every answer so far is copied at every step."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=question.temperature, top_p=question.top_p, max_tokens=question.max_new_tokens, detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        stop_token_ids=question.run.ends, seed=question.drawn_with if question.temperature else None,
        **forbid_vision_tokens(question.run.processor, use_vllm=True),
    )  # fmt: skip


def only(run: RunPolicy, part: str, folder: Path) -> Path:
    """A copy of a run's adapter with the tensors of one part of the model alone."""
    folder.mkdir()
    tensors = load_file(run.folder / "adapter_model.safetensors")
    save_file({name: tensor for name, tensor in tensors.items() if policy.part(name) == part}, folder / "adapter_model.safetensors")
    shutil.copy(run.folder / "adapter_config.json", folder)
    return folder


def distance(one: dict[int, float], other: dict[int, float]) -> float:
    """The largest difference of the log-probabilities that both hold; infinite if no token is likely to both."""
    return max((abs(one[token] - other[token]) for token in one.keys() & other.keys()), default=float("inf"))


def ignored(run: RunPolicy, part: str, what: str) -> RegistryError:
    kind = RegistryError if part == "language" else TowerIgnored
    return kind(
        f"run_id {run.run_id}: {what} changes no probability in vLLM, so the base would answer in its name; nothing was asked; "
        "grpo infer --backend transformers answers with it, and so does a merged copy (grpo export)"
    )
