"""Does vLLM's sleep mode give memory back here, does the engine answer the same afterwards, and does it score as transformers does?

An engine of its own on a small random model, in a process of its own (`python -m qwen_vl_grpo.sleep_check FILE`): a wake-up that
faults, as was seen on MI300 (vllm#52478), ends that process alone.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qwen_vl_grpo.findings import Finding
from qwen_vl_grpo.hardware import FREED_SHARE

REMEDY = "set vllm_enable_sleep_mode: false"
SECONDS = 300
"""How long the process may take."""
SHARE = 0.3
"""Of the card's memory, for the engine: large enough that what stays asleep does not blur the share that is freed."""
SHAPE: dict[str, Any] = {
    "vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 1024,
}  # fmt: skip


def look(starts: bool, sleeps: bool) -> list[Finding]:
    """Run the check in a process of its own; the two say whether the run starts an engine here, and whether that is to sleep."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "qwen_vl_grpo.sleep_check", f"{folder}/slept.json"]
        package = str(Path(__file__).resolve().parents[1])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return [Finding("sleep mode", _worst(sleeps), f"no answer within {SECONDS} s", REMEDY)]
        written = Path(folder) / "slept.json"
        if done.returncode or not written.is_file():
            return [Finding("sleep mode", _worst(sleeps), f"the engine broke: {broke(done.stderr, done.returncode)}", REMEDY)]
        told = json.loads(written.read_text())
        return [judge(told["slept"], sleeps), agree(told["agreement"], starts)]


def broke(stderr: str, code: int) -> str:
    """What ended a process, of all that it said: torch complains of open process groups after the error."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (errors or lines or [f"exit code {code}"])[-1][:200]


def judge(slept: dict[str, Any], wanted: bool) -> Finding:
    """What the figures of `measure` mean: answers that change are a fault, memory that stays is a doubt, since training mends it."""
    taken, levels = slept["taken_gib"], slept["levels"]
    said = "; ".join(
        f"level {level} frees {told['freed_gib']:.1f} of {taken:.1f} GiB, {told['sleep_ms']:.0f} ms down and {told['wake_ms']:.0f} up"
        for level, told in levels.items()
    )
    if changed := [level for level, told in levels.items() if not told["equal"]]:
        found = f"the engine answers differently after level {' and '.join(changed)}: {said}"
        return Finding("sleep mode", _worst(wanted), found, REMEDY, slept)
    if not any(told["freed_gib"] >= FREED_SHARE * taken > 0 for told in levels.values()):
        remedy = "training keeps the engine awake and plans for that; on ROCm vLLM 0.25.0 or newer frees it"
        return Finding("sleep mode", "warn", f"frees nothing here: {said}", remedy, slept)
    return Finding("sleep mode", "ok", f"{said}; same answers", figures=slept)


def agree(told: dict[str, Any], wanted: bool) -> Finding:
    """What the figures of `differences` mean: an engine that gives other log-probabilities than the trainer samples another policy."""
    found = f"vLLM and transformers differ by {told['mean']:.2g} on average over {told['tokens']} tokens (bound {told['bound']:.2g})"
    if told["mean"] <= told["bound"]:  # a nan is in no bound
        return Finding("log-probabilities", "ok", found, figures=told)
    remedy = "take the vLLM image of this card, and look for variables that choose kernels (VLLM_ROCM_USE_AITER, VLLM_ATTENTION_BACKEND)"
    return Finding("log-probabilities", _worst(wanted), found, remedy, told)


def measure(llm: Any, reload: Callable[[], None], free_gib: Callable[[], float], before_gib: float) -> dict[str, Any]:
    """Let the engine answer, sleep, wake and answer again at both levels; GiB by `free_gib`, milliseconds of wall time.

    Level 2 drops the weights: `reload` brings them back between the wake-up of weights and that of the cache, as a run does.
    """
    expected = answers(llm)
    awake = free_gib()
    levels = {}
    for level in (1, 2):
        started = time.perf_counter()
        llm.sleep(level=level)
        down, asleep = time.perf_counter(), free_gib()
        woken = time.perf_counter()
        llm.wake_up(tags=["weights"])
        if level == 2:
            reload()
        llm.wake_up(tags=["kv_cache"])
        up = time.perf_counter()
        levels[str(level)] = {
            "freed_gib": asleep - awake, "sleep_ms": 1000 * (down - started), "wake_ms": 1000 * (up - woken),
            "equal": answers(llm) == expected,
        }  # fmt: skip
    return {"taken_gib": before_gib - awake, "levels": levels}


def answers(llm: Any) -> list[list[int]]:
    """Greedy token ids after two fixed prompts."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": list(range(start, start + 32))} for start in (1, 100)]
    sampling = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True, detokenize=False)
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, sampling, use_tqdm=False)]


def differences(llm: Any, model: Any) -> dict[str, Any]:
    """Absolute differences between the log-probabilities that the engine gives to what it samples and those of the model's own forward."""
    import torch
    from vllm import SamplingParams

    prompts = [list(range(start, start + 32)) for start in (1, 100)]
    sampling = SamplingParams(temperature=1.0, seed=0, max_tokens=32, ignore_eos=True, detokenize=False, logprobs=0)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
    gaps = []
    for prompt, output in zip(prompts, outputs, strict=True):
        sampled = output.outputs[0]
        ids = torch.tensor([[*prompt, *sampled.token_ids]], device=model.device)
        with torch.no_grad():
            scores = model(ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        given = [told[token].logprob for token, told in zip(sampled.token_ids, sampled.logprobs, strict=True)]
        gaps.append((scores.gather(1, ids[0, len(prompt) :, None])[:, 0].cpu() - torch.tensor(given)).abs())
    every = torch.cat(gaps)
    return {"mean": every.mean().item(), "max": every.max().item(), "tokens": len(every)}


def write_model(folder: Path) -> Any:
    """A small random Qwen2 without a tokenizer, on disk; returns it in bfloat16."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPE)).bfloat16()
    model.save_pretrained(folder)
    return model


def engine(folder: Path, **options: Any) -> Any:
    """vLLM on that model in this process, so that weights can be handed to it."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM

    given = {"skip_tokenizer_init": True, "enforce_eager": True, "max_model_len": 512, "gpu_memory_utilization": SHARE}
    return LLM(model=str(folder), **(given | options))


def load(llm: Any, model: Any) -> None:
    """Give the engine the model's weights, as a run does after each step."""
    llm.llm_engine.model_executor.driver_worker.model_runner.model.load_weights(model.state_dict().items())
    llm.reset_prefix_cache()


def _worst(wanted: bool) -> Any:
    return "fail" if wanted else "warn"


def main() -> None:
    """Measure on this machine's card and write the figures into the file that was named."""
    import torch

    from qwen_vl_grpo import parity

    def free_gib() -> float:
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0] / 2**30

    before = free_gib()
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder))
        llm = engine(Path(folder), enable_sleep_mode=True)
        slept = measure(llm, lambda: load(llm, model), free_gib, before)
        agreement = differences(llm, model.cuda()) | {"bound": parity.MEAN_BOUND[torch.bfloat16]}
        Path(sys.argv[1]).write_text(json.dumps({"slept": slept, "agreement": agreement}))


if __name__ == "__main__":
    main()
