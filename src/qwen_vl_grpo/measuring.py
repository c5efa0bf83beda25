"""What this machine does, measured on it: arithmetic, copies, attention, several cards together, the disk, the video decoder."""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch.multiprocessing.spawn import ProcessException
from torch.nn.attention import SDPBackend, sdpa_kernel

from qwen_vl_grpo.findings import Finding
from qwen_vl_grpo.hardware import Hardware

PEAKS = {
    "MI300X": (1307.4, 5300.0), "H200": (989.4, 4800.0), "H100 PCIe": (756.0, 2000.0), "H100 NVL": (835.5, 3900.0), "H100": (989.4, 3350.0),
}  # fmt: skip
"""Card -> dense bfloat16 TFLOP/s and memory GB/s of the vendor's data sheet; the first name that the card's name holds."""
LEAST = (0.35, 0.6)
"""Shares of these peaks below which a card is not as it should be: throttled, shared, or with the wrong libraries."""
SLOW_DISK = 100.0
"""MB/s at which a checkpoint of a 7B model with its optimizer state (90 GB) takes a quarter of an hour."""
PATIENCE = timedelta(seconds=60)
"""How long cards may take to find each other and to sum; a link that is down would be waited for ten minutes."""
ATTENTION = {"flash": SDPBackend.FLASH_ATTENTION, "memory-efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


def everything(machine: Hardware, folder: Path) -> list[Finding]:
    """Measure this machine; `folder` is where checkpoints will lie. A measurement that breaks is a fault, not an end."""
    device = "cuda" if machine.accelerated else "cpu"
    size, mib, tokens = (8192, 2048, 4096) if machine.accelerated else (512, 64, 256)
    found = [
        guarded("bf16 matmul", lambda: matmul(device, machine.name, size)),
        guarded("memory copy", lambda: copy(device, machine.name, mib)),
        guarded("attention", lambda: attention(device, tokens)),
    ]
    if machine.devices > 1:
        found.append(guarded("all-reduce", lambda: all_reduce(machine.devices, "nccl", 256)))
    return [*found, guarded("checkpoint disk", lambda: disk(folder)), video_decoder()]


def guarded(name: str, measure: Callable[[], Finding]) -> Finding:
    """The measurement, or a fault that says how it broke: a card that cannot multiply cannot train."""
    try:
        return measure()
    except Exception as error:  # whatever it is: a torch without CUDA raises AssertionError
        return Finding(name, "fail", f"broke: {' '.join(str(error).split())[:200]}", "mend the driver or the libraries, see docs/doctor.md")


def matmul(device: str, card: str, size: int) -> Finding:
    """TFLOP/s of a product of two square bfloat16 matrices of `size`."""
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = fastest(lambda: left @ right, device)
    return against("bf16 matmul", 2 * size**3 / seconds / 1e12, "TFLOP/s", card, 0)


def copy(device: str, card: str, mib: int) -> Finding:
    """GB/s of a copy within the memory of the device, what is read and what is written both counted."""
    source = torch.ones(mib * 2**20, dtype=torch.uint8, device=device)  # zeros would be one page of the CPU, read again and again
    target = torch.empty_like(source)
    seconds = fastest(lambda: target.copy_(source), device)
    return against("memory copy", 2 * source.numel() / seconds / 1e9, "GB/s", card, 1)


def fastest(work: Callable[[], Any], device: str, rounds: int = 10) -> float:
    """Seconds of the fastest of some rounds, after one that warms up."""
    seconds = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def against(name: str, rate: float, unit: str, card: str, column: int) -> Finding:
    """A rate held against the peak of the card's class."""
    peak = next((peaks[column] for known, peaks in PEAKS.items() if known in card), None)
    figures = {"rate": rate, "unit": unit, "peak": peak}
    if peak is None:
        return Finding(name, "ok", f"{rate:.3g} {unit}; no peak is known for {card}", figures=figures)
    found = f"{rate:.0f} of {peak:.0f} {unit} ({rate / peak:.0%})"
    if rate >= LEAST[column] * peak:
        return Finding(name, "ok", found, figures=figures)
    remedy = "look for another process on the card, its power limit and temperature, and the libraries under torch"
    return Finding(name, "warn", f"{found}, below {LEAST[column]:.0%}", remedy, figures)


def attention(device: str, tokens: int) -> Finding:
    """Which of torch's attention backends run in bfloat16 on this device, with the milliseconds of each for so many tokens."""
    query = torch.randn(1, 8, tokens, 128, device=device, dtype=torch.bfloat16)
    taken: dict[str, float] = {}
    for name, backend in ATTENTION.items():
        with sdpa_kernel(backend):
            try:
                taken[name] = 1000 * fastest(lambda: torch.nn.functional.scaled_dot_product_attention(query, query, query), device, 3)
            except RuntimeError:  # not built, or not for this card
                continue
    flash = importlib.util.find_spec("flash_attn") is not None
    said = ", ".join(f"{name} {ms:.3g} ms" for name, ms in taken.items()) + ("; flash-attn is installed" if flash else "")
    figures = {"milliseconds": taken, "flash_attn": flash}
    if "flash" in taken or flash:
        return Finding("attention", "ok", said, figures=figures)
    return Finding("attention", "warn", f"{said}; no flash attention", "take the torch of the vLLM image, or install flash-attn", figures)


def all_reduce(devices: int, backend: str, mib: int) -> Finding:
    """Sum a tensor over so many processes; the bus bandwidth in GB/s as nccl-tests counts it, and whether the sum is right."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            torch.multiprocessing.spawn(_summing, (devices, backend, mib, folder), nprocs=devices)  # pyright: ignore
        except ProcessException as error:  # holds the traceback of the first that broke
            raise RuntimeError(str(error).strip().splitlines()[-1]) from error
        seconds = max(float(path.read_text()) for path in Path(folder).glob("rank-*"))
    rate = 2 * (devices - 1) / devices * mib * 2**20 / seconds / 1e9
    figures = {"bus_gb_per_s": rate, "processes": devices}
    return Finding("all-reduce", "ok", f"{rate:.3g} GB/s of bus bandwidth over {devices} ({backend})", figures=figures)


def _summing(rank: int, devices: int, backend: str, mib: int, folder: str) -> None:
    os.dup2(2, 1)  # NCCL logs to stdout where NCCL_DEBUG is set, and that is the report's
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    with torch.cuda.device(rank) if backend == "nccl" else nullcontext():
        meet = f"file://{folder}/meet"
        distributed.init_process_group(backend, init_method=meet, rank=rank, world_size=devices, timeout=PATIENCE)
        numbers = torch.full((mib * 2**18,), float(rank), device=device)
        distributed.all_reduce(numbers)
        if numbers[-1].item() != devices * (devices - 1) / 2:
            raise RuntimeError(f"rank {rank} sums to {numbers[-1].item()}")
        seconds = fastest(lambda: distributed.all_reduce(numbers), device.split(":")[0], 5)
        distributed.destroy_process_group()
    (Path(folder) / f"rank-{rank}").write_text(str(seconds))


def disk(folder: Path, mib: int = 256) -> Finding:
    """MB/s at which random bytes reach the disk of the folder, flushed."""
    chunk = os.urandom(2**20)
    with tempfile.TemporaryFile(dir=folder) as file:
        started = time.perf_counter()
        for _ in range(mib):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
        rate = mib * 2**20 / (time.perf_counter() - started) / 1e6
    figures = {"mb_per_s": rate}
    if rate >= SLOW_DISK:
        return Finding("checkpoint disk", "ok", f"{rate:.0f} MB/s written to {folder}", figures=figures)
    return Finding("checkpoint disk", "warn", f"only {rate:.0f} MB/s written to {folder}", "put output_dir on a faster disk", figures)


def video_decoder() -> Finding:
    """Which decoder of video is here and works: torchcodec if it loads, else PyAV on a clip that it has just written."""
    for name, works in (("torchcodec", lambda: importlib.import_module("torchcodec.decoders")), ("av", pyav)):
        if importlib.util.find_spec(name) is None:
            continue
        try:
            works()
        except Exception as error:  # whatever a package that is half there raises
            return Finding("video decoder", "warn", f"{name} does not work ({' '.join(str(error).split())[:120]})", f"reinstall {name}")
        return Finding("video decoder", "ok", name)
    return Finding("video decoder", "warn", "none, so that no clip can be read", "install av")


def pyav(frames: int = 8) -> None:
    """Write a clip into memory and read it again; raises RuntimeError if a frame is missing."""
    import av

    clip = io.BytesIO()
    with av.open(clip, "w", format="mp4") as written:
        stream = written.add_stream("mpeg4", rate=4)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for _ in range(frames):
            written.mux(stream.encode(av.VideoFrame(64, 64, "yuv420p")))
        written.mux(stream.encode())
    clip.seek(0)
    with av.open(clip, "r") as read:
        seen = sum(1 for _ in read.decode(video=0))
    if seen != frames:
        raise RuntimeError(f"{seen} of {frames} frames came back")
