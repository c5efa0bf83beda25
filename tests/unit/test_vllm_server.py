"""Covers a server before a run asks it anything: its command, each way in which it does not fit, and how weights are handed over."""

import json
import shlex
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from packaging.version import Version
from safetensors.torch import load_file

from qwen_vl_grpo import engine_prompts, hardware, server_rollouts, vllm_server
from qwen_vl_grpo.errors import ConfigError, EngineError, HardwareError, RolloutError

OPTIONS = {
    "limit_mm_per_prompt": {"image": 2, "video": 0}, "mm_processor_kwargs": {"min_pixels": 3136, "max_pixels": 9000},
    "dtype": "bfloat16", "enforce_eager": False,
}  # fmt: skip
FITS = {
    "model": "Qwen/Qwen2.5-VL-3B-Instruct", "dtype": "torch.bfloat16", "max_model_len": 4096, "logprobs_mode": "processed_logprobs",
    "multimodal_config": {"limit_per_prompt": {"image": {"count": 4}}, "mm_processor_kwargs": OPTIONS["mm_processor_kwargs"]},
}  # fmt: skip


@pytest.fixture
def told():
    """What a server tells about itself, path by path; a path that is left out it does not have."""
    config = {"vllm_config": {"model_config": FITS}}
    return {"/version": {"version": "0.31.0"}, vllm_server.GENERATE: {}, vllm_server.SERVER_INFO: config}


