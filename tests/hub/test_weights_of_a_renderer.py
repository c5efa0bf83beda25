"""Covers which files of a pipeline on the Hub a Qwen-Image renderer asks for: all but the encoder's, which is the policy itself."""

from demo import tiny_qwen, tiny_qwen_image

LOAD = """\
import torch
from qwen_vl_grpo.images.qwen_image_edit import QwenImageEdit
from qwen_vl_grpo.rendered_sections import RendererSection
made = QwenImageEdit(RendererSection(name="qwen_image_edit", model="someone/tiny-edit"), torch.device("cpu"))
made.check()
print(sorted(name for name, part in made.pipeline.components.items() if part is not None))
"""


def test_no_file_of_the_text_encoder_is_downloaded(hub, node, tmp_path):
    tiny_qwen.build(tmp_path / "policy")
    tiny_qwen_image.build(tmp_path / "edit", "qwen_image_edit", tmp_path / "policy")
    folder = tmp_path / "edit"
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert any(name.startswith("text_encoder/") for name in files)
    hub.create("someone/tiny-edit", private=False).commit(files)
    a = node(python_options=("-c", LOAD))
    done = a.grpo()
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['scheduler', 'transformer', 'vae']"
    asked = {path.partition("/resolve/")[2].partition("/")[2] for _, path in hub.seen if "/resolve/" in path}
    assert {"model_index.json", "vae/config.json", "transformer/diffusion_pytorch_model.safetensors"} <= asked
    assert not [name for name in asked if name.startswith(("text_encoder", "tokenizer", "processor"))]
