"""Write docs/shapes_demo.md from the run cards and measurements of the shapes demonstration's seeds.

make demo-shapes && .venv/bin/python -m demo.shapes_page        # one seed or more
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demo.__main__ import in_one_line
from demo.shapes import MOMENTS, ends_file, run_id
from demo.shapes_words import MISTAKEN, RIGHT, drawings
from qwen_vl_grpo import registry
from qwen_vl_grpo.interfaces import RunCard

PAGE = Path("docs/shapes_demo.md")
SEEDS = (0, 1, 2)


def main() -> None:
    done = [seed for seed in SEEDS if ends_file(seed).is_file()]
    ends = {seed: json.loads(ends_file(seed).read_text(encoding="utf-8")) for seed in done}
    page = written(registry.resolve(run_id(done[0]))[0], ends)
    PAGE.write_text(page, encoding="utf-8")
    print(page)


def written(card: RunCard, ends: Mapping[int, Mapping[str, Any]]) -> str:
    """The page, of what was measured for each seed and the card of one of them."""
    from demo.tiny_painter import AUTOENCODER_STEPS, SIBLINGS, TRANSFORMER_STEPS  # heavy

    first = next(iter(ends.values()))["drawn"]
    rows, answers = first["the right words"]["before"]["n"], first["its words"]["before"]["sampled"]["n"]
    settings = card.config
    seeds = ", ".join(map(str, ends))
    return (
        "\n".join(
            [
                "# The shapes demonstration: a policy drives a frozen DiT",
                "<!-- Written by `python -m demo.shapes_page` from the records of `make demo-shapes`; train again instead of editing. "
                "-->\n",
                "A tiny Qwen2.5-VL is asked for a drawing in clues, `grass, three corners`, and answers in words. A tiny Qwen-Image "
                "(the real classes of diffusers, 16x16 pixels) draws from the policy's hidden states of that answer, as a run of full "
                "size does, and exact rules read colour and shape off the pixels (demo/shapes_judge.py): half a point each. Nothing "
                "but that score reaches GRPO.",
                "",
                f"The policy is warmed up by imitation first: {RIGHT:.0%} of the words are right, {MISTAKEN:.0%} are one mistake that "
                f"goes with a clue, the others any. Then the DiT is taught ({AUTOENCODER_STEPS} steps of its autoencoder, "
                f"{TRANSFORMER_STEPS} of its transformer) what each of {len(drawings())} drawings looks like, from the states of "
                f"{SIBLINGS} policies: the warmed-up one and ones with noise in their weights. In those lessons the words say nothing "
                "true of the clues, so that the picture follows from the words alone. Then the DiT is frozen. Every clue is trained "
                "on; a held-out prompt puts two of them together for the first time.",
                "",
                f"{rows} held-out prompts (split `{card.dataset['held_out']}`), {answers // rows} sampled answers each; seeds {seeds}. "
                f"{settings['max_steps']} steps of {settings['batch_size']} completions, learning rate {settings['learning_rate']:g}. "
                f"{card.hardware['machine']}, {card.hardware['cores']} cores, one thread used. Python {card.hardware['python']}, torch "
                f"{card.versions['torch']}, transformers {card.versions['transformers']}, trl {card.versions['trl']}.",
                "",
                "Share of pictures whose colour and shape are both what was asked for; in brackets the 95 % interval, of one picture a "
                "prompt.",
                "",
                "| seed | drawn from the states of | before GRPO | after GRPO | after the control | n |",
                "|---|---|---|---|---|---|",
                *(line for seed, found in ends.items() for line in lines(seed, found["drawn"])),
                "",
                "The control is the same run with the states of an empty completion in place of the policy's, in training: all "
                "completions of a prompt have one picture and one score then, and there is nothing to learn from. `No words` draws the "
                "finished policies' pictures that way. `The right words` are the answers themselves, read by the policy as it is: that "
                "share falls as far as GRPO moves the policy's states away from those that the frozen DiT was taught to read.",
                "",
                "| seed | mean score, sampled: before | after | after the control | CPU of the command, s | of them before GRPO |",
                "|---|---|---|---|---|---|",
                *(costs(seed, found) for seed, found in ends.items()),
                "",
                "## What may be claimed",
                "",
                "The reward of a picture that was drawn from a policy's own states teaches the policy which words to say, through a "
                "DiT that is frozen and sees nothing else of them; without those states it teaches nothing. Not that a DiT of full "
                "size can follow a policy that moves further: here it was taught to, and the learning rate is one at which it does.",
            ]
        )
        + "\n"
    )


def lines(seed: int, drawn: Mapping[str, Any]) -> list[str]:
    table = []
    for name, kind in (("its words, sampled", "sampled"), ("its words, greedy", "greedy"), ("no words, greedy", "greedy")):
        of = drawn[name.partition(",")[0]]
        table.append(f"| {seed} | {name} | " + " | ".join(share(of[moment][kind]) for moment in MOMENTS) + f" | {of['after'][kind]['n']} |")
    of = drawn["the right words"]
    return [*table, f"| {seed} | the right words | " + " | ".join(share(of[moment]) for moment in MOMENTS) + f" | {of['after']['n']} |"]


def share(points: Mapping[str, Any]) -> str:
    low, high = points["interval"]
    return f"{points['right']:.3f} ({low:.3f} to {high:.3f})"


def costs(seed: int, found: Mapping[str, Any]) -> str:
    scores = (f"{found['drawn']['its words'][moment]['sampled']['score']:.3f}" for moment in MOMENTS)
    return f"| {seed} | " + " | ".join([*scores, str(found["cpu_seconds"]), str(found["taught_cpu_seconds"])]) + " |"


if __name__ == "__main__":
    in_one_line(main)