@pytest.fixture
def served(told, config_of, tmp_path, monkeypatch):
    """A config whose server is a real HTTP server that says what `told` says; a proxy that the environment names would not find it."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path in told else 404)
            self.end_headers()
            self.wfile.write(json.dumps(told.get(self.path, {"detail": "Not Found"})).encode())

        def log_message(self, format, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield lambda **changes: config_of(
        **{
            "use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": f"http://127.0.0.1:{server.server_port}/",
            "vllm_server_weights": str(tmp_path), "model_name": "Qwen/Qwen2.5-VL-3B-Instruct", "vllm_max_model_length": 4096, **changes,
        }
    )  # fmt: skip
    server.shutdown()
    server.server_close()


def changed(told, **changes):
    told[vllm_server.SERVER_INFO] = {"vllm_config": {"model_config": FITS | changes}}


def test_a_server_that_fits_is_taken(served, monkeypatch):
    monkeypatch.setattr(vllm_server.shutil, "disk_usage", lambda _: type("", (), {"free": 2**40}))
    vllm_server.check(served(), OPTIONS, 4096)


FAULTS = {
    "raw log-probabilities": ({"logprobs_mode": "raw_logprobs"}, "its logprobs mode is raw_logprobs and must be processed_logprobs"),
    "another dtype": ({"dtype": "torch.float16"}, "its dtype is float16 and must be bfloat16"),
    "another model": ({"model": "Qwen/Qwen3-VL-4B-Instruct"}, "its model is Qwen/Qwen3-VL-4B-Instruct and the run's Qwen/Qwen2.5-VL-3B"),
    "a short context": ({"max_model_len": 4095}, "its context is 4095 tokens and the longest prompt with its completion takes 4096"),
    "no pictures": ({"multimodal_config": None}, "its min_pixels is the one in the folder of the model and must be 3136; its max_pixels"),
    "too few pictures": (
        {"multimodal_config": FITS["multimodal_config"] | {"limit_per_prompt": {"image": 1}}},
        "it takes 1 pictures a prompt and the data holds 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_does_not_fit_is_named_with_the_command(served, told, monkeypatch, fault):
    changes, said = FAULTS[fault]
    changed(told, **changes)
    assert said in refused(served(), monkeypatch)


def test_every_fault_is_named_at_once(served, told, monkeypatch):
    changed(told, dtype="torch.float16", max_model_len=100)
    assert "its context is 100 tokens and the longest prompt with its completion takes 4096; its dtype" in refused(served(), monkeypatch)


def test_a_server_outside_development_mode(served, told, monkeypatch):
    del told[vllm_server.SERVER_INFO]
    assert "it takes no weights (VLLM_SERVER_DEV_MODE=1)" in refused(served(), monkeypatch)


def test_a_server_without_the_endpoints_for_token_ids(served, told, monkeypatch):
    del told[vllm_server.GENERATE]
    assert "it takes no token ids (--enable-scale-out)" in refused(served(), monkeypatch)


def test_a_server_whose_version_is_not_known_to_work(served, told, monkeypatch):
    told["/version"] = {"version": "0.33.0"}
    assert "it is vLLM 0.33.0 and 0.22.0 to 0.31.0 work" in refused(served(), monkeypatch)


def test_no_server(served, monkeypatch):
    said = refused(served(vllm_server_base_url="http://127.0.0.1:9"), monkeypatch)
    assert "run unit: the vLLM server at http://127.0.0.1:9 does not answer ([Errno 111] Connection refused)" in said


def refused(config, monkeypatch):
    monkeypatch.setattr(vllm_server.shutil, "disk_usage", lambda _: type("", (), {"free": 2**40}))
    with pytest.raises(EngineError) as error:
        vllm_server.check(config, OPTIONS, 4096)
    said = str(error.value)
    assert said.endswith(f"; start it with: {vllm_server.command(config, OPTIONS)}")
    assert "\n" not in said
    return said


def test_a_folder_without_room_for_the_weights(served, monkeypatch):
    monkeypatch.setattr(vllm_server.shutil, "disk_usage", lambda _: type("", (), {"free": 2**26}))
    with pytest.raises(HardwareError, match=r"has 0\.1 GiB free and the policy's weights take 7\.0; .*--shm-size"):
        vllm_server.check(served(), OPTIONS, 4096)


def test_a_folder_that_is_not_there(served):
    with pytest.raises(HardwareError, match="vllm_server_weights /nowhere: no folder that can be written to"):
        vllm_server.check(served(vllm_server_weights="/nowhere"), OPTIONS, 4096)


@pytest.mark.parametrize(("installed", "flagged"), [("0.25.1", False), ("0.31.0", True), (None, True)])
def test_the_command(config_of, monkeypatch, installed, flagged):
    monkeypatch.setattr(hardware, "vllm_version", lambda: installed and Version(installed))
    config = config_of(vllm_max_model_length=4096, model_name="Qwen/Qwen2.5-VL-3B-Instruct", model_revision="main")
    words = shlex.split(vllm_server.command(config, OPTIONS | {"max_num_seqs": None}))
    assert words == [
        "VLLM_SERVER_DEV_MODE=1", "vllm", "serve", "Qwen/Qwen2.5-VL-3B-Instruct", "--revision", "main", "--max-model-len", "4096",
        "--gpu-memory-utilization", "0.7", "--logprobs-mode", "processed_logprobs", "--host", "127.0.0.1", "--port", "8000",
        *(["--enable-scale-out"] if flagged else []), "--limit-mm-per-prompt", '{"image": 2, "video": 0}',
        "--mm-processor-kwargs", '{"min_pixels": 3136, "max_pixels": 9000}', "--dtype", "bfloat16", "--no-enforce-eager",
    ]  # fmt: skip


def test_what_a_server_cannot_do_is_refused_by_the_config(config_of):
    server = {"use_vllm": True, "vllm_mode": "server"}
    with pytest.raises(ConfigError, match="a 4-bit base has none"):
        config_of(**server, lora={"quantization": "4bit"})
    with pytest.raises(ConfigError, match="vllm_server_host repeats the key 'vllm_server_base_url'"):
        config_of(**server, trl={"vllm_server_host": "node"})
    with pytest.raises(ConfigError, match="vllm_server_base_url"):
        config_of(**server, vllm_server_base_url="file:///etc")


def test_weights_are_written_in_files_and_come_back_bit_by_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(server_rollouts, "FILE_BYTES", 100)
    weights = {f"w{i}": torch.randn(4, 4, dtype=torch.bfloat16).t() for i in range(8)}
    assert server_rollouts.write(weights.items(), tmp_path) == 8 * 32
    files = [load_file(path) for path in sorted(tmp_path.iterdir())]
    assert [len(file) for file in files] == [4, 4]
    back = files[0] | files[1]
    assert all(torch.equal(back[name], weight) for name, weight in weights.items())


def test_runs_of_a_token():
    assert server_rollouts.runs([7, 5, 7, 7, 7, 1, 7, 7], 7) == [
        {"offset": 0, "length": 1}, {"offset": 2, "length": 3}, {"offset": 6, "length": 2},
    ]  # fmt: skip
    assert server_rollouts.runs([1, 2], 7) == []


def test_an_older_server_tells_the_length_of_the_prompt_alone():
    ids = [1, 2, 3]
    assert server_rollouts.read({"usage": {"prompt_tokens": 3}}, ids) == ids
    with pytest.raises(RolloutError, match="in row 0 vLLM read a prompt of"):
        engine_prompts.check_prompts([server_rollouts.read({"usage": {"prompt_tokens": 5}}, ids)], [ids])
