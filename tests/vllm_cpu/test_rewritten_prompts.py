"""Covers a task without pictures in its prompts, for a Qwen-VL and a text-only Qwen: rollouts are the policy's own, drawn and judged."""

import json

import pytest

from qwen_vl_grpo import parity

PARTS = """\
from PIL import Image
from qwen_vl_grpo.interfaces import Judgement

class Painter:
    identity, batch_size = "own", 8
    def render(self, requests):
        return [Image.new("RGB", (4, 4), (len(set(request.completion)), 0, 0)) for request in requests]
    def rest(self):
        pass

class Critic:
    identity, batch_size, concurrency = "own", 1, 4
    def judge(self, pictures):
        return [Judgement(image.getpixel((0, 0))[0] / 255) for _, image in pictures]

def painter(section):
    return Painter()

def critic(section):
    return Critic()
"""


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2"])
def test_three_steps_on_text_alone(trainer_of, tmp_path, family):
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "prompts.txt").write_text("".join(f"a cat with {number} hats\n" for number in range(8)))
    parts = {part: {"name": f"{tmp_path}/parts.py:{name}"} for part, name in (("renderer", "painter"), ("judge", "critic"))}
    parts["judge"]["cache"] = str(tmp_path / "judgements.sqlite")
    trainer, samples = trainer_of(
        family, dataset_name=str(tmp_path / "prompts.txt"), data={}, rewards=[], task={"name": "prompt_enhancement"}, **parts
    )
    assert not any(list(sample.images) for sample in samples)
    assert parity.check(trainer, samples, "before the first step")["parity/text"] < 1e-5
    trainer.train()
    steps = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines() if '"reward"' in line]
    assert len(steps) == 3
    assert max(step["rollouts/logp_difference/mean"] for step in steps) < 1e-5
    assert all(step["rendered/failed"] == 0 and step["rewards/rendered_reward/std"] > 0 for step in steps)
    assert any(abs(step["loss"]) > 1e-8 for step in steps)
