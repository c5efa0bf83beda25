"""Covers VisionGRPOTrainer on real tiny models: what TRL's own trainer fails on, and the tables of completions."""

import json
from types import SimpleNamespace

import datasets
import pandas
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from trl.trainer.grpo_trainer import GRPOTrainer

from qwen_vl_grpo import assembly, gallery, launch, parity, policy, processors, tasks
from qwen_vl_grpo import trainer as trainer_module
from qwen_vl_grpo.errors import ConfigError, HardwareError, PolicyError
from qwen_vl_grpo.hardware import Hardware
from qwen_vl_grpo.ledger import Ledger
from qwen_vl_grpo.trainer import TABLE_ROWS, VisionGRPOTrainer

CARD = Hardware("cuda", 1, "a card", 2)
LEARNING = ["qwen2_5_vl", "qwen3_vl"]
SMALL = {
    "batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 4, "max_completion_length": 6, "max_steps": 1,
    "learning_rate": 1e-3, "lora": {"enabled": False}, "tracking": {"report_to": "none", "log_completions": False},
}  # fmt: skip


def length(completions, **_):
    return [float(len(completion[0]["content"])) for completion in completions]


def rows(*pictures):
    """One question a number of pictures; the questions differ, so that rows can be told apart."""
    prompts = [[{"role": "system", "content": "Answer."}, {"role": "user", "content": f"Question {i}?"}] for i in range(len(pictures))]
    images = [[Image.new("RGB", (56, 56 + 28 * i), "red")] * count for i, count in enumerate(pictures)]
    features = datasets.Dataset.from_dict({"prompt": prompts}).features
    features |= {"images": datasets.List(datasets.Image()), "answer": datasets.Value("string")}
    return datasets.Dataset.from_dict({"prompt": prompts, "images": images, "answer": list(map(str, range(len(pictures))))}, features)


@pytest.fixture
def trainer_of(checkpoint, config_of, tmp_path):
    """Build a trainer as a run does, on real tiny weights."""
    ledgers = []

    def build(family, data, reward=length, recomputed=0, **changes):
        config = config_of(model_name=checkpoint(family), **(SMALL | changes))
        ledgers.append(Ledger(tmp_path, config.max_steps))
        prepared = assembly.Prepared(tasks.build(config.task), [reward], [1.0], policy.load_processor(config), data, [], None, recomputed)
        return assembly.build_trainer(config, prepared, assembly.load_policy(config, prepared, tmp_path), tmp_path, ledgers[-1])

    yield build
    for ledger in ledgers:
        ledger.close()


def published(trainer):
    """The same trainer with TRL's own methods and none of ours."""
    trainer.__class__ = GRPOTrainer
    return trainer


@pytest.mark.parametrize("family", LEARNING)
def test_a_batch_that_mixes_pictures_and_text_trains(trainer_of, family):
    trainer = trainer_of(family, rows(1, 0))
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    assert trainer.state.global_step == 1
    assert trainer.state.log_history[0]["grad_norm"] > 0
    assert any(not torch.equal(weight, before[name]) for name, weight in trainer.model.named_parameters())


@pytest.mark.parametrize("family", LEARNING)
def test_rows_of_one_and_two_pictures_train_together(trainer_of, family):
    trainer = trainer_of(family, rows(1, 2))
    trainer.train()
    assert trainer.state.log_history[0]["grad_norm"] > 0


@pytest.mark.parametrize("family", LEARNING)
def test_upstream_still_fails_on_a_mixed_batch(trainer_of, family):
    """When this fails, upstream has mended trl#5139: say so no more in VisionGRPOTrainer._tokenize_prompts."""
    trainer = published(trainer_of(family, rows(1, 0)))
    with pytest.raises(TypeError, match="only a single or a list of entries"):
        trainer.train()


def test_upstream_still_keeps_nested_prompts_in_its_table(trainer_of, tmp_path):
    """When this fails, upstream tables are text: remove VisionGRPOTrainer._calculate_rewards."""
    tracking = {"report_to": "none", "log_completions": True}
    published(trainer_of("qwen2_5_vl", rows(1, 1), tracking=tracking)).train()
    table = pandas.read_parquet(tmp_path / "completions/completions_00001.parquet")
    assert not isinstance(table["prompt"][0], str)


