"""Write docs/results_comparison.md: base against tuned on matrix puzzles, with a tiny model on this CPU.

    make results         # or: python -m demo.results; a run that is there already is not trained again

Both are asked by `grpo evaluate`'s own code under one protocol. The answers that are shown are to the first held-out matrices, the kinds of
question in turn, so nobody chose them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from demo.__main__ import arguments, console, in_one_line, seeded, speak, train  # sets the CPU first
from qwen_vl_grpo import config, registry
from qwen_vl_grpo.errors import RegistryError
from qwen_vl_grpo.interfaces import RunCard

PAGE, PICTURES = Path("docs/results_comparison.md"), Path("docs/results_comparison.png")
RUN_ID = "matrices-demo"
VOCABULARY = 420
"""Entries of the tokenizer: the bytes, and what the questions and their answers are made of."""
THETA = 10.0
"""Of the policy's rotary angles: four tokens lie too near each other for the usual million."""
SHOWN = 6
"""Answers that are shown, each to another matrix."""


def main() -> None:
    given = arguments("make results", "Compare base and tuned on matrix puzzles, with a tiny model on this CPU.", "matrices")
    speak()
    run = matrices_config(given.seed, given.set)
    try:
        card, _ = registry.resolve(run.run_id)
    except RegistryError:
        prepare(run)
        card = train(run)
    write(run, card)


def matrices_config(seed: int, overrides: list[str]) -> config.RunConfig:
    own = "" if seed == 0 else f"-s{seed}"
    return seeded("matrices", RUN_ID + own, f"matrices-base-s{seed}", f"matrices-s{seed}", seed, overrides)


def prepare(run: config.RunConfig) -> None:
    import torch
    from transformers.utils import logging as transformers_logging

    from demo import matrices, tiny_qwen

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    transformers_logging.disable_progress_bar()
    rows = matrices.write(Path(run.dataset_name), run.seed)
    console.print(f"data: {', '.join(f'{count} {name}' for name, count in rows.items())} matrix puzzles in {run.dataset_name}")
    weights = tiny_qwen.build(run.model_name, seed=run.seed, phrases=matrices.PHRASES, vocabulary=VOCABULARY, theta=THETA)
    console.print(f"model: a random Qwen2.5-VL of {weights / 1e6:.2f} million weights in {run.model_name}")


