"""Covers frozen weights on the Hub that may not be had: which page to accept, said before anything of the run is there."""

import pytest

from tests.hub.loopback import Fault

CONFIG = """\
run_id: gated
model_name: nowhere
use_vllm: false
dataset_name: prompts.txt
task: {name: prompt_enhancement}
renderer: {model: stable/gated}
judge: {model: someone/clip}
"""


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (
            403,
            {"X-Error-Code": "GatedRepo"},
            "renderer.model stable/gated: is gated; accept its terms at {url}/stable/gated with the account",
        ),
        (401, {"X-Error-Code": "RepoNotFound"}, "renderer.model stable/gated: the Hub does not know HF_TOKEN (401)"),
        (404, {"X-Error-Code": "RepoNotFound"}, "renderer.model stable/gated: cannot be loaded (404"),
    ],
    ids=["not accepted", "unknown token", "no such model"],
)
def test_a_renderer_that_may_not_be_had_ends_the_run_before_it_begins(hub, node, status, headers, said):
    hub.faults = [Fault("HEAD", "/stable/gated/", status, headers=headers), Fault("GET", "/stable/gated/", status, headers=headers)]
    a = node()
    (a.folder / "prompts.txt").write_text("a cat\n")
    (a.folder / "run.yaml").write_text(CONFIG)
    done = a.grpo("train", "--config", "run.yaml")
    assert done.returncode == 1 and said.format(url=hub.url) in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1
    assert not (a.folder / "outputs").exists()
