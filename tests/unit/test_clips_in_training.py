"""Covers clips through a step of training: what the model gets, what it says of them, what it learns, and what must never pass."""

import inspect
import math
from dataclasses import replace

import datasets
import numpy
import pandas
import pytest
import torch
from PIL import Image
from trl.trainer.grpo_trainer import GRPOTrainer

from demo import clips
from demo.tiny_qwen import FAMILIES
from qwen_vl_grpo import assembly, pictures, policy, processors, tasks, video
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.ledger import Ledger
from qwen_vl_grpo.video_sections import VideoSection

GROUP = 4
ASKED = [
    ["video", "What moves?"],
    ["video", "image", "Before or after?", "video"],
    ["What is two and two?"],
    ["image", "Is this right?"],
    ["video", "Once?"],
    ["video", "video", "Which is longer?"],
]  # fmt: skip
"""Parts of each prompt: one clip, two around a picture, none, a picture, one frame, and two of odd counts."""
TAKEN = [[range(0, 8, 2)], [range(5), (0, 7)], [], [], [(3,)], [range(1, 8, 3), range(7)]]
"""Frames of each clip."""


def length(completions, **_):
    return [float(len(completion[0]["content"])) for completion in completions]


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """Real files, each of eight frames: two motions and two sizes."""
    folder = tmp_path_factory.mktemp("films")
    motions = [("right", "down"), ("up", "left")]
    return [clips.write(folder / f"{size}.mp4", clips.moving(motion, size=size)) for motion, size in zip(motions, (64, 128), strict=True)]


@pytest.fixture
def rows_of(films):
    """Prepared rows for a processor, as `dataset` writes them."""

    def make(processor, asked=ASKED, taken=TAKEN):
        patch = processors.merged_patch(processor)
        section = VideoSection(min_pixels=1, max_pixels=6 * patch * patch)
        columns = {"prompt": [], "images": [], "videos": []}
        for number, (parts, frames) in enumerate(zip(asked, taken, strict=True)):
            content = [{"type": part, "text": None} if part in ("image", "video") else {"type": "text", "text": part} for part in parts]
            columns["prompt"].append([{"role": "user", "content": content}])
            columns["images"].append([Image.new("RGB", (2 * patch, 3 * patch), (80, 40 * number, 9))] * parts.count("image"))
            made = [video.read(video.probe(films[place % 2]), chosen, section, patch) for place, chosen in enumerate(frames)]
            columns["videos"].append([video.kept(clip, str(films[place % 2])) | {"cache_gib": 0.0} for place, clip in enumerate(made)])
        features = datasets.Dataset.from_dict({key: columns[key] for key in ("prompt", "videos")}).features
        features["images"] = datasets.List(datasets.Image())
        return datasets.Dataset.from_dict(columns, features=features)

    return make


@pytest.fixture
def trainer_of(checkpoint, config_of, rows_of, tmp_path):
    ledgers = []

    def build(family, asked=ASKED, taken=TAKEN, **changes):
        config = config_of(
            model_name=checkpoint(family), **{
                "batch_size": 6, "gradient_accumulation_steps": 4, "num_generations": GROUP, "max_completion_length": 5, "max_steps": 1,
                "learning_rate": 1e-3, "lora": {"enabled": False}, "tracking": {"report_to": "none", "log_completions": False},
            } | changes,
        )  # fmt: skip
        ledgers.append(Ledger(tmp_path, config.max_steps))
        processor = policy.load_processor(config)
        rows = rows_of(processor, asked, taken)
        prepared = assembly.Prepared(tasks.build(config.task), [length], [1.0], processor, rows, [], None, 0)
        return assembly.build_trainer(config, prepared, policy.load_model(config), tmp_path, ledgers[-1])

    yield build
    for ledger in ledgers:
        ledger.close()


def read(trainer):
    """All rows of a trainer, their pictures and clips read."""
    return pictures.SharedRows(trainer.train_dataset, trainer._clip_of).__getitems__(range(len(trainer.train_dataset)))


def by_hand(trainer, row, completion):
    """Log-probabilities of a completion's ids: what the published processor makes of one row, read by the plain model."""
    chat = [{"role": "user", "content": [{key: part[key] for key in part if part[key]} for part in row["prompt"][0]["content"]]}]
    given = {"images": row["images"]} if row["images"] else {}
    if row["videos"]:
        times = [{"total_num_frames": clip.total, "fps": clip.fps, "frames_indices": list(clip.indices)} for clip in row["videos"]]
        chosen = {"do_sample_frames": False, "do_resize": False, "video_metadata": times}
        given |= {"videos": [clip.frames for clip in row["videos"]], "videos_kwargs": chosen}
    text = trainer.processing_class.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    encoded = trainer.processing_class(text=[text], return_tensors="pt", **given)
    ids = torch.tensor([completion])
    encoded["mm_token_type_ids"] = torch.cat([encoded["mm_token_type_ids"], torch.zeros_like(ids)], 1)
    encoded["input_ids"] = torch.cat([encoded["input_ids"], ids], 1)
    encoded["attention_mask"] = torch.ones_like(encoded["input_ids"])
    with torch.no_grad():
        logits = trainer.model(**encoded).logits[0, -len(completion) - 1 : -1]
    return logits.log_softmax(-1).gather(1, ids.T)[:, 0]


