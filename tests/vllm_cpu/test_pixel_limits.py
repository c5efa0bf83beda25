"""Covers the trainer's pixel limits in vLLM's own processor, where the model's folder has others and the pictures lie outside them."""

import shutil

import pytest
from transformers import AutoProcessor

from qwen_vl_grpo import parity
from qwen_vl_grpo.errors import RolloutError

SMALLER, LARGER = (56 * 56, 84 * 84), (192 * 192, 1280 * 28 * 28)
OURS = {"min_pixels": 56 * 56, "max_pixels": 160 * 160, "columns": {"images": "images"}}
SIZES = ((112, 112), (100, 150))


@pytest.fixture
def folder_of(checkpoint, tmp_path):
    """The tiny checkpoint with pixel limits of its own in its folder."""

    def build(family, limits):
        folder = tmp_path / "model"
        shutil.copytree(checkpoint(family), folder)
        processor = AutoProcessor.from_pretrained(folder)
        processor.image_processor.size = dict(zip(("shortest_edge", "longest_edge"), limits, strict=True))
        processor.save_pretrained(folder)
        return str(folder)

    return build


@pytest.mark.parametrize("limits", [SMALLER, LARGER], ids=["the folder's are smaller", "the folder's are larger"])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_prompts_are_equal_under_the_limits_of_the_config(trainer_of, folder_of, family, limits):
    trainer, samples = trainer_of(family, SIZES, model_name=folder_of(family, limits), data=OURS)
    assert parity.check(trainer, samples, "now")["parity/pictures"] < 1e-5


@pytest.mark.parametrize("limits", [SMALLER, LARGER], ids=["the folder's are smaller", "the folder's are larger"])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_without_them_the_engine_reads_other_prompts(trainer_of, folder_of, family, limits):
    engine = {"enforce_eager": True, "mm_processor_kwargs": {}}
    trainer, samples = trainer_of(family, SIZES, model_name=folder_of(family, limits), data=OURS, engine=engine)
    with pytest.raises(RolloutError, match=r"vLLM read a prompt of .* check data.min_pixels and data.max_pixels"):
        parity.check(trainer, samples, "now")