def equal(completions, **_):
    return [0.6] * len(completions)


def test_a_group_of_equal_rewards_teaches_nothing_at_all_behind_a_noise_gate(trainer_of, monkeypatch):
    monkeypatch.setattr(equal, "noise_gate", 1.0, raising=False)
    monkeypatch.setattr(equal, "noises", [0.1] * 8, raising=False)
    trainer = trainer_of("qwen2_5_vl", rows(1), equal, num_generations=8, scale_rewards="group")
    trainer.train()
    assert trainer.state.log_history[0]["grad_norm"] == 0


def test_upstream_still_learns_from_equal_rewards(trainer_of):
    """When this fails, upstream has mended it: remove VisionGRPOTrainer._level."""
    trainer = published(trainer_of("qwen2_5_vl", rows(1), equal, num_generations=8, scale_rewards="group"))
    trainer.train()
    assert trainer.state.log_history[0]["grad_norm"] > 0


def test_a_processor_that_pads_on_the_right_is_refused(checkpoint, config_of, tmp_path):
    config = config_of(model_name=checkpoint("qwen2_5_vl"), **SMALL)
    processor = policy.load_processor(config)
    processor.tokenizer.padding_side = "right"
    with pytest.raises(PolicyError, match=r"pads on the right.*set padding_side to left"):
        VisionGRPOTrainer(
            model=policy.load_model(config),
            reward_funcs=[length],
            args=assembly.grpo_config(config, processor, [1.0], tmp_path),
            train_dataset=rows(1, 1),
            processing_class=processor,
        )


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_table_holds_text_no_more_rows_than_promised_and_each_score_beside_its_completion(trainer_of, tmp_path, accumulation):
    trainer = trainer_of(
        "qwen2_5_vl", rows(1, 1, 0, 2, 1, 1, 0, 2), max_steps=2, batch_size=32 // accumulation, gradient_accumulation_steps=accumulation,
        tracking={"report_to": "none", "log_completions": True},
    )  # fmt: skip
    trainer.train()
    for step in (1, 2):
        table = pandas.read_parquet(tmp_path / f"completions/completions_{step:05}.parquet")
        assert len(table) == TABLE_ROWS
        assert all(isinstance(text, str) for column in ("prompt", "completion") for text in table[column])
        assert table["length"].tolist() == [float(len(text)) for text in table["completion"]]
        assert all(text.startswith("system: Answer.\nuser: ") for text in table["prompt"])
        pictures = {0: 1, 1: 1, 2: 0, 3: 2, 4: 1, 5: 1, 6: 0, 7: 2}
        for text, gold in zip(table["prompt"], table["gold"], strict=True):
            number = int(text.split("Question ")[1][0])
            assert (text.count("[picture]"), gold) == (pictures[number], f'{{"answer": "{number}"}}')


def test_pictures_that_training_asks_about_are_kept_small_and_once(trainer_of, tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "ASKED", 3)
    asked = rows(1, 0, 2, 1)
    asked = asked.add_column(
        "picture_ids", [[f"{number}-{place}" for place in range(len(row["images"]))] for number, row in enumerate(asked)]
    )
    trainer = trainer_of("qwen2_5_vl", asked, max_steps=2, tracking={"report_to": "none", "log_completions": True})
    trainer.train()
    names = {}
    for step in (1, 2):
        table = pandas.read_parquet(tmp_path / f"completions/completions_{step:05}.parquet")
        for text, shown in zip(table["prompt"], table["pictures"], strict=True):
            names.setdefault(int(text.split("Question ")[1][0]), set()).add(shown)
    kept = {number: json.loads(shown) for number, (shown,) in names.items()}
    assert kept[1] == [] and len(kept) > 2 and sum(map(len, kept.values())) == 3
    assert all((tmp_path / name).is_file() for shown in kept.values() for name in shown)


def test_the_pictures_of_a_table_stand_beside_their_prompts(trainer_of):
    trainer = trainer_of("qwen2_5_vl", rows(1, 0), tracking={"report_to": "none", "log_completions": True})
    trainer.train()
    shown = list(zip(trainer._logs["prompt"], trainer._logs["images"], strict=True))
    assert len(shown) == 8
    assert all(text.count("[picture]") == len(images) for text, images in shown)