def write(run: config.RunConfig, card: RunCard) -> None:
    """Ask base and tuned the held-out puzzles, and write the page."""
    from qwen_vl_grpo import scoring, subjects

    tuned_policy = subjects.find(card.run_id, None)
    asked = scoring.Asked(backend="transformers")
    base = scoring.evaluate(subjects.find("base", None, tuned_policy), run, asked)
    tuned = scoring.evaluate(tuned_policy, run, asked)
    changes = scoring.against(base, tuned)
    shown = in_turn(tuned.samples)
    sheet([tuned.samples[place] for place in shown])
    PAGE.write_text("\n".join(page(card, base, tuned, changes, shown)), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


def in_turn(samples: list[Any]) -> list[int]:
    """The places of questions about the first matrices, of each kind in turn."""
    kinds = len({sample.columns["kind"] for sample in samples})
    return [matrix * kinds + matrix % kinds for matrix in range(SHOWN)]


def sheet(samples: list[Any]) -> None:
    """Their pictures side by side, three times as large."""
    from PIL import Image

    side, gap = 3 * samples[0].images[0].width, 20
    whole = Image.new("RGB", ((side + gap) * len(samples) - gap, side), "white")
    for place, sample in enumerate(samples):
        whole.paste(sample.images[0].resize((side, side), Image.Resampling.NEAREST), ((side + gap) * place, 0))
    whole.save(PICTURES, optimize=True)


def page(card: RunCard, base: Any, tuned: Any, changes: Any, shown: list[int]) -> list[str]:
    from demo import matrices
    from qwen_vl_grpo.report import evaluated

    told = evaluated.markdown(tuned.result, base.result, changes).split("\n", 1)[1].strip()
    where, versions = card.hardware, card.versions
    return [
        "# Results: base against tuned",
        "<!-- Written by `make results` from what was measured; run it again instead of editing. -->\n",
        "What could be run here: **a tiny model** (a Qwen2.5-VL of about a million random weights) on a CPU, on matrix puzzles that "
        "`demo/matrices.py` draws. A picture shows a 2 x 2 matrix; its trace takes one step, its determinant and the product of its row "
        "sums three. No test matrix is in the training rows. These numbers say that the path works and what it adds to this model, and "
        "nothing of a 7B: on a card, `grpo evaluate RUN_ID --against base` makes the same tables of any run.",
        "",
        f"The base is what GRPO began from: the random model after {card.config['warmup']['steps']} supervised steps on targets of which "
        f"{matrices.READING_NOISE:.0%} read any number in place of one of the four and {matrices.FORMAT_NOISE:.0%} break the format. The "
        f"tuned run has {card.config['max_steps']} steps of GRPO on top ({card.metrics['train_seconds']:.0f} s). Settings were "
        "chosen on another split of the matrices, and once changed after these were asked: with fewer steps of both and twice GRPO's rate "
        f"content was lost. {where['machine']}, {where['cores']} cores, one thread used; Python {where['python']}, torch "
        f"{versions['torch']}, transformers {versions['transformers']}, trl {versions['trl']}.",
        "",
        what_it_learned(changes),
        "",
        "One seed is no rule: docs/evaluation.md tells what another did.",
        "",
        told,
        "",
        "## Side by side",
        "",
        f"The greedy answers to questions about the first {SHOWN} held-out matrices, the kinds in turn, and their pictures in this order:",
        "",
        f"![The matrices of these questions]({PICTURES.name})",
        *(line for place in shown for line in side_by_side(place, base, tuned)),
        "",
    ]


def what_it_learned(changes: Any) -> str:
    """Form and content apart: MathVista's rule takes an answer in any form."""
    greedy = changes["greedy"]
    form, right, content, sampled = (
        100 * part[name]["change"]
        for part, name in ((greedy, "format"), (greedy, "correct"), (greedy, "official"), (changes["sampled"], "official"))
    )
    low, high = greedy["official"]["interval"]
    told = "what was learned is the form, and a change of content as small as this one may be chance"
    if high < 0:
        told = "what was learned is the form, and some of the content was lost on the way"
    elif low > 0:
        told = "content was learned, too"
    return (
        f"In short, GRPO changed the share of greedy answers that are well-formed by {form:+.0f} points, well-formed and right by "
        f"{right:+.0f}, and right where the form does not count (MathVista's published rule) by {content:+.0f}: so in them {told}. Of "
        f"sampled answers it changed the share that are right in any form by {sampled:+.0f} points."
    )


def side_by_side(place: int, base: Any, tuned: Any) -> list[str]:
    sample, number = tuned.samples[place], tuned.samples[place].id.rpartition("-")[2]
    records = [next(one for one in done.records if (one["kind"], one["place"]) == ("greedy", place)) for done in (base, tuned)]
    lines = ["", f"**{number[:2]} / {number[2:]}.** {matrices_question(sample)} Gold: {sample.answer}", "", "| base | tuned |", "|---|---|"]
    verdicts = [("well-formed" if one["format"] else "not well-formed") + (", right" if one["correct"] else "") for one in records]
    return [*lines, f"| {' | '.join(map(cell, records))} |", f"| {' | '.join(verdicts)} |"]


def matrices_question(sample: Any) -> str:
    return next(turn["content"] for turn in sample.prompt if turn["role"] == "user")


def cell(record: Any) -> str:
    return "<br>".join(f"`{line}`" for line in record["completion"].strip().splitlines())


if __name__ == "__main__":
    in_one_line(main)
