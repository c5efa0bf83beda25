"""Covers a text-only Qwen that learns to rewrite prompts: drawn and judged, resumed, asked by its run_id, refused where it must see."""

import re

import pytest

RUN = {
    "model_name": "tiny-qwen2", "dataset_name": "short-prompts", "task": {"name": "prompt_enhancement"}, "rewards": [], "max_steps": 1,
    "lora": {"r": 4}, "learning_rate": 0.05, "warmup": {"dataset_name": "short-prompts", "steps": 1, "batch_size": 4},
    "evaluation": {"dataset_split": "test", "samples": 2}, "judge": {"model": "clip", "low": -0.5, "high": 0.5},
    "renderer": {"model": "sd3", "t5": False, "width": 32, "height": 32, "steps": 1, "batch_size": 8},
}  # fmt: skip


@pytest.fixture(scope="module")
def resumed(workshop) -> str:
    """The id of a LoRA run of two steps on a warmed-up Qwen2, the second of which was added by --resume."""
    from demo import tiny_pictures, tiny_qwen

    tiny_qwen.build(workshop.folder / "tiny-qwen2", "qwen2")
    tiny_pictures.sd3(workshop.folder / "sd3")
    tiny_pictures.clip(workshop.folder / "clip")
    (workshop.folder / "short-prompts").mkdir()
    (workshop.folder / "short-prompts/train.txt").write_text("a purple cat\na square wheel\na glass butterfly\n")
    (workshop.folder / "short-prompts/test.txt").write_text("a green cow\n")
    (workshop.folder / "short-prompts/warmup.jsonl").write_text('{"prompt": "a red cat", "target": "a red cat, soft light"}\n' * 4)
    for steps in ({}, {"max_steps": 2}):
        done = workshop.train("words", *["--resume"] * bool(steps), **RUN | steps)
        assert done.returncode == 0, done.stderr
    return "words"


def test_it_learns_from_what_its_words_look_like(workshop, resumed):
    steps = [line for line in workshop.metrics(resumed) if "reward" in line]
    assert [line["step"] for line in steps] == [1, 2]
    assert all(line["rendered/failed"] == 0 and line["grad_norm"] > 0 for line in steps)
    card = workshop.card(resumed)
    assert [attempt["last_step"] for attempt in card["attempts"]] == [1, 2]
    assert card["metrics"]["after"]["greedy"]["n"] == 1 and "blind" not in card["metrics"]
    assert card["preprocessing"]["reads"] == "text"


def test_it_answers_by_its_run_id(workshop, resumed):
    done = workshop.infer("--run_id", resumed, "--prompt", "a cat")
    assert done.returncode == 0, done.stderr
    shown = re.fullmatch(r"original: a cat\nenhanced: (.*)\nlength: 5 -> (\d+) characters\nquality: [0-5]\.\d\d / 5\n", done.stdout, re.S)
    assert shown and len(shown[1]) == int(shown[2])


def test_it_is_refused_in_one_sentence_where_it_would_have_to_see(workshop, resumed, refused):
    said = refused(workshop.train("blind", model_name="tiny-qwen2"))
    assert "model_name tiny-qwen2: reads text alone, and row 0 of task visual_reasoning has a picture; take a Qwen-VL" in said
    assert not workshop.run_dir("blind").exists()
