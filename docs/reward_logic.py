"""docs/reward_logic.md: what the rewards pay, and the scores of the completions in reward_logic.yaml. Called by generate.py."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from qwen_vl_grpo import answers, rewards
from qwen_vl_grpo.tasks.visual_reasoning import REWARDS

DOCS = Path(__file__).parent
SHORT = {"documented": "xsSc", "strict": "twa"}
"""A letter for each reward of a mode, in order."""

PAGE = """\
# Reward logic
{notice}
`task.mode` chooses the rewards of a run that lists none. `strict` is the default; `documented` pays what the published functions pay, for
comparison. A list under `rewards:` goes before both, and may name any of these. The rewards of clips are in
[reward_logic_video.md](reward_logic_video.md), and completions that try to be paid for nothing in [reward_hacks.md](reward_hacks.md).

| reward | range | weight, documented | weight, strict | it pays |
|---|---|---|---|---|
{rewards}

In both modes the right answer in the right form earns the most: {documented} documented, {strict} strict.

## What strict asks for

- **One answer, in the form.** Each tag once, in order, on a line of its own, and nothing around the two blocks. A completion outside the
  form earns nothing for its answer: a second block, an answer inside the reasoning or text after the form would be a second guess.
  End-of-turn tokens at the end (`<|im_end|>`, `<|endoftext|>`) are taken off first.
- **A way there.** `tags_reward` pays for each tag, so that a policy that does not know the form finds it. Text before or after the blocks
  costs at most 0.25.
- **A choice** by its letter (`B`, `b`, `(B)`, `B.`, `Option B`), by letter and its own text, by its text, or by an equal value that no
  other choice has. Nothing pays for being spelled nearly like the right one.
- **A number** exactly, 42.0 for 42 but not 42.9; with the row's `precision` to half a unit of that decimal. Commas between thousands, a
  currency sign, a fraction and one known unit are read. A unit other than the row's `unit` is wrong. A percentage may be given as a share.
  Any other word beside the number makes it a text: "42 apples" is not read as 42. So is a sum, a product or a root that is not worked out:
  `6 \\times 7` is the question handed back. A fraction and a power of ten are worked out.
- **A list** item by item, in order. **LaTeX** as math-verify reads it, compared by value (math-verify's own comparison would round 1/3 to
  0.333333). Formulas of more than 60 characters, or with brackets more than three deep, are not read: no answer may hold up a step.
- What none of these reads is compared as words, whatever its case, spaces and wrapping (`**…**`, `$…$`, `\\boxed{{…}}`).

A non-answer earns 0. A reward of your own returns None for what it could not judge; these always can.

## What MathVista's published rule says

Where the rows have `question_type` and `answer_type`, evaluations report `official` beside `correct`: MathVista's rule (commit 53d5258) on
the answer block. It is not the leaderboard's score, for which a language model first extracts the answer. On all {n} responses of
tests/fixtures/mathvista_scores.jsonl it gives the published scorer's verdict (tests/unit/test_mathvista.py). {theirs} of them count as
right there and not here, and {ours} the other way round. Its holes:

- Without a letter in brackets the choice with the nearest spelling counts. So an empty answer, "I do not know" or "(Z)" is right about as
  often as a guess, and so is `b` or `B.`, though the letter is right.
- The first letter in brackets counts, so "(B) or (C)" is right where B is.
- Integers are cut off: 12.9 counts as 12.
- `12 cm`, `$12`, `1,000` and `[2014,2016]` are wrong.

This is why the rule is a score here and never a reward.

## Completions and their scores

x: xmlcount, s: soft format, S: strict format, c: correctness; t: tags, w: well-formed, a: solved. The parts are unweighted, the totals
weighted. A line break is written ⏎, GOOD is the first row, and `answer:` is GOOD with another answer. {count} completions.
{tables}
"""


def page(notice: str) -> str:
    """Score every completion in both modes, and count where MathVista's rule and ours differ."""
    questions = load()
    good = {"text": "GOOD"}
    tables = [line for question in questions for line in table(question)]
    theirs, ours, n = disagreements()
    return PAGE.format(
        notice=notice,
        rewards="\n".join(reward_row(name) for mode in SHORT for name, _ in REWARDS[mode]),
        **{mode: scored(mode, good, questions[0]["gold"])[-1] for mode in SHORT},
        n=n,
        theirs=theirs,
        ours=ours,
        count=sum(len(question["cases"]) for question in questions),
        tables="\n".join(tables),
    )


@cache
def load() -> list[dict[str, Any]]:
    """The questions with their completions; each case has its kind as first key: right, wrong or hack."""
    return yaml.safe_load((DOCS / "reward_logic.yaml").read_text(encoding="utf-8"))


def completion(case: dict[str, str]) -> str:
    """The text that a case stands for."""
    good = load()[0]["cases"][0]["text"]
    if "answer" in case:
        return good.replace("42", case["answer"])
    return letters(case["text"].replace("GOOD", good))


def letters(text: str) -> str:
    """A text with its x*300 written out."""
    return re.sub(r"x\*(\d+)", lambda found: "x" * int(found.group(1)), text)


def scored(mode: str, case: dict[str, str], gold: dict[str, Any]) -> list[str]:
    """The parts of one completion's reward in a mode, and their weighted sum."""
    columns = {key: [value] for key, value in gold.items()}
    parts = [rewards.REWARDS[name](completions=[completion(case)], **columns)[0] or 0.0 for name, _ in REWARDS[mode]]
    total = sum(part * weight for part, (_, weight) in zip(parts, REWARDS[mode], strict=True))
    return [*(f"{part:.4g}" for part in parts), f"**{total:.4g}**"]


def table(question: dict[str, Any]) -> list[str]:
    heads = [head for mode, letters in SHORT.items() for head in (*letters, mode)]
    lines = ["", f"### {question['question']}", "", f"`{json.dumps(question['gold'], ensure_ascii=False)}`", ""]
    lines += [f"| what | completion | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for case in question["cases"]:
        kind, what = next(iter(case.items()))
        shown = escaped(case.get("text", f"answer: {case.get('answer')}"))
        cells = [cell for mode in SHORT for cell in scored(mode, case, question["gold"])]
        lines.append(f"| {kind}: {what} | `{shown}` | {' | '.join(cells)} |")
    return lines


def escaped(text: str) -> str:
    """A completion as a cell of a table shows it."""
    return text.replace("\n", "⏎").replace("|", "\\|") or " "


def reward_row(name: str) -> str:
    low, high = rewards.RANGES[name]
    weights = " | ".join(f"{dict(REWARDS[mode]).get(name, '')}" for mode in SHORT)
    says = " ".join((rewards.REWARDS[name].__doc__ or "").split())
    return f"| `{name}` | {'no lower end' if low == -math.inf else f'{low:g}'} to {high:g} | {weights} | {says} |"


def disagreements() -> tuple[int, int, int]:
    """How many responses of the fixture are right by MathVista's rule alone, by ours alone, and how many there are."""
    _, *lines = (DOCS.parent / "tests/fixtures/mathvista_scores.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = []
    for row in map(json.loads, lines):
        precision = None if row["precision"] is None else int(row["precision"])
        pairs.append((row["correct"], answers.same(row["response"], row["answer"], row["choices"] or (), precision)))
    return pairs.count((True, False)), pairs.count((False, True)), len(pairs)