@pytest.mark.parametrize("size", [None, 4, 1], ids=["all at once", "by four", "by one"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_says_of_clips_what_the_plain_model_says_of_each_prompt_alone(trainer_of, family, size):
    trainer = trainer_of(family)
    trainer.model.train()
    rows = [row for row in read(trainer) for _ in range(2)]
    trainer.num_generations = 2
    made = trainer._generate_and_score_completions(rows)
    assert made["num_images"] == [1, 1, 3, 3, 0, 0, 1, 1, 1, 1, 2, 2]
    whole = {key: made[key] for key in ("pixel_values", "image_grid_thw", "num_images", "mm_token_type_ids")}
    ids = torch.cat([made["prompt_ids"], made["completion_ids"]], 1)
    mask = torch.cat([made["prompt_mask"], made["completion_mask"]], 1)
    with torch.no_grad():
        scored = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, made["completion_ids"].shape[1], size, **whole)[0]
    for row, answer, kept, own in zip(rows, made["completion_ids"], made["completion_mask"].bool(), scored, strict=True):
        assert (own[kept] - by_hand(trainer, row, answer[kept].tolist())).abs().max() < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_two_frames_that_change_places_and_a_clip_that_runs_backwards_are_told_from_it(trainer_of, family):
    trainer = trainer_of(family)
    row, answer = read(trainer)[0], [50, 60, 70]
    clip = row["videos"][0]
    first = by_hand(trainer, row, answer)
    for order in ([1, 0, 2, 3], [3, 2, 1, 0]):
        other = by_hand(trainer, row | {"videos": [replace(clip, frames=clip.frames[order])]}, answer)
        assert (other - first).abs().max() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_learns_from_clips_pictures_and_text_together(trainer_of, family):
    trainer = trainer_of(family, max_steps=2)
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    for step in trainer.state.log_history[:2]:
        assert math.isfinite(step["loss"])
        assert step["grad_norm"] > 0
    moved = {name for name, weight in trainer.model.named_parameters() if not torch.equal(weight, before[name])}
    assert {"model.visual.patch_embed.proj.weight", "model.language_model.layers.0.self_attn.q_proj.weight"} <= moved


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_a_clip_teaches_the_language_model_and_the_tower_that_saw_it(trainer_of, family):
    trainer = trainer_of(family, ASKED[:1], TAKEN[:1], batch_size=4, gradient_accumulation_steps=1)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    inputs = trainer._prepare_inputs([read(trainer)[0]] * 4) | {"advantages": torch.tensor([1.0, -1.0, 0.5, 0.25])}
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    assert math.isfinite(loss.item())
    assert loss.item() != 0
    for name in ("model.visual.patch_embed.proj.weight", "model.language_model.layers.0.self_attn.q_proj.weight"):
        assert trainer.model.get_parameter(name).grad.abs().sum() > 0


def test_an_adapter_that_is_held_to_its_base_learns_from_clips(trainer_of):
    trainer = trainer_of("qwen3_vl", lora={"enabled": True}, beta=0.1, max_steps=2)
    trainer.train()
    first, second = trainer.state.log_history[:2]
    assert first["grad_norm"] > 0
    assert first["kl"] == pytest.approx(0, abs=1e-6)
    assert second["kl"] > 1e-6


def test_a_clip_is_decoded_and_preprocessed_once_a_generation_and_seen_once_a_micro_batch(trainer_of, monkeypatch):
    trainer = trainer_of("qwen2_5_vl", ASKED[:1], TAKEN[:1], batch_size=2, gradient_accumulation_steps=2)
    counts = {"read": 0, "preprocessed": 0}
    seen = []
    kind = type(trainer.processing_class.video_processor)
    preprocess, reread = kind._preprocess, video.reread

    def read_counted(*given):
        counts["read"] += 1
        return reread(*given)

    def preprocess_counted(self, videos, *arguments, **named):
        counts["preprocessed"] += len(videos)
        return preprocess(self, videos, *arguments, **named)

    monkeypatch.setattr(video, "reread", read_counted)
    monkeypatch.setattr(kind, "_preprocess", preprocess_counted)
    trainer.model.model.visual.patch_embed.register_forward_pre_hook(
        lambda module, given: seen.append(len(given[0])) if torch.is_grad_enabled() else None
    )
    trainer.train()
    assert counts == {"read": 1, "preprocessed": 1}
    held, height, width, _ = read(trainer)[0]["videos"][0].frames.shape
    assert seen == [held // 2 * height // 14 * width // 14] * 2


def test_a_table_says_where_a_clip_was_and_holds_no_frame(trainer_of, tmp_path):
    trainer = trainer_of("qwen2_5_vl", tracking={"report_to": "none", "log_completions": True})
    trainer.train()
    table = pandas.read_parquet(tmp_path / "completions/completions_00001.parquet")
    asked = ["user: " + "".join({"image": "[picture]", "video": "[clip]"}.get(part, part) for part in parts) for parts in ASKED]
    assert set(table["prompt"]) <= set(asked)
    assert (tmp_path / "completions/completions_00001.parquet").stat().st_size < 20_000


def test_rewards_get_the_pictures_and_clips_of_their_row(trainer_of, monkeypatch):
    got = []

    def note(completions, images, videos, **_):
        got.extend(zip(map(len, images), map(len, videos), strict=True))
        return [0.0] * len(completions)

    trainer = trainer_of("qwen2_5_vl")
    trainer.reward_funcs[0] = note
    trainer.train()
    assert set(got) == {(parts.count("image"), parts.count("video")) for parts in ASKED}


def test_a_batch_whose_clips_did_not_reach_it_is_refused(trainer_of):
    trainer = trainer_of("qwen2_5_vl", ASKED[:1], TAKEN[:1], batch_size=4, gradient_accumulation_steps=1)
    trainer.model.train()
    inputs = trainer._prepare_inputs([read(trainer)[0]] * 4)
    blind = {key: value for key, value in inputs.items() if key not in ("pixel_values", "image_grid_thw", "num_images")}
    with pytest.raises(DataError, match=r"places for 0 tokens of pictures and \d+ of clips, .* give 0 and 0.*no step was taken"):
        trainer._compute_loss(trainer.model, blind)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("parts", "given", "said"),
    [
        (["video", "Why?"], 0, "1 places of type video and 0 to fill them"),
        (["video", "Why?"], 2, "1 places of type video and 2 to fill them"),
        (["video", "Why <|video_pad|>?"], 1, r"2 times <\|video_pad\|> for 1"),
        (["Why <|video_pad|>?"], 0, r"1 times <\|video_pad\|> for 0"),
    ],
)  # fmt: skip
def test_a_prompt_that_would_be_read_blind_is_refused(trainer_of, family, parts, given, said):
    trainer = trainer_of(family)
    clip = read(trainer)[0]["videos"]
    row = {"prompt": [{"role": "user", "content": [{"type": p} if p == "video" else {"type": "text", "text": p} for p in parts]}]}
    with pytest.raises(DataError, match=said):
        trainer._generate_and_score_completions([row | {"images": [], "videos": clip * given}] * GROUP)


def test_a_chat_of_words_alone_has_its_pictures_and_clips_before_the_users_first_words():
    chat = [{"role": "system", "content": "Look."}, {"role": "user", "content": "Why?"}]
    picture, clip = Image.new("RGB", (28, 28)), object()
    made = processors.filled({"prompt": chat, "images": [picture], "videos": [clip], "answer": "x"})
    words = {"type": "text", "text": "Why?"}
    assert made["prompt"][1]["content"] == [{"type": "image", "image": picture}, {"type": "video", "video": clip}, words]
    assert made.keys() == {"prompt", "answer"}
    assert chat[1]["content"] == "Why?"


def test_frames_are_neither_chosen_nor_resized_again_and_nothing_is_warned_of(trainer_of, caplog, recwarn):
    trainer = trainer_of("qwen3_vl")
    clip = read(trainer)[0]["videos"][0]
    tiny = replace(clip, frames=numpy.ascontiguousarray(clip.frames[:, :32, :64]))
    text = processors.prompt_text(trainer.processing_class, [{"role": "user", "content": "Why?"}], [], [tiny])
    encoded = processors.encode(trainer.processing_class, [text], [[]], [[tiny]])
    assert encoded["video_grid_thw"].tolist() == [[2, 2, 4]]
    assert not caplog.records
    assert not recwarn.list


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ids_of_a_prompt_are_known_without_its_pixels(trainer_of, family):
    trainer = trainer_of(family)
    for row in read(trainer):
        given = row["images"], row["videos"]
        text = processors.prompt_text(trainer.processing_class, row["prompt"], *given)
        ids = processors.encode(trainer.processing_class, [text], *([one] for one in given))["input_ids"][0].tolist()
        assert trainer.processing_class.tokenizer(processors.expanded(trainer.processing_class, text, *given))["input_ids"] == ids


def test_upstream_still_has_no_clips():
    """When this fails, upstream has trl#4144: see what of pictures.py is still needed."""
    assert "pixel_values_videos" not in inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters
