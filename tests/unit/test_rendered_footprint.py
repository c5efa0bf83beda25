"""Covers what renderer and judge are counted to hold: real classes, files that are here, every way to offload, every placement."""

import json

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import AutoencoderKLQwenImage
from diffusers.models.transformers.transformer_qwenimage import QwenImageTransformer2DModel
from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel
from safetensors.torch import load_file, save_file
from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPTextModelWithProjection, T5Config, T5EncoderModel

from benchmarks.activations import Storages
from demo import tiny_pictures
from qwen_vl_grpo import config as configs
from qwen_vl_grpo import plan_text, planning, rendered_footprint, shapes, tasks
from qwen_vl_grpo.footprint import CONTEXT, GIB, Prompt
from qwen_vl_grpo.rendered_footprint import HOST, KEPT, POLICY
from qwen_vl_grpo.sections import TaskSection

SEVEN = shapes.published("Qwen/Qwen2-VL-7B-Instruct")
SD3, QWEN = "stabilityai/stable-diffusion-3-medium-diffusers", "Qwen/Qwen-Image"
T5_GIB, ALL_GIB = 8.87, 14.43


def run(**changes):
    return configs.check({"run_id": "unit", "task": {"name": "prompt_enhancement"}, "use_vllm": False} | changes)


def fit(gib, **changes):
    return planning.plan(run(**changes), [("a card", gib)], Prompt(pictures=0), SEVEN).cards[0]


def sd3_vae():
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4, "layers_per_block": 2}
    plain = {"use_quant_conv": False, "use_post_quant_conv": False}
    return AutoencoderKL(block_out_channels=(128, 256, 512, 512), latent_channels=16, **blocks, **plain)


def clip_text(width, layers, heads):
    shape = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return CLIPTextModelWithProjection(CLIPTextConfig(projection_dim=width, **shape))