def test_no_placeholder_is_sampled_even_from_a_policy_that_wants_to(trainer_of):
    seen = []

    def remember(completions, completion_ids, **_):
        seen.extend(token for ids in completion_ids for token in ids)
        return [0.0] * len(completions)

    trainer = trainer_of("qwen2_5_vl", rows(1, 0), reward=remember)
    placeholders = [trainer.processing_class.image_token_id, trainer.processing_class.video_token_id]

    def want(_, __, logits):
        logits = logits.clone()
        logits[..., placeholders] += 1000.0
        return logits

    trainer.model.lm_head.register_forward_hook(want)
    trainer.train()
    assert seen
    assert not set(seen) & set(placeholders)
    trainer.generation_kwargs.pop("suppress_tokens", None)
    trainer.generation_config.suppress_tokens = None
    seen.clear()
    trainer._generate_and_score_completions([trainer.train_dataset[0]] * 8)
    assert placeholders[0] in seen or placeholders[1] in seen


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ("plain", "plain"),
        ([{"role": "assistant", "content": "42"}], "42"),
        ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}], "system: Be brief.\nuser: Why?"),
        ([{"role": "user", "content": [{"type": "image", "image": None}, {"type": "text", "text": "Why?"}]}], "user: [picture]Why?"),
    ],
)
def test_a_chat_is_shown_as_one_text(messages, text):
    assert processors.as_text(messages) == text


