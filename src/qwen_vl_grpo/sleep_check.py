"""Does vLLM's sleep mode give memory back here, how fast, and does the engine answer the same afterwards?

An engine of its own on a small random model, in a process of its own (`python -m qwen_vl_grpo.sleep_check FILE`): a wake-up that
faults, as was seen on MI300 (vllm#52478), ends that process alone.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qwen_vl_grpo.findings import Finding
from qwen_vl_grpo.hardware import FREED_SHARE

SECONDS = 300
"""How long the process may take."""
SHARE = 0.3
"""Of the card's memory, for the engine: large enough that what stays asleep does not blur the share that is freed."""
SHAPE: dict[str, Any] = {
    "vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 1024,
}  # fmt: skip


def sleep_mode(wanted: bool) -> Finding:
    """Run the check in a process of its own; `wanted` says whether the run asks for sleep mode."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "qwen_vl_grpo.sleep_check", f"{folder}/slept.json"]
        package = str(Path(__file__).resolve().parents[1])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return Finding("sleep mode", _worst(wanted), f"no answer within {SECONDS} s", "set vllm_enable_sleep_mode: false")
        written = Path(folder) / "slept.json"
        if done.returncode or not written.is_file():
            last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), f"exit code {done.returncode}")
            return Finding("sleep mode", _worst(wanted), f"the engine broke: {last[:200]}", "set vllm_enable_sleep_mode: false")
        return judge(json.loads(written.read_text()), wanted)


def judge(slept: dict[str, Any], wanted: bool) -> Finding:
    """What the figures of `measure` mean: answers that change are a fault, memory that stays is a doubt, since training mends it."""
    taken, levels = slept["taken_gib"], slept["levels"]
    said = "; ".join(
        f"level {level} frees {told['freed_gib']:.1f} of {taken:.1f} GiB, {told['sleep_ms']:.0f} ms down and {told['wake_ms']:.0f} up"
        for level, told in levels.items()
    )
    if changed := [level for level, told in levels.items() if not told["equal"]]:
        found = f"the engine answers differently after level {' and '.join(changed)}: {said}"
        return Finding("sleep mode", _worst(wanted), found, "set vllm_enable_sleep_mode: false", slept)
    if not any(told["freed_gib"] >= FREED_SHARE * taken > 0 for told in levels.values()):
        remedy = "training keeps the engine awake and plans for that; on ROCm vLLM 0.25.0 or newer frees it"
        return Finding("sleep mode", "warn", f"frees nothing here: {said}", remedy, slept)
    return Finding("sleep mode", "ok", f"{said}; same answers", figures=slept)


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

    def free_gib() -> float:
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0] / 2**30

    before = free_gib()
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder))
        llm = engine(Path(folder), enable_sleep_mode=True)
        Path(sys.argv[1]).write_text(json.dumps(measure(llm, lambda: load(llm, model), free_gib, before)))


if __name__ == "__main__":
    main()
