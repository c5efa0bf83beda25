"""The vLLM engine made faithful: what it samples is the policy's own, and the seed decides it.

A subclass of TRL's VLLMGeneration, put in its place by `injected`. Each override names what it answers. The generation itself is
ours: one request a prompt with a completion for each member of its group, on one card or on several (tensor parallel). An engine in a
process of its own: server_rollouts.py.
"""

from __future__ import annotations

import gc
import logging
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy
import torch
from peft import PeftModel
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration, extract_logprobs
from trl.trainer import grpo_trainer

from qwen_vl_grpo import clip_times, sharding
from qwen_vl_grpo.engine_prompts import check_prompts, clips_written, collapse, group_size, shown
from qwen_vl_grpo.errors import EngineError, GrpoError, HardwareError, briefly
from qwen_vl_grpo.hardware import FREED_SHARE
from qwen_vl_grpo.merging import merged_weights
from qwen_vl_grpo.processors import vision_token_ids

log = logging.getLogger("qwen_vl_grpo")
T = TypeVar("T")

HOT = 2.0
"""The highest temperature that vLLM takes: two seeds must draw differently from a policy that is sure of its answer, too."""


@dataclass
class EngineSettings:
    """What TRL hard-codes: `options` go to vLLM's LLM over TRL's own, `seed` reaches the sampler."""

    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    moment: Callable[[], int] = lambda: 0
    """The optimizer step, so that a resumed run samples as the uninterrupted one would."""


@contextmanager
def engine_errors(when: str) -> Iterator[None]:
    """Say in one sentence that vLLM broke down, and when: what it raises has many types, and some tell nothing by themselves."""
    try:
        yield
    except GrpoError:
        raise
    except Exception as error:
        told = briefly(error)
        raise EngineError(f"vLLM broke down while {when}: {type(error).__name__}{': ' if told else ''}{told}") from error


class FaithfulGeneration(VLLMGeneration):
    """TRL's engine, answering the prompts that the trainer scores with the weights that the trainer has."""

    def __init__(self, *arguments: Any, settings: EngineSettings | None = None, **named: Any):
        self.settings = settings or EngineSettings()
        self.sleep_level = 0
        self.memory: dict[str, float] = {}
        self.seconds: dict[str, float] = defaultdict(float)
        self.pinned: tuple[int, ...] | None = None
        self._calls = Counter[tuple[int, ...]]()
        super().__init__(*arguments, **named)

    @property
    def number(self) -> int:
        """Which of the run's engines is here: one on several cards (tensor parallel) is a process on each."""
        return self.accelerator.process_index // self.tensor_parallel_size

    @property
    def batches_alike(self) -> bool:
        """Whether the same call is computed in the same batches, so that a seed repeats its completions to the last token."""
        return True

    @engine_errors("it started")
    def _init_vllm(self) -> None:
        """Hand our options to the engine (trl#3788), and find out whether sleep mode frees memory on this machine.

        It holds whole weights beside a 4-bit base, too: TRL makes it quantise what it loads, and each sync would round the policy again
        (trl#3466).
        """
        clip_times.told()
        self._measure("before the engine")
        published = vllm_generation.LLM  # pyright: ignore[reportPrivateImportUsage]
        options = {"quantization": None} | self.settings.options
        options |= {"seed": self.settings.seed * 1009 + self.number}
        vllm_generation.LLM = lambda **given: published(**(given | options))  # pyright: ignore
        try:
            super()._init_vllm()
        finally:
            vllm_generation.LLM = published  # pyright: ignore
        self._measure("engine asleep" if self.enable_sleep_mode else "engine awake")
        if self.enable_sleep_mode:
            self._choose_sleep_level()

    def _choose_sleep_level(self) -> None:
        """Level 2 if it frees memory here, else 1, else stay awake; ROCm before vLLM 0.25 frees nothing (vllm#46203)."""
        self.llm.wake_up()
        awake = self._measure("engine awake")
        taken = self.memory["before the engine"] - awake
        for level in (2, 1):
            self.llm.sleep(level=level)
            freed = self._measure(f"engine asleep, level {level}") - awake
            if not torch.cuda.is_available() or freed >= FREED_SHARE * taken:
                self.sleep_level = level
                log.info("sleep mode: level %d frees %.1f of the engine's %.1f GiB", level, freed, taken)
                return
            log.warning("sleep mode: level %d frees only %.1f of the engine's %.1f GiB here", level, freed, taken)
            self.llm.wake_up()
        log.warning("sleep mode frees nothing on this machine, so the engine stays awake; on ROCm it needs vLLM 0.25.0 or newer")
        self.enable_sleep_mode = self._llm_weights_sleeping = False

    @engine_errors("it took the policy's weights")
    def sync_weights(self) -> None:
        """Give the engine the policy's weights in one pass, and drop what it remembers of the old ones.

        TRL hands over one parameter at a time and resets the prefix cache alone; picture embeddings of the old vision tower
        stay (trl#7198).
        """
        if self.enable_sleep_mode and self._llm_weights_sleeping:
            self._wake("weights")
            self._llm_weights_sleeping = False
        with self._timed("sync"):
            self.llm.llm_engine.model_executor.driver_worker.model_runner.model.load_weights(self._iter_named_params())
            self.llm.reset_prefix_cache()
            self.llm.llm_engine.reset_encoder_cache()

    def _iter_named_params(self) -> Generator[tuple[str, torch.Tensor], None, None]:
        """Merge LoRA out of place: TRL adds to the base and subtracts again, and a bf16 base drifts (trl#6688). What FSDP2 split is
        gathered group by group, where TRL gathers weight after weight."""
        deepspeed: Any = self.accelerator.state.deepspeed_plugin
        plain = not self._dist.is_fsdp and (deepspeed is None or deepspeed.zero_stage < 3)
        if plain and isinstance(self.model, PeftModel):
            return merged_weights(self.model)
        if self._dist.fsdp_version == 2 and not isinstance(self.model, PeftModel):
            return ((self._fix_param_name_to_vllm(name), weight) for name, weight in sharding.whole_weights(self.model))
        return super()._iter_named_params()

    @engine_errors("it generated")
    def generate(self, prompts: list[list[int]], images: list[Any] | None, num_generations: int, profiler: Any = None) -> tuple[Any, ...]:
        """Answer prompts whose pictures and clips are expanded, as the trainer has them: trl#6294, trl#6401.

        A row of `images` holds pictures and clips in the order of the chat, and is [] in the trainer where there are none.
        Returns the prompts, completions, log-probabilities and their ids in TRL's form; raises RolloutError if the engine read another
        prompt than the trainer scores.
        """
        vision = vision_token_ids(self.processing_class)
        written = clips_written(self.processing_class, images or [])
        short = [collapse(ids, vision, clips) for ids, clips in zip(prompts, written or [[]] * len(prompts), strict=True)]
        pictures = [list(row) if row else None for row in images] if images else None
        seen, *rest = self._generate_here(short, pictures, group_size(prompts, num_generations), profiler)
        check_prompts(seen, prompts)
        return prompts, *rest

    def _generate_here(self, prompts: list[list[int]], images: list[Any] | None, group: int, profiler: Any) -> tuple[Any, ...]:
        """One request a prompt, `group` completions each; awake only for as long as it takes.

        An engine on several cards computes every request on each of them, so its processes ask it the same and keep their own answers.
        """
        requests: list[dict[str, Any]] = [{"prompt_token_ids": ids} for ids in prompts[::group]]
        for request, pictures in zip(requests, images[::group] if images else [None] * len(requests), strict=True):
            if pictures:
                request |= shown(pictures)
        everyone = self._beside((requests, group))
        asked = [request for those, _ in everyone for request in those]
        if not asked:
            return [], [], [], []
        if self.enable_sleep_mode:
            if self._llm_weights_sleeping:
                self.sync_weights()
            self._wake("kv_cache")
        self._measure("generating")
        parameters = vllm_generation.SamplingParams  # pyright: ignore[reportPrivateImportUsage]
        sampling = [parameters(**self._sampling(size)) for those, size in everyone for _ in those]
        if everyone[1:]:
            self.accelerator.wait_for_everyone()  # NCCL may still be busy with the gradients of small adapters (trl#3671)
        with profiler or nullcontext(), seeded(self._moment(profiler is not None)), self._timed("generate"):
            outputs = self.llm.generate(asked, sampling_params=sampling, use_tqdm=False)
        if self.enable_sleep_mode:
            with self._timed("sleep"):
                self.llm.sleep(level=self.sleep_level)
            self._llm_weights_sleeping = True  # at level 1 too: kept on the host, they are still not there to be written to
        self._measure("after generating")
        before = sum(len(those) for those, _ in everyone[: self.accelerator.process_index % self.tensor_parallel_size])
        outputs = outputs[before : before + len(requests)]
        logprobs, token_ids = extract_logprobs(outputs)
        seen = [output.prompt_token_ids for output in outputs for _ in output.outputs]
        return seen, [list(answer.token_ids) for output in outputs for answer in output.outputs], logprobs, token_ids

    def _beside(self, mine: T) -> list[T]:
        """What each process of this engine has, in their order."""
        if self.tensor_parallel_size == 1:
            return [mine]
        everyone: list[Any] = [None] * self.tensor_parallel_size
        torch.distributed.all_gather_object(everyone, mine, group=self.tp_group)  # pyright: ignore[reportArgumentType]
        return everyone

    def _moment(self, training: bool) -> tuple[int, ...]:
        """What seeds a call: the step, and how many of its kind were before it in that step, so that a resumed run samples alike.

        Training alone brings TRL's profiler; the parity gate and evaluations are counted apart.
        """
        if self.pinned:
            return self.pinned
        here = (self.settings.seed, self.number, self.settings.moment(), int(training))
        self._calls[here] += 1
        return *here, self._calls[here]

    def _sampling(self, group: int) -> dict[str, Any]:
        given = {
            "n": group, "temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p or 0.0,
            "repetition_penalty": self.repetition_penalty, "max_tokens": self.max_completion_length, "logprobs": self.logprobs,
        }  # fmt: skip
        return given | self.generation_kwargs

    def sample(
        self, prompts: list[list[int]], images: list[Any] | None, count: int, temperature: float, top_p: float = 1.0
    ) -> list[list[list[int]]]:
        """Answer prompts outside training, `count` times each, at another temperature (0 is greedy); returns token ids."""
        if not prompts and self.tensor_parallel_size == 1:
            return []
        repeated = [ids for ids in prompts for _ in range(count)]
        pictures = [row for row in images for _ in range(count)] if images and any(images) else None
        trained_at = self.temperature, self.top_p
        self.temperature, self.top_p = temperature, top_p
        try:
            completions = self.generate(repeated, pictures, count)[1]
        finally:
            self.temperature, self.top_p = trained_at
        return [completions[i : i + count] for i in range(0, len(completions), count)]

    def drawn(self, prompts: list[list[int]], seed: int) -> list[list[int]]:
        """Completions of text prompts under one fixed seed, to see that the sampler follows it: hot, so that no policy is sure of one."""
        kept = self.max_completion_length, self.temperature
        self.max_completion_length, self.temperature, self.pinned = min(16, self.max_completion_length), HOT, (seed,)
        try:
            return self.generate(prompts, None, 1)[1]
        finally:
            (self.max_completion_length, self.temperature), self.pinned = kept, None

    @engine_errors("it woke")
    def _wake(self, what: str) -> None:
        """Wake a part of the engine; if memory is short, give the trainer's cache back and try once more (vllm#36651)."""
        torch.cuda.empty_cache()
        try:
            with self._timed("wake"):
                self.llm.wake_up(tags=[what])
        except (RuntimeError, MemoryError):
            gc.collect()
            torch.cuda.empty_cache()
            try:
                self.llm.wake_up(tags=[what])
            except (RuntimeError, MemoryError) as error:
                free = self._measure(f"{what} not woken")
                raise HardwareError(
                    f"vLLM cannot wake its {what.replace('_', ' ')} with {free:.1f} GiB free ({' '.join(str(error).split())[:120]}); lower "
                    "vllm_gpu_memory_utilization, or batch_size with more gradient_accumulation_steps"
                ) from None

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        """Add the wall seconds of a phase, the card's work included."""
        started = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds[phase] += time.perf_counter() - started

    def figures(self) -> dict[str, float]:
        """Seconds since the last call and free GiB by phase, for the log; the seconds start again at 0."""
        told = {f"rollouts/seconds/{phase}": round(seconds, 3) for phase, seconds in self.seconds.items()}
        told |= {f"rollouts/free_gib/{phase.replace(' ', '_')}": round(gib, 2) for phase, gib in self.memory.items() if gib}
        self.seconds.clear()
        return told

    def _measure(self, phase: str) -> float:
        """Note the free memory of the card in GiB under a phase's name."""
        self.memory[phase] = torch.cuda.mem_get_info()[0] / 2**30 if torch.cuda.is_available() else 0.0
        return self.memory[phase]


@contextmanager
def seeded(parts: Sequence[int]) -> Iterator[None]:
    """Seed every generator that a sampler in this process may draw from, and give them back as they were.

    The engine shares the process's generators with the trainer and TRL never seeds them for it (trl#7040).
    """
    state = numpy.random.SeedSequence([abs(part) for part in parts]).generate_state(1)[0]
    numpy_state, python_state = numpy.random.get_state(), random.getstate()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(int(state))
        numpy.random.seed(state)
        random.seed(int(state))
        try:
            yield
        finally:
            numpy.random.set_state(numpy_state)
            random.setstate(python_state)


@contextmanager
def injected(settings: EngineSettings | None = None, engine: type[FaithfulGeneration] = FaithfulGeneration) -> Iterator[None]:
    """Let a trainer that is built inside use this engine: TRL takes the class from this module by name."""
    published = grpo_trainer.VLLMGeneration  # pyright: ignore[reportPrivateImportUsage]
    grpo_trainer.VLLMGeneration = partial(engine, settings=settings)  # pyright: ignore
    try:
        yield
    finally:
        grpo_trainer.VLLMGeneration = published  # pyright: ignore[reportPrivateImportUsage]