def padded(inputs, left, right):
    """The same micro-batch with more padding on either side, as the longest of another micro-batch would bring."""
    widths = {"prompt": (left, 0), "completion": (0, right), "mm": (left, right)}
    more = {key: torch.nn.functional.pad(inputs[key], widths[key.split("_")[0]]) for key in inputs if key.split("_")[0] in widths}
    return inputs | more


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "bnpo"])
@pytest.mark.parametrize("family", LEARNING)
def test_a_micro_batch_is_read_without_the_padding_of_others_and_teaches_the_same(trainer_of, monkeypatch, family, loss_type):
    trainer = trainer_of(family, rows(1, 2, 0, 1), gradient_accumulation_steps=2, loss_type=loss_type)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 2
    inputs = trainer._prepare_inputs([trainer.train_dataset[i // 4] for i in range(16)])
    inputs["advantages"] = torch.linspace(-1, 1, 8)
    seen = []

    def taught(batch):
        trainer.model.zero_grad()
        loss = trainer._compute_loss(trainer.model, batch)
        loss.backward()
        return torch.cat(
            [loss.detach().flatten(), *(weight.grad.flatten() for weight in trainer.model.parameters() if weight.grad is not None)]
        )

    trainer.model.register_forward_pre_hook(lambda _, __, named: seen.append(named["input_ids"].shape[1]), with_kwargs=True)
    cut = taught(padded(inputs, 7, 5))
    monkeypatch.setattr(trainer_module, "cut_to_longest", lambda batch: batch)
    whole = taught(padded(inputs, 7, 5))
    assert seen[0] == columns_in_use(inputs)
    assert seen[1] == inputs["prompt_ids"].shape[1] + inputs["completion_ids"].shape[1] + 12
    assert whole.abs().max() > 1e-3
    assert torch.allclose(cut, whole, atol=1e-6)


def columns_in_use(inputs):
    """Columns that hold a token of any row."""
    return int(inputs["prompt_mask"].any(0).sum() + inputs["completion_mask"].any(0).sum())


def test_a_micro_batch_without_a_single_token_to_learn_keeps_two_columns():
    inputs = {name: torch.zeros(2, 6, dtype=torch.long) for name in ("completion_ids", "completion_mask")}
    inputs |= {name: torch.tensor([[0, 0, 1], [0, 1, 1]]) for name in ("prompt_ids", "prompt_mask")}
    cut = trainer_module.cut_to_longest(inputs | {"mm_token_type_ids": torch.arange(18).reshape(2, 9)})
    assert cut["prompt_mask"].tolist() == [[0, 1], [1, 1]]
    assert cut["completion_ids"].shape == (2, 2)
    assert cut["mm_token_type_ids"].tolist() == [[1, 2, 3, 4], [10, 11, 12, 13]]


@pytest.mark.parametrize("recomputed", [0, 1, 3])
def test_a_run_recomputes_the_layers_that_were_settled(trainer_of, recomputed):
    trainer = trainer_of("qwen2_5_vl", rows(1, 0), recomputed=recomputed)
    trainer.train()
    flags = [layer.gradient_checkpointing for layer in trainer.model.get_decoder().layers]
    assert flags == [place < recomputed for place in range(3)]
    assert trainer.model.is_gradient_checkpointing == (recomputed > 0)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("before", [0, 1])
def test_an_engine_that_cannot_sleep_makes_the_run_recompute_what_no_longer_fits(trainer_of, config_of, caplog, before, lora):
    trainer = trainer_of("qwen2_5_vl", rows(1, 0), recomputed=before, lora={"enabled": lora})
    config = config_of(model_name=trainer.model.config.name_or_path, use_vllm=True, allow_tight_memory=True, gradient_checkpointing="auto")
    prepared = SimpleNamespace(rows={"prompt_tokens": [64]}, recomputed=before)
    assembly.plan_awake(config, prepared, trainer, CARD, None)
    assert f"planned again with the engine awake: 3 layers are recomputed, before {before}" in caplog.text
    trainer.train()
    assert [layer.gradient_checkpointing for layer in trainer.model.get_decoder().layers] == [True] * 3


def test_a_run_that_fits_only_beside_a_sleeping_engine_is_refused_when_it_stays_awake(trainer_of, config_of):
    trainer = trainer_of("qwen2_5_vl", rows(1, 0))
    config = config_of(model_name=trainer.model.config.name_or_path, use_vllm=True, vllm_gpu_memory_utilization=0.98)
    with pytest.raises(HardwareError, match=r"does not fit this card's 3\.0 GiB"):
        assembly.plan_awake(config, SimpleNamespace(rows={"prompt_tokens": [64]}, recomputed=0), trainer, CARD, 3.0)


@pytest.mark.parametrize("lora", [{"enabled": False, "merger": True}, {}], ids=["whole", "adapters"])
def test_a_policy_that_has_not_moved_is_no_distance_from_its_reference(trainer_of, lora):
    trainer = trainer_of("qwen2_5_vl", rows(1, 0), beta=0.1, lora=lora, max_steps=2)
    trainer.train()
    first, second = (line["kl"] for line in trainer.state.log_history[:2])
    assert first == 0 < second


@pytest.mark.parametrize("lora", [{"enabled": False}, {}], ids=["whole", "adapters"])
@pytest.mark.parametrize("family", LEARNING)
def test_a_step_moves_the_parts_that_learn_and_no_other(trainer_of, family, lora):
    trainer = trainer_of(family, rows(1, 2), lora=lora | {"language": False, "merger": True}, beta=0.1, recomputed=1)
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    moved = {name for name, weight in trainer.model.named_parameters() if not torch.equal(weight, before[name])}
    assert {policy.part(name) for name in moved} == {"merger"}
    assert any("deepstack" in name for name in moved) == (family == "qwen3_vl")


def test_weights_gathered_in_float32_are_kept_in_the_dtype_that_the_policy_was_read_in(trainer_of, tmp_path):
    trainer = trainer_of("qwen2_5_vl", rows(1), dtype="bfloat16")
    for folder in ("kept", "kept-again"):  # a save writes into the model's config what it found
        trainer._save(str(tmp_path / folder), {name: weight.float() for name, weight in trainer.model.state_dict().items()})
        assert {weight.dtype for weight in load_file(tmp_path / folder / "model.safetensors").values()} == {torch.bfloat16}


def test_parity_is_held_to_what_is_computed_in_and_not_to_what_weights_are_kept_in(trainer_of, monkeypatch):
    trainer = trainer_of("qwen2_5_vl", rows(1))
    assert parity.computed_in(trainer) is torch.float32
    monkeypatch.setattr(type(trainer.accelerator), "mixed_precision", "bf16")
    assert parity.computed_in(trainer) is torch.bfloat16


def test_the_last_checkpoint_of_a_split_policy_is_not_scored_from_weights_that_no_process_holds(trainer_of, monkeypatch, tmp_path):
    trainer = trainer_of("qwen2_5_vl", rows(1))
    for name, value in launch.TOLD["fsdp2"].items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="for which fsdp2 would have to begin training; resume it with --strategy ddp"):
        trainer.at_the_end_of(tmp_path / "checkpoint-3")
