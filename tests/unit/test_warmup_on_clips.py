"""Covers the supervised steps on rows with clips, which TRL's own trainer would take without looking at one."""

import datasets
import pytest
import torch
from PIL import Image

from demo import clips
from demo.tiny_qwen import FAMILIES
from qwen_vl_grpo import policy, processors, video, warmup
from qwen_vl_grpo.sections import WarmupSection
from qwen_vl_grpo.video_sections import VideoSection


@pytest.fixture
def rows_of(tmp_path):
    """One row with a clip, one with a clip and a picture, one of words."""
    path = clips.write(tmp_path / "a.mp4", clips.moving(("right", "down"), size=64))

    def make(processor):
        patch = processors.merged_patch(processor)
        clip = video.read(video.probe(path), (0, 2, 4), VideoSection(min_pixels=1, max_pixels=4 * patch * patch), patch)
        kept = video.kept(clip, str(path)) | {"cache_gib": 0.0}
        asked = [["video", "What?"], ["image", "video", "Same?"], ["Why?"]]
        prompts = [
            [{"role": "user", "content": [{"type": "text", "text": p} if p[-1] == "?" else {"type": p, "text": None} for p in parts]}]
            for parts in asked
        ]
        columns = {"prompt": prompts, "videos": [[kept], [kept], []], "target": ["right", "no", "because it is"]}
        features = datasets.Dataset.from_dict(columns).features
        features["images"] = datasets.List(datasets.Image())
        return datasets.Dataset.from_dict(columns | {"images": [[], [Image.new("RGB", (2 * patch, patch))], []]}, features=features)

    return make


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_shows_its_clips_and_learns_the_completions_alone(checkpoint, config_of, rows_of, family):
    processor = policy.load_processor(config_of(model_name=checkpoint(family)))
    rows = [row | {"completion": [{"role": "assistant", "content": row["target"]}]} for row in rows_of(processor)]
    batch = warmup.with_clips(processor, rows)
    assert batch["video_grid_thw"][:, 0].tolist() == [2, 2]
    learned = [processor.decode(labels[labels != -100]) for labels in batch["labels"]]
    assert learned == [row["target"] + processor.tokenizer.eos_token for row in rows]
    assert {value.shape[1] for key, value in batch.items() if key in ("input_ids", "attention_mask", "mm_token_type_ids", "labels")} == {
        batch["labels"].shape[1]
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_supervised_steps_on_clips_teach_the_tower_that_sees_them(checkpoint, config_of, rows_of, family, tmp_path):
    config = config_of(
        model_name=checkpoint(family), warmup=WarmupSection(dataset_name="x", steps=2, batch_size=3, learning_rate=1e-3).model_dump()
    )
    processor, model = policy.load_processor(config), policy.load_model(config)
    before = model.model.visual.patch_embed.proj.weight.detach().clone()
    warmup.run(model, processor, rows_of(processor), config, tmp_path / "warm", [])
    assert not torch.equal(model.model.visual.patch_embed.proj.weight, before)
    assert (tmp_path / "warm" / "model.safetensors").is_file()
