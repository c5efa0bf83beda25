"""`grpo launch` on two processes of this CPU: every strategy that runs here, and what happens when something dies or is stopped.

    make launch-cpu                      # or: python -m benchmarks.launching --only kill-rank monitor

A tiny Qwen2.5-VL, real `accelerate launch`, gloo. Prints a table, and exits with 1 if a row does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from demo import digits, tiny_qwen
from qwen_vl_grpo import attempts, checkpoints

PROJECT = Path(__file__).resolve().parents[1]
CONFIG = {
    "output_dir": "runs", "model_name": "tiny", "dataset_name": "digits", "dataset_split": "train", "use_vllm": False,
    "learning_rate": 1e-3, "max_steps": 4, "save_steps": 1, "save_total_limit": 2, "batch_size": 4, "gradient_accumulation_steps": 1,
    "num_generations": 4, "max_completion_length": 8, "gradient_checkpointing": False, "lora": {"enabled": False}, "data": {"limit": 12},
    "rewards": [{"function": "faulty.py:brevity"}], "tracking": {"report_to": "none"},
}  # fmt: skip
FAULTY = '''\
import os, pathlib, resource, signal, time

def brevity(completions, trainer_state=None, **_):
    """Shorter is better; dies with -9 once, can write no more, or waits, where a file says so."""
    at = f"{os.environ.get('RANK', '0')}-at-{trainer_state.global_step + 1}" if trainer_state else ""
    if os.path.exists(f"kill-{at}"):
        os.remove(f"kill-{at}")
        os.kill(os.getpid(), signal.SIGKILL)
    if os.path.exists(f"full-{at}"):
        os.remove(f"full-{at}")
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # as little as a random state needs is too much
    while os.path.exists(f"hold-{at}"):
        pathlib.Path(f"held-{at}").touch()
        time.sleep(0.02)
    return [-0.01 * len(completion[0]["content"]) for completion in completions]
'''
SCONTROL = '#!/bin/sh\necho "$@" >> requeued\n'


class Bench:
    """A folder in which launches run as a person's do."""

    def __init__(self, folder: Path):
        self.folder = folder
        tiny_qwen.build(folder / "tiny", "qwen2_5_vl")
        digits.write(folder / "digits")
        (folder / "faulty.py").write_text(FAULTY, encoding="utf-8")
        (folder / "bin").mkdir()
        (folder / "bin/scontrol").write_text(SCONTROL, encoding="utf-8")
        (folder / "bin/scontrol").chmod(0o755)

    def launch(self, run_id: str, *arguments: str, cpus: int = 2, **changes: Any) -> subprocess.Popen[bytes]:
        for left in self.folder.glob("held-*"):
            left.unlink()
        (self.folder / f"{run_id}.yaml").write_text(yaml.safe_dump({"run_id": run_id} | CONFIG | changes), encoding="utf-8")
        own = {"GRPO_HOME": str(self.folder / "home"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "SLURM_JOB_ID": "17"}
        own |= {"PYTHONPATH": str(PROJECT / "src"), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        command = [sys.executable, "-m", "qwen_vl_grpo", "launch", "--config", f"{run_id}.yaml", "--cpu", str(cpus), *arguments]
        with (self.folder / f"{run_id}.out").open("ab") as said:
            return subprocess.Popen(command, cwd=self.folder, env=os.environ | own, stdout=said, stderr=subprocess.STDOUT)

    @contextmanager
    def holding(self, rank: int, step: int, run_id: str) -> Iterator[subprocess.Popen[bytes]]:
        """A launch of which one rank stays in a step until the block ends."""
        hold = self.folder / f"hold-{rank}-at-{step}"
        hold.touch()
        try:
            process = self.launch(run_id)
            while not (self.folder / f"held-{rank}-at-{step}").exists():
                if process.poll() is not None:
                    raise RuntimeError("the run ended before it could be held")
                time.sleep(0.05)
            yield process
        finally:
            hold.unlink()

    def card(self, run_id: str) -> dict[str, Any]:
        return json.loads((self.folder / "runs" / run_id / "run.json").read_text(encoding="utf-8"))

    def ranks(self) -> list[int]:
        """The processes of this bench's launches that are there: ranks, and what started them."""
        listed = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
        return [int(line.split()[0]) for line in listed.splitlines() if "qwen_vl_grpo.launched" in line and self._here(line.split()[0])]

    def _here(self, pid: str) -> bool:
        try:
            return Path(f"/proc/{pid}/cwd").resolve() == self.folder.resolve()
        except OSError:
            return False

    def gone(self, within: float) -> float:
        """Seconds until no process is left, infinite if one is after `within`."""
        began = time.monotonic()
        while self.ranks():
            if time.monotonic() - began > within:
                return float("inf")
            time.sleep(0.05)
        return time.monotonic() - began

    def resumed(self, run_id: str, **changes: Any) -> bool:
        """Whether the run goes on to its end."""
        return self.launch(run_id, "--resume", **changes).wait() == 0 and self.card(run_id)["state"] == "finished"


def strategy(name: str, lora: bool) -> Callable[[Bench], tuple[bool, str]]:
    def row(bench: Bench) -> tuple[bool, str]:
        run_id, one = f"{name}-{'lora' if lora else 'full'}", name == "single"
        changes: dict[str, Any] = {"lora": {"enabled": lora}, "batch_size": 8 if one else 4}
        code = bench.launch(run_id, "--strategy", name, cpus=1 if one else 2, **changes).wait()
        state = bench.card(run_id)["state"] if code == 0 else said(bench, run_id)
        return code == 0 and state == "finished", f"exit code {code}, {state}"

    return row


def said(bench: Bench, run_id: str) -> str:
    return (bench.folder / f"{run_id}.out").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1]


def kill_rank(bench: Bench) -> tuple[bool, str]:
    with bench.holding(1, 3, "kill-rank") as process:
        pid = next(pid for pid in bench.ranks() if b"RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())
        os.kill(pid, signal.SIGKILL)
    took = bench.gone(30)
    code, card = process.wait(), bench.card("kill-rank")
    kept, reason = card["checkpoint"], card["attempts"][-1]["reason"]
    resumed = bench.resumed("kill-rank")
    held = took < 10 and code == 137 and card["state"] == "failed" and "rank 1 was killed (SIGKILL)" in reason and resumed
    return held, f"all gone after {took:.1f} s, exit code {code}, kept {kept}, {reason}, resumed {resumed}"


def kill_launcher(bench: Bench) -> tuple[bool, str]:
    with bench.holding(0, 3, "kill-launcher") as process:
        process.kill()
        process.wait()
    took, card = bench.gone(60), bench.card("kill-launcher")
    resumed = bench.resumed("kill-launcher")
    held = took < 60 and card["state"] == "interrupted" and resumed
    held = held and card["checkpoint"] in ("checkpoint-3", "checkpoint-4")
    return held, f"all gone after {took:.1f} s, {card['state']}, kept {card['checkpoint']}, resumed {resumed}"


def kill_launcher_of_a_stuck_rank(bench: Bench) -> tuple[bool, str]:
    with bench.holding(0, 2, "stuck") as process:
        process.kill()
        process.wait()
        took = bench.gone(60)
    resumed = bench.resumed("stuck")
    return took < 45 and resumed, f"all gone after {took:.1f} s although rank 0 never ends its step, resumed {resumed}"


def kill_accelerate(bench: Bench) -> tuple[bool, str]:
    with bench.holding(1, 2, "kill-accelerate") as process:
        pid = next(pid for pid in bench.ranks() if b"accelerate.commands.launch" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(pid, signal.SIGKILL)
    took, code = bench.gone(30), process.wait()
    return took < 20 and code != 0, f"all gone after {took:.1f} s, exit code {code}, {said(bench, 'kill-accelerate')}"


def full_disk(bench: Bench) -> tuple[bool, str]:
    (bench.folder / "full-1-at-3").touch()
    code, took, card = bench.launch("full-disk").wait(), bench.gone(5), bench.card("full-disk")
    kept, reason = card["checkpoint"], card["attempts"][-1]["reason"]
    resumed = bench.resumed("full-disk")
    named = "rank 1: " in reason and "the checkpoint of step 3 cannot be written" in reason
    return (
        code == 1 and took < 5 and kept == "checkpoint-2" and named and resumed,
        f"exit code {code}, kept {kept}, {reason}, resumed {resumed}",
    )


def monitor(bench: Bench) -> tuple[bool, str]:
    (bench.folder / "kill-1-at-3").touch()
    code, card = bench.launch("monitor", "--monitor", "2").wait(), bench.card("monitor")
    reason = card["attempts"][0].get("reason", "")
    log = (bench.folder / "runs/training.log").read_text(encoding="utf-8")
    first = card["attempts"][-1]["first_step"]
    held = code == 0 and len(card["attempts"]) == 2 and first == 3 and "rank 1 was killed (SIGKILL)" in reason and reason in log
    return held, f"exit code {code}, {card['state']}, attempt 2 from step {first}: {reason}"


def monitor_gives_up(bench: Bench) -> tuple[bool, str]:
    process = bench.launch("hopeless", "--monitor", "3", rewards=[{"function": "faulty.py:nothing"}])
    code, lines = process.wait(), (bench.folder / "hopeless.out").read_text(encoding="utf-8").splitlines()
    starts = sum("prepared" in line for line in lines)
    return code == 1 and not any("started again" in line for line in lines), f"exit code {code}, started {max(1, starts)} time: {lines[-1]}"


def stop(number: signal.Signals) -> Callable[[Bench], tuple[bool, str]]:
    def row(bench: Bench) -> tuple[bool, str]:
        run_id = f"stop-{number.name}"
        with bench.holding(1, 2, run_id) as process:
            process.send_signal(number)
            time.sleep(1)
        code, took, card = process.wait(), bench.gone(5), bench.card(run_id)
        whole = checkpoints.whole(bench.folder / "runs" / run_id / "checkpoint-2")
        asked = bench.folder / "requeued"
        requeued = asked.read_text().strip() if asked.exists() else ""
        resumed = bench.resumed(run_id)
        steps = [line["step"] for line in attempts.metrics(bench.folder / "runs" / run_id) if "reward" in line]
        held = code == (130 if number == signal.SIGINT else 143) and took < 5 and whole and card["state"] == "interrupted"
        held = held and resumed and steps == [1, 2, 3, 4] and (requeued == "requeue 17") == (number == signal.SIGUSR1)
        return held, f"exit code {code}, {card['state']}, kept {card['checkpoint']}, {requeued or 'not requeued'}, resumed {resumed}"

    return row


ROWS: dict[str, Callable[[Bench], tuple[bool, str]]] = {
    "single": strategy("single", True),
    "ddp-lora": strategy("ddp", True),
    "ddp-full": strategy("ddp", False),
    "kill-rank": kill_rank,
    "kill-launcher": kill_launcher,
    "stuck": kill_launcher_of_a_stuck_rank,
    "kill-accelerate": kill_accelerate,
    "full-disk": full_disk,
    "monitor": monitor,
    "hopeless": monitor_gives_up,
    "stop-SIGINT": stop(signal.SIGINT),
    "stop-SIGTERM": stop(signal.SIGTERM),
    "stop-SIGUSR1": stop(signal.SIGUSR1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", choices=ROWS, default=list(ROWS))
    parser.add_argument("--folder", help="Where the runs go and stay; a temporary folder if not given.")
    asked = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        bench = Bench(Path(asked.folder or place))
        for name in asked.only:
            began = time.monotonic()
            try:
                held, told = ROWS[name](bench)
            except Exception as error:
                held, told = False, f"{type(error).__name__}: {error}"
            failed += not held
            print(f"{name:16} {'held' if held else 'FAILED':7} {time.monotonic() - began:6.1f} s  {told}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
