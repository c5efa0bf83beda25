"""docs/reward_logic_video.md: what the rewards of clips pay, and the scores of the completions in its yaml file. Called by generate.py."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from docs.reward_logic import escaped
from qwen_vl_grpo import rewards
from qwen_vl_grpo.tasks import video_actions, video_grounding

DOCS = Path(__file__).parent
TASKS = {"documented": video_actions.REWARDS["documented"], "strict": video_actions.REWARDS["strict"], "grounding": video_grounding.REWARDS}

PAGE = """\
# Reward logic of clips
{notice}
The task `video_actions` asks which actions happen in a clip, and `video_grounding` when something happens. Both answers stand in
`<think>…</think> <answer>…</answer>`. `task.mode` chooses the rewards of `video_actions`: `strict` is the default, `documented` pays the
published values with their holes. `video_grounding` has strict rewards alone. A list under `rewards:` goes before both.

| reward | task | weight | it pays, 0 to 1 |
|---|---|---|---|
{rewards}

The weighted total is multiplied by `reward_scale`. TRL logs `rewards/<name>/mean` of each, the weighted total as `reward`, and with
`beta` above 0 the distance from the reference as `kl`; evaluations report the mean of the same rewards.

## What an answer is

- **Actions** are a list of numbers in brackets, `(1) (3)` or `(1) reach (3) move`. A number is the place of an action among those that the
  question offers as (1), (2), … (or those of the column `choices`); the name may be left out, and has to be that action's own. The order
  tells nothing. Commas, line breaks and "and" may stand between. A number twice, a number that is not offered, another action's name and
  any other word make it no list, which earns nothing. Where the question offers none, the numbers only count and the names are compared.
- **Right** (`correct`) is the gold set and no other; the reward is the intersection of the two sets over their union (IoU). To name every
  action is not worth more than one good guess: of n, with one right, it earns 1/n.
- **Segments** are a list of `start to end`, in seconds, with a comma, semicolon, line break or "and" between. Those that overlap count
  each second once; one of no length counts for nothing; one that ends before it starts makes it no list. Nothing is cut to the clip: a
  segment beyond its end pays for its whole length. The reward is IoU in seconds, and `correct` an IoU of at least {enough}.
- **The form**: each tag once, the two blocks and nothing else; end-of-turn tokens at the end are taken off first. What is not in the form
  earns nothing for its answer. Whether there is a thought in the think block is not asked.
- **A gold answer** that is no such list is an error of its row (`grpo validate` names it), and never a reward of 0 or 1 by accident. The
  documented accuracy finds no number in `(B)`, none in "reach" either, and calls the two equal.

## Completions and their scores

{letters}.
The parts are unweighted, the totals weighted. A line break is written ⏎, GOOD is the first row of a table, and `answer:` is GOOD with
another answer. {count} completions.
{tables}
"""
SHORT = {
    "video_format_reward_func": "f", "video_accuracy_reward_func": "a", "think_format_reward": "F", "actions_reward": "A",
    "segments_reward": "S",
}  # fmt: skip
"""A letter for each reward."""


def page(notice: str) -> str:
    """Score every completion under each set of rewards that its question has."""
    questions = load()
    rows = [(name, mode, weight) for mode, listed in TASKS.items() for name, weight in listed]
    return PAGE.format(
        notice=notice,
        rewards="\n".join(
            f"| `{name}` | {'`video_grounding`' if mode == 'grounding' else f'`video_actions`, {mode}'} | {weight} | {said(name)} |"
            for name, mode, weight in rows
        ),
        enough=video_grounding.ENOUGH,
        letters=", ".join(f"{letter}: `{name}`" for name, letter in SHORT.items()),
        count=sum(len(question["cases"]) for question in questions),
        tables="\n".join(line for question in questions for line in table(question)),
    )


@cache
def load() -> list[dict[str, Any]]:
    """The questions with their completions; each case has its kind as first key: right, part, wrong or hack."""
    return yaml.safe_load((DOCS / "reward_logic_video.yaml").read_text(encoding="utf-8"))


def modes(question: dict[str, Any]) -> tuple[str, ...]:
    """The sets of rewards for a question: those of segments where the gold answer is no list of actions."""
    return ("documented", "strict") if question["gold"]["answer"].startswith("(") else ("grounding",)


def completion(case: dict[str, str], question: dict[str, Any]) -> str:
    """The text that a case stands for."""
    good = question["cases"][0]["text"]
    if "answer" in case:
        return good.replace(question["gold"]["answer"], case["answer"])
    return case["text"].replace("GOOD", good)


def scored(mode: str, case: dict[str, str], question: dict[str, Any]) -> dict[str, float]:
    """The parts of one completion's reward, and their weighted sum under the name of the mode."""
    columns = {key: [value] for key, value in question["gold"].items()}
    text = completion(case, question)
    parts = {name: rewards.REWARDS[name](completions=[text], **columns)[0] or 0.0 for name, _ in TASKS[mode]}
    return parts | {mode: sum(parts[name] * weight for name, weight in TASKS[mode])}


def table(question: dict[str, Any]) -> list[str]:
    heads = [SHORT.get(name, name) for mode in modes(question) for name in (*dict(TASKS[mode]), mode)]
    lines = ["", f"### {question['question']}", "", f"`{json.dumps(question['gold'], ensure_ascii=False)}`", ""]
    lines += [f"| what | completion | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for case in question["cases"]:
        kind, what = next(iter(case.items()))
        shown = escaped(case.get("text", f"answer: {case.get('answer')}"))
        scores = {name: score for mode in modes(question) for name, score in scored(mode, case, question).items()}
        cells = [f"**{score:.4g}**" if name in TASKS else f"{score:.4g}" for name, score in scores.items()]
        lines.append(f"| {kind}: {what} | `{shown}` | {' | '.join(cells)} |")
    return lines


def said(name: str) -> str:
    return " ".join((rewards.REWARDS[name].__doc__ or "").split())
