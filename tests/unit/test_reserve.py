"""Covers dynamic sampling on a tiny real model: level groups are replaced by other rows, whole, within the reserve, and never fatally."""

import datasets
import pytest
import torch
from PIL import Image

from qwen_vl_grpo import assembly, policy, reserve, tasks
from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.interfaces import Verdict
from qwen_vl_grpo.ledger import Ledger
from qwen_vl_grpo.tasks import visual_reasoning

SMALL = {
    "batch_size": 12, "gradient_accumulation_steps": 1, "num_generations": 4, "max_completion_length": 6, "max_steps": 1,
    "learning_rate": 1e-3, "lora": {"enabled": False}, "tracking": {"report_to": "none", "log_completions": False},
    "trl": {"shuffle_dataset": False}, "dynamic_sampling": {"reserve": 4},
}  # fmt: skip


def judge(completion, sample):
    """Never right where the answer is 0, always where it is 9, and by the completion's length in between."""
    return Verdict(True, len(completion) % 9 < int(sample.answer))


LUCK = tasks.Task("luck", "", (), visual_reasoning.read_row, judge)


def paid(completions, answer, **_):
    paid.answers += answer
    return [
        float(judge(completion[0]["content"], visual_reasoning.Sample("", [], [], gold)).correct)
        for completion, gold in zip(completions, answer, strict=True)
    ]


def rows(answers):
    """One question a row; its picture is the wider the later the row, so that each has other grids."""
    table = {
        "id": [f"row {n}" for n in range(len(answers))], "answer": list(answers),
        "prompt": [[{"role": "user", "content": f"Question {n}?"}] for n in range(len(answers))],
    }  # fmt: skip
    features = datasets.Dataset.from_dict(table).features
    features["images"] = datasets.List(datasets.Image())
    pictures = [[Image.new("RGB", (56 + 28 * n, 56), "red")] for n in range(len(answers))]
    return datasets.Dataset.from_dict(table | {"images": pictures}, features=features)


@pytest.fixture
def trainer_of(checkpoint, config_of, tmp_path):
    ledgers = []

    def build(answers, reward=paid, **changes):
        paid.answers = []
        config = config_of(model_name=checkpoint("qwen2_5_vl"), **(SMALL | changes))
        ledgers.append(Ledger(tmp_path, config.max_steps))
        prepared = assembly.Prepared(LUCK, [reward], [1.0], policy.load_processor(config), rows(answers), [], None, 0)
        return assembly.build_trainer(config, prepared, assembly.load_policy(config, prepared, tmp_path), tmp_path, ledgers[-1])

    yield build
    for ledger in ledgers:
        ledger.close()


def test_level_groups_give_way_to_rows_with_spread(trainer_of):
    trainer = trainer_of("909" + "4" * 5)
    trainer.train()
    seen = trainer.state.log_history[0]
    assert seen["dynamic_sampling/level"] == 3
    assert 1 <= seen["dynamic_sampling/replaced"] <= seen["dynamic_sampling/drawn"] <= 4
    assert paid.answers.count("4") == 4 * seen["dynamic_sampling/replaced"]
    assert seen["groups/without_spread"] == pytest.approx(1 - seen["dynamic_sampling/replaced"] / 3)
    assert seen["grad_norm"] > 0


def shaped(completions, **_):
    """Pays each completion of a group differently, right or wrong."""
    return [float(place % 4) for place in range(len(completions))]


def flat(completions, **_):
    return [1.0] * len(completions)


@pytest.mark.parametrize(("answers", "reward", "level"), [("909" + "0" * 5, shaped, True), ("444", flat, False)])
def test_the_verdict_decides_which_groups_are_level_and_not_the_rewards(trainer_of, answers, reward, level):
    trainer = trainer_of(answers, reward)
    trainer.train()
    assert (trainer.state.log_history[0]["dynamic_sampling/level"] == 3) == level


def test_what_is_scored_is_of_the_new_rows_throughout(trainer_of):
    trainer = trainer_of("000" + "4" * 5)
    trainer.model.train()
    batch = trainer._generate_and_score_completions([trainer.train_dataset[n] for n in range(3) for _ in range(4)])
    chosen = [row["id"] for row in trainer._given]
    assert chosen != [f"row {n}" for n in range(3) for _ in range(4)]
    texts = trainer.processing_class.batch_decode(batch["prompt_ids"], skip_special_tokens=True)
    widths = (batch["image_grid_thw"][:, 2] // 2).tolist()
    for name, text, width in zip(chosen, texts, widths, strict=True):
        number = int(name.split()[1])
        assert f"Question {number}?" in text
        assert width == 2 + number
    spread = [len(set(batch["advantages"][start : start + 4].tolist())) > 1 for start in (0, 4, 8)]
    assert spread == [int(chosen[start].split()[1]) >= 3 for start in (0, 4, 8)]
    scored, *_ = trainer._get_per_token_logps_and_entropies(
        trainer.model, *(torch.cat([batch[f"prompt_{kind}"], batch[f"completion_{kind}"]], 1) for kind in ("ids", "mask")),
        batch["completion_ids"].shape[1], pixel_values=batch["pixel_values"], image_grid_thw=batch["image_grid_thw"],
        num_images=batch["num_images"], mm_token_type_ids=batch["mm_token_type_ids"],
    )  # fmt: skip
    assert scored.shape == batch["completion_ids"].shape


def test_a_reserve_without_spread_is_not_fatal_and_bounded(trainer_of):
    trainer = trainer_of("0" * 9, dynamic_sampling={"reserve": 5})
    trainer.train()
    seen = trainer.state.log_history[0]
    assert (seen["dynamic_sampling/level"], seen["dynamic_sampling/drawn"], seen["dynamic_sampling/replaced"]) == (3, 5, 0)
    assert trainer.state.global_step == 1
    nothing_left = trainer_of("000")
    nothing_left.train()
    assert nothing_left.state.log_history[0]["dynamic_sampling/drawn"] == 0


def test_a_resumed_run_draws_the_same_rows(trainer_of):
    kept = reserve.Reserve(rows("0" * 9), LUCK, 4, seed=3)
    asked = [{"id": "row 1"}]
    first, again, later = ([row["id"] for row in kept._others(asked, moment)] for moment in (5, 5, 6))
    assert first == again != later
    assert "row 1" not in first and len({*first}) == len(first) <= 5


@pytest.mark.parametrize(
    ("processes", "verdict", "said"), [("2", True, "is for one process"), ("1", None, "draws its completions before they are judged")]
)
def test_runs_that_cannot_have_a_reserve_are_refused(config_of, monkeypatch, processes, verdict, said):
    monkeypatch.setenv("WORLD_SIZE", processes)
    task = tasks.Task("own", "", (), visual_reasoning.read_row, lambda completion, sample: Verdict(True, verdict))
    with pytest.raises(ConfigError, match=said):
        reserve.check(config_of(dynamic_sampling={"reserve": 1}), task, rows("1"))
