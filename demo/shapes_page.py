"""Write docs/shapes_demo.md and its pictures from the run cards and measurements of the shapes demonstration's seeds.

make demo-shapes && .venv/bin/python -m demo.shapes_page        # one seed or more; with demo.shapes_whole, that comparison as well
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from demo import shapes_whole
from demo.__main__ import OUTPUTS, in_one_line
from demo.shapes import MOMENTS, ends_file, run_id
from demo.shapes_words import COPIED, MISTAKEN, RIGHT, drawings
from qwen_vl_grpo import registry, rendered_gallery
from qwen_vl_grpo.interfaces import RunCard

PAGE = Path("docs/shapes_demo.md")
SHEET = PAGE.with_suffix(".png")
SEEDS = (0, 1, 2)
SHOWN, CELL, SCALE = 8, (190, 96), 4
"""Prompts of the sheet, pixels of a cell of it, and of a pixel that was drawn."""

Ends = Mapping[int, Mapping[str, Any]]


def main() -> None:
    done = [seed for seed in SEEDS if ends_file(seed).is_file()]
    ends = {seed: json.loads(ends_file(seed).read_text(encoding="utf-8")) for seed in done}
    files = {seed: path for seed in done if (path := shapes_whole.ends_file(seed)).is_file()}
    whole = {seed: json.loads(path.read_text(encoding="utf-8")) for seed, path in files.items()}
    page = written(registry.resolve(run_id(done[0]))[0], ends, whole)
    PAGE.write_text(page, encoding="utf-8")
    columns = {
        "before GRPO": kept(run_id(done[0]), "before"),
        "after GRPO": kept(run_id(done[0]), "after"),
        "control, words not seen": kept(run_id(done[0], "unsaid"), "after"),
    }
    sheet(columns).save(SHEET, optimize=True)
    print(page)


def written(card: RunCard, ends: Ends, whole: Mapping[int, Any]) -> str:
    """The page, of what was measured for each seed, the card of one of them, and what became of policies that learned whole."""
    from demo.tiny_painter import AUTOENCODER_STEPS, TRANSFORMER_STEPS  # heavy

    drawn = next(iter(ends.values()))["drawn"]
    rows, answers = drawn["the right words"]["before"]["n"], drawn["its words"]["before"]["sampled"]["n"]
    settings = card.config
    page = [
        "# The shapes demonstration: a policy drives a frozen DiT",
        "<!-- Written by `python -m demo.shapes_page` from the records of `make demo-shapes`; train again instead of editing. -->\n",
        "A tiny Qwen2.5-VL is asked for a drawing in clues, `grass, three corners`, and answers in words. A tiny Qwen-Image (the real "
        "classes of diffusers, 16x16 pixels) draws from the policy's hidden states of that answer, as a run of full size does "
        "([option_c.md](option_c.md)), and exact rules read colour and shape off the pixels (demo/shapes_judge.py): half a point each. "
        "Nothing but that score reaches GRPO.",
        "",
        f"![Greedy answers to the first {SHOWN} held-out prompts, and what was drawn of them]({SHEET.name})",
        "",
        f"1. **Warm-up.** The policy imitates words of which {RIGHT:.0%} are right, {MISTAKEN:.0%} one mistake that goes with a clue, "
        f"{COPIED:.0%} a copy of the clue's last word, and the others any.",
        f"2. **The DiT** is taught ({AUTOENCODER_STEPS} steps of its autoencoder, {TRANSFORMER_STEPS} of its transformer) what each of "
        f"{len(drawings())} drawings looks like, from that policy's states of it. In these lessons a prompt says nothing true of the "
        "drawing, so that the picture follows from the words alone. Then it is frozen.",
        f"3. **GRPO** trains the policy's output head alone (`lora.language: head`), for {settings['max_steps']} steps of "
        f"{settings['batch_size']} completions at a learning rate of {settings['learning_rate']:g}. The DiT reads the states below the "
        "head. The policy can learn to choose other words, and what the DiT sees of a given word stays exactly what it was.",
        "4. **The control** is the same run, but its pictures are drawn from the states of an empty completion: all completions of a "
        "prompt have one picture and one score, and there is nothing to learn from.",
        "",
        f"Every clue is trained on; a held-out prompt puts two of them together for the first time. {rows} held-out prompts (split "
        f"`{card.dataset['held_out']}`), {answers // rows} sampled answers each; seeds {', '.join(map(str, ends))}. "
        f"{card.hardware['machine']}, {card.hardware['cores']} cores, one thread used. Python {card.hardware['python']}, torch "
        f"{card.versions['torch']}, transformers {card.versions['transformers']}, trl {card.versions['trl']}. The test prompts "
        "are not untouched: an earlier setting was scored on them, and learning rate, steps and the shares of the warm-up were chosen in a "
        "simulation of the head's training that was scored on them, for seed 0; the whole run was then tried on its validation prompts. "
        "Seeds 1 and 2 were run once.",
        "",
        "Share of pictures whose colour and shape are both what was asked for; in brackets the 95 % interval, of one picture a prompt.",
        "",
        "| seed | drawn from the states of | before GRPO | after GRPO | after the control | n |",
        "|---|---|---|---|---|---|",
        *(line for seed, found in ends.items() for line in lines(seed, found["drawn"])),
        "",
        "`No words` are the same policies' pictures with the states of an empty completion in place of theirs. `The right words` are the "
        "answers themselves, read by the policy as it is: as well as this DiT draws what it is told.",
        "",
        "| seed | mean score, sampled: before | after | after the control | CPU of the command, s | of them before GRPO |",
        "|---|---|---|---|---|---|",
        *(costs(seed, found) for seed, found in ends.items()),
        "",
        *compared(whole, ends),
        "## What may be claimed",
        "",
        "The score of a picture that was drawn from a policy's own states teaches the policy which words to say, through a DiT that is "
        f"frozen and sees nothing else of them; without those states it teaches nothing. {claimed(whole)}",
    ]
    return "\n".join(page) + "\n"


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


def compared(whole: Mapping[int, Any], ends: Ends) -> list[str]:
    """The section on policies that learned whole, or that it was not measured."""
    if not whole:
        return ["`python -m demo.shapes_whole` trains all of the language model instead; that was not measured here.", ""]
    table = []
    for seed, rates in whole.items():
        drawn = ends[seed]["drawn"]
        head = {"the head alone": {name: of["after"] for name, of in drawn.items()}}
        for what, found in {**head, **{f"all layers, {rate}": of for rate, of in rates.items()}}.items():
            words = found["its words"]
            table.append(f"| {seed} | {what} | {share(found['the right words'])} | {share(words['sampled'])} | {share(words['greedy'])} |")
    return [
        "## What happens when all layers learn",
        "",
        "The same warmed-up policy, DiT and steps, with all of the language model learning (`python -m demo.shapes_whole`, whose learning "
        "rates are named). The policy's states of the same words move then, and the frozen DiT was taught the states from before: how "
        "well it still reads them is what it draws of the right words.",
        "",
        "| seed | what learned, learning rate | the right words | its words, sampled | its words, greedy |",
        "|---|---|---|---|---|",
        *table,
        "",
    ]


def claimed(whole: Mapping[int, Any]) -> str:
    """How far the claim goes for a policy whose states move."""
    if not whole:
        return "Not that a DiT can follow a policy whose states move: here they were kept from moving."
    return (
        f"How a DiT follows a policy whose states move was measured for seed {', '.join(map(str, whole))} and the learning rates above "
        "alone: in the main run they were kept from moving."
    )


def kept(run: str, moment: str) -> list[tuple[str, str, Path | None]]:
    """Prompt, greedy answer and picture of the first held-out prompts, as the run kept them."""
    folder = OUTPUTS / run
    found = [line for line in rendered_gallery.read(folder)[0] if line["kind"] == "held-out" and line["moment"] == moment]
    return [(line["original"], line["completion"], line["picture"] and folder / line["picture"]) for line in found[:SHOWN]]


def sheet(columns: Mapping[str, Sequence[tuple[str, str, Path | None]]]) -> Image.Image:
    """One row a prompt, and in each column the answer with what was drawn of it."""
    across, down = CELL
    board = Image.new("RGB", (across * (1 + len(columns)), 24 + down * SHOWN), "white")
    pen = ImageDraw.Draw(board)
    for place, (title, shown) in enumerate(columns.items(), 1):
        pen.text((place * across, 6), title, "black")
        for row, (prompt, answer, picture) in enumerate(shown):
            top = 24 + row * down
            if place == 1:
                pen.text((8, top + down // 2 - 6), prompt, "black")
            pen.text((place * across, top), answer, "black")
            if picture is not None:
                with Image.open(picture) as image:
                    drawn = image.resize((image.width * SCALE, image.height * SCALE), Image.Resampling.NEAREST)
                board.paste(drawn, (place * across, top + 14))
                pen.rectangle((place * across - 1, top + 13, place * across + drawn.width, top + 14 + drawn.height), outline="gray")
    return board


if __name__ == "__main__":
    in_one_line(main)