REAL = {
    # the configs that the published checkpoints hold
    (SD3, "transformer"): lambda: SD3Transformer2DModel(
        num_layers=24, num_attention_heads=24, caption_projection_dim=1536, out_channels=16, pos_embed_max_size=192
    ),
    (SD3, "text_encoder"): lambda: clip_text(768, 12, 12),
    (SD3, "text_encoder_2"): lambda: clip_text(1280, 32, 20),
    (SD3, "text_encoder_3"): lambda: T5EncoderModel(
        T5Config(d_model=4096, d_ff=10240, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu")
    ),
    (SD3, "vae"): sd3_vae,
    (QWEN, "transformer"): lambda: QwenImageTransformer2DModel(in_channels=64, out_channels=16, num_layers=60),
    (QWEN, "vae"): AutoencoderKLQwenImage,
    ("openai/clip-vit-base-patch32", "model"): lambda: CLIPModel(CLIPConfig()),
}


def on_meta(build):
    with torch.device("meta"):
        return build().to(torch.bfloat16)


@pytest.mark.parametrize(("name", "part"), REAL)
def test_the_kept_size_of_a_part_is_that_of_the_real_class(name, part):
    model = on_meta(REAL[name, part])
    held = [*model.parameters(), *(value for key, value in model.named_buffers() if key in model.state_dict())]
    assert sum(value.numel() for value in held) == KEPT[name][part]


@pytest.mark.parametrize(("kind", "build", "frames"), [("sd3", sd3_vae, ()), ("qwen_image", AutoencoderKLQwenImage, (1,))])
def test_a_picture_takes_what_the_real_decoder_holds_at_its_widest(kind, build, frames):
    decoder, side = on_meta(build), 512
    with torch.no_grad(), Storages() as storages:
        decoder.decode(torch.empty(1, 16, *frames, side // 8, side // 8, device="meta", dtype=torch.bfloat16))
    assert storages.most / side**2 / 2 == pytest.approx(rendered_footprint.DECODED[kind], rel=0.01)


def test_a_picture_of_qwen_image_takes_what_its_transformer_holds_for_it(monkeypatch):
    attended = lambda query=None, **_: torch.empty_like(query)  # noqa: E731 - a card's kernels keep no table of all pairs
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attended)
    transformer = on_meta(lambda: QwenImageTransformer2DModel(in_channels=64, out_channels=16, num_layers=2))
    seen = {"hidden_states": (2, 64 * 64, 64), "encoder_hidden_states": (2, 300, 3584), "timestep": (2,)}
    given = {name: torch.empty(shape, device="meta", dtype=torch.bfloat16) for name, shape in seen.items()}
    mask = torch.ones(2, 300, dtype=torch.long, device="meta")
    with torch.no_grad(), Storages() as storages:
        transformer(**given, encoder_hidden_states_mask=mask, img_shapes=[(1, 64, 64)] * 2)
    assert storages.most / 2 / 1024**2 / 2 == pytest.approx(rendered_footprint.DENOISED, rel=0.02)
    drawn = [rendered_footprint.measure(run(renderer={"name": name})) for name in ("qwen_image", "qwen_image_edit", "qwen_image_edit_plus")]
    assert [held.pictures for held in drawn] == [4, 4, 1] and drawn[1].picture == 2 * drawn[0].picture
    assert drawn[0].drawing(POLICY, 2) == drawn[0].drawing(POLICY, 1) < drawn[0].drawing(POLICY, 16)


def test_every_task_whose_default_reward_is_drawn_is_counted():
    drawn = {name for name in tasks.TASKS if "rendered_reward" in dict(tasks.build(TaskSection(name=name)).rewards)}
    assert drawn <= set(rendered_footprint.DRAWN)
    assert rendered_footprint.draws(run()) and not rendered_footprint.draws(run(task={"name": "visual_reasoning"}))
    assert not rendered_footprint.draws(run(rewards=[{"function": "xmlcount_reward_func"}]))
    assert rendered_footprint.measure(run(judge={"replay": "only"})) is None


def test_weights_that_are_here_are_counted_in_their_files(tmp_path):
    tiny_pictures.sd3(tmp_path / "sd3")
    tiny_pictures.clip(tmp_path / "clip")
    held = rendered_footprint.measure(run(renderer={"model": str(tmp_path / "sd3")}, judge={"model": str(tmp_path / "clip")}))
    files = {path.parent.name: load_file(path) for path in (tmp_path / "sd3").glob("*/*.safetensors")}
    assert held.renderer == {part: 2 * sum(value.numel() for value in tensors.values()) for part, tensors in files.items()}
    assert held.judge == 4 * sum(value.numel() for value in load_file(tmp_path / "clip/model.safetensors").values())
    vae = tmp_path / "sd3/vae"
    names = sorted(files["vae"])
    for number, some in enumerate((names[:5], names[5:])):
        save_file({name: files["vae"][name] for name in some}, vae / f"part-{number}.safetensors")
    index = {"weight_map": {name: f"part-{int(name in names[5:])}.safetensors" for name in names}}
    (vae / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    (vae / "diffusion_pytorch_model.safetensors").unlink()
    assert rendered_footprint.counted(str(tmp_path / "sd3"), None)["vae"] * 2 == held.renderer["vae"]
    (vae / "part-1.safetensors").unlink()
    assert rendered_footprint.counted(str(tmp_path / "sd3"), None) is None


OFFLOADED = {
    # GiB on the policy's card between pictures, while 4 are drawn (0.375 each), and on the host; the judge takes 0.56 throughout
    "none": (ALL_GIB, ALL_GIB + 1.5, 0),
    "asleep": (0, ALL_GIB + 1.5, ALL_GIB),
    "model": (0, T5_GIB, ALL_GIB),
    "sequential": (0, 0.3 + 1.5, ALL_GIB),
}


@pytest.mark.parametrize("offload", OFFLOADED)
def test_where_a_renderer_is_between_the_pictures_and_while_it_draws(offload):
    held, judge = rendered_footprint.measure(run(renderer={"offload": offload})), 0.5635
    found = held.resting(POLICY) / GIB - judge, held.drawing(POLICY, 4) / GIB - judge, held.on_host() / GIB
    assert found == pytest.approx(OFFLOADED[offload], abs=0.01)


def test_parts_lie_where_they_are_placed_and_on_a_cpu_in_float32():
    apart = rendered_footprint.measure(run(placement={"renderer": "cuda:1", "judge": "cuda:2"}))
    assert apart.cards == ["cuda:1", "cuda:2"] and apart.resting(POLICY) == apart.on_host() == 0
    assert apart.drawing("cuda:1", 1) > 14 * GIB > GIB > apart.drawing("cuda:2", 1) == apart.judge
    host = rendered_footprint.measure(run(placement={"renderer": "cpu", "judge": "cpu"}, renderer={"offload": "asleep"}))
    assert host.on_host() == 2 * sum(apart.renderer.values()) + apart.judge == host.resting(HOST)


def test_what_is_not_loaded_is_not_counted():
    assert "text_encoder_3" not in rendered_footprint.measure(run(renderer={"t5": False})).renderer
    qwen = rendered_footprint.measure(run(renderer={"name": "qwen_image"}))
    assert qwen.renderer == {"transformer": 2 * 20_430_401_088, "vae": 2 * 126_892_531}  # 40.9 GB; the policy is the text encoder
    assert rendered_footprint.measure(run(judge={"name": "mmmg"})).judge == 0  # asked over the network
    own = rendered_footprint.measure(run(renderer={"name": "mine.py:draw"}, judge={"model": "someone/clip"}))
    assert own.unknown == ("renderer mine.py:draw", "judge clip") and own.resting(POLICY) == own.drawing(POLICY, 4) == 0


def test_every_phase_after_the_first_picture_holds_the_renderer():
    alone, beside = (
        fit(79.1, rewards=[{"function": "xmlcount_reward_func"}], gradient_checkpointing=True),
        fit(79.1, gradient_checkpointing=True),
    )
    assert "draw" not in alone.phases and list(beside.phases) == [phase for phase in planning.PHASES if phase not in ("split", "evaluate")]
    more = {phase: round(beside.phases[phase] - size, 1) for phase, size in alone.phases.items()}
    after = ("generate", "score", "backward", "optimizer", "save")
    assert more == {"load": 0.0, "start": 0.0} | dict.fromkeys(after, 15.0)
    assert beside.phases["draw"] == pytest.approx(alone.phases["save"] + 15.0 + 1.5, abs=0.02)


def test_automatic_checkpointing_makes_room_for_the_renderer():
    settings = {"batch_size": 16, "max_completion_length": 512}
    awake, asleep = fit(79.1, **settings), fit(79.1, renderer={"offload": "asleep"}, **settings)
    assert awake.fits and asleep.fits and awake.recomputed > asleep.recomputed


def test_a_batch_of_pictures_that_does_not_fit_is_halved_and_does_not_refuse_the_run():
    small = {"batch_size": 1, "gradient_accumulation_steps": 8, "max_completion_length": 64}
    room = fit(79.1, renderer={"batch_size": 1}, **small).phases["draw"]
    found = fit(room + 3.5 * 0.375, renderer={"batch_size": 8}, **small)
    assert found.fits and found.pictures == 4 and found.phases["draw"] == pytest.approx(room + 3 * 0.375, abs=0.02)
    assert fit(room - 0.1, renderer={"batch_size": 8, "offload": "asleep"}, **small).reason.startswith("draw takes ")


def test_a_card_that_is_too_small_for_both_gets_the_knob_that_makes_room():
    found = fit(31, renderer={"batch_size": 1})
    assert not found.fits and found.knobs == {"renderer.offload": "model"}
    assert fit(31, renderer={"batch_size": 1, "offload": "model"}).fits
    assert fit(31).knobs == {"renderer.offload": "model"}  # a config without the section


def test_a_share_of_another_card_that_is_too_small_is_named():
    placed = {"renderer": "cuda:1", "judge": "cuda:1"}
    assert fit(40, placement=placed).others == {"cuda:1": pytest.approx(CONTEXT / GIB + ALL_GIB + 1.5 + 0.56, abs=0.02)}
    found = fit(40, placement=placed | {"memory_shares": {"renderer": 0.3, "judge": 0.05}})
    assert found.reason.startswith("cuda:1 takes 16.") and found.reason.endswith("GiB of its 14.0")
    tight = fit(40, placement={"renderer": "cuda:1", "judge": "cuda:2", "memory_shares": {"policy": 0.4, "renderer": 0.5, "judge": 0.5}})
    assert tight.reason.startswith("policy takes ") and tight.reason.endswith(" GiB of its 16.0")


def test_the_plan_says_what_is_where_and_what_it_could_not_count():
    shown = plan_text.text(
        planning.plan(run(placement={"renderer": "cuda:1"}, renderer={"offload": "asleep"}), [("a card", 79.1)], known=SEVEN)
    )
    assert "renderer (cuda:1, offload asleep), GiB: transformer 3.88, text_encoder 0.23, text_encoder_2 1.29, text_encoder_3 8.87" in shown
    assert "judge (the policy's card), GiB: 0.56\n" in shown
    assert "host memory, GiB: libraries 1.15, renderer and judge 14.43, weights while they load 15.44\n" in shown
    assert "4 pictures drawn at once; in use on cuda:1: 16.5" in shown
    unknown = plan_text.text(planning.plan(run(renderer={"name": "mine.py:draw"}), [], known=SEVEN))
    assert "not counted, for its size is not known here: renderer mine.py:draw" in unknown
