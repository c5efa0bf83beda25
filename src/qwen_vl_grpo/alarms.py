"""What goes wrong in GRPO without an error, with its likely cause and what to do.

Pure functions over the metrics of steps (the lines of metrics.jsonl that hold a reward, with what was measured on held-out rows
since the line before), so that an old run can be asked again. A window counts steps and not lines; nothing is said before one is
full. An alarm stops a run only where `alarms.stop` names it: what must stop any run (a gradient that is not a number, rollouts
that are not the policy's own) raises where it is found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Entry = Mapping[str, Any]

STEPS = 20
"""Steps in a window: a single step of the demonstration's runs is cut off at 0.55 and back at 0.02 ten steps later."""
CLIPPED_SHARE = 0.5
"""Half of what is sampled has no end, so no answer, and the reward mostly tells short from long."""
SPREADLESS_SHARE = 0.95
"""Less than a twentieth of the samples moves the policy; the demonstration ends below 0.85, with almost every row right."""
FORMAT_RISE, CORRECTNESS_RISE = 0.25, 0.02
"""Of the largest value seen so far. A format is learned first, so its rise must be large and the other's within noise."""
LENGTH_SHARE = 0.5
"""Of the first window's length: half of the reasoning is gone."""
LENGTH_GROWTH = 2.0
"""Of the first window's length; a policy that earns more by reasoning longer is what GRPO is for, and no alarm."""
KL = 1.0
"""Nats a token from the reference: what the policy samples is then e times as likely to it, token by token."""
MASKED_SHARE = 0.25
"""A quarter of what was sampled is cut off at the bound of the importance weights, or thrown away."""
FAILED_SHARE = 0.05
"""One picture in twenty earns nothing because nobody judged it; `judge.most_failures` ends a run at its own share."""
EMPTY_SHARE = 0.1
"""A completion without a word has no score, so none that is bad: in the sign demonstration, tried so, a quarter of a step fell silent."""
INDEPENDENT = ("eval/greedy/correct", "eval/greedy/quality", "eval/greedy/official")
"""What is measured on rows that are not trained on, and not by the reward."""
FALL, REWARD_RISE = 0.1, 0.05
"""Of the best measured, twice in a row; and of the largest reward."""
SLOWER = 2.0
"""Times the first window's seconds a step, for each token of a completion."""
ENTROPY_SHARE, SOLVED_SHARE = 0.1, 0.8
"""A tenth of the first window's entropy is what is left where rewards stop rising in arXiv 2505.22617; a policy that earns 0.8 of the
best reward that any group has shown is sure because it is right."""
SAMPLE_SIZE, LOGP_GAP = 0.5, 0.1
"""Half of the samples weigh nothing; and the parity gate's bound for bfloat16 (docs/rollouts.md)."""


@dataclass(frozen=True)
class Alarm:
    """`seen` says what is wrong in the first and the last window, or None; `advice` is the likely cause and what to do."""

    name: str
    seen: Callable[[Sequence[Entry], Sequence[Entry]], str | None]
    advice: str


def active(entries: Sequence[Entry]) -> dict[str, str]:
    """Name -> text of every alarm that holds at the last entry."""
    if not entries:
        return {}
    found = {alarm.name: alarm.seen(entries, window(entries)) for alarm in ALARMS}
    return {alarm.name: f"{seen}. {alarm.advice}" for alarm in ALARMS if (seen := found[alarm.name])}


class Watch:
    """The alarms of a run as its steps come in; `rang` is its history, ready for the card."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.measured: dict[str, Any] = {}
        self.rang: list[dict[str, Any]] = []
        self.on: dict[str, dict[str, Any]] = {}

    def update(self, entry: Entry) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Take in a line of metrics and return the alarms that started with it and those that ended; a score waits for its step."""
        if "reward" not in entry:
            self.measured |= {key: entry[key] for key in INDEPENDENT if key in entry}
            return [], []
        self.entries.append(self.measured | dict(entry))
        self.measured = {}
        texts = active(self.entries)
        ended = [self.on.pop(name) for name in [*self.on] if name not in texts]
        started = [{"name": name, "first_step": entry["step"], "text": text} for name, text in texts.items() if name not in self.on]
        self.on |= {alarm["name"]: alarm for alarm in started}
        self.rang += started
        for alarm in self.on.values():
            alarm["last_step"] = entry["step"]
        return started, ended


def replay(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The alarms that a finished run's metrics would have raised: name, first step, last step, text."""
    watch = Watch()
    for entry in entries:
        watch.update(entry)
    return watch.rang


def window(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The entries of the last STEPS steps, or none before there are as many."""
    last = entries[-1]["step"]
    cadence = entries[1]["step"] - entries[0]["step"] if len(entries) > 1 else 1
    full = last - entries[0]["step"] + cadence >= STEPS
    return [entry for entry in entries if entry["step"] > last - STEPS] if full else []


def opening(entries: Sequence[Entry], recent: Sequence[Entry]) -> Sequence[Entry]:
    """The entries of the first STEPS steps, or none while they are among the last."""
    first = [entry for entry in entries if entry["step"] < entries[0]["step"] + STEPS]
    return first if recent and first[-1]["step"] < recent[0]["step"] else []


def mean(entries: Sequence[Entry], key: str) -> float | None:
    """Mean of a metric over the entries that have it as a number."""
    values = [entry[key] for entry in entries if is_number(entry.get(key))]
    return sum(values) / len(values) if values else None


def is_number(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def _clipped(_: Sequence[Entry], recent: Sequence[Entry]) -> str | None:
    share = mean(recent, "completions/clipped_ratio")
    return f"{share:.2f} of the completions were cut off at max_completion_length" if share and share >= CLIPPED_SHARE else None


def _without_spread(_: Sequence[Entry], recent: Sequence[Entry]) -> str | None:
    key = "groups/without_spread" if "groups/without_spread" in (recent or [{}])[-1] else "frac_reward_zero_std"
    share = mean(recent, key)
    return f"{share:.2f} of the groups earn one reward alike, and teach nothing" if share and share >= SPREADLESS_SHARE else None


def _format_alone(entries: Sequence[Entry], recent: Sequence[Entry]) -> str | None:
    first = opening(entries, recent)
    names = [key for key in (recent or [{}])[-1] if key.startswith("rewards/") and key.endswith("/mean")]
    rises = {key: _rise(entries, first, recent, key) for key in names}
    forms = [key for key in names if any(word in key for word in ("format", "formed")) and rises[key] >= FORMAT_RISE]
    right = [key for key in names if any(word in key for word in ("correct", "accuracy"))]
    if not first or not forms or not right or any(rises[key] > CORRECTNESS_RISE for key in right):
        return None
    told = ", ".join(f"{key.split('/')[1]} {mean(first, key):.2f} -> {mean(recent, key):.2f}" for key in (*forms, *right))
    return f"the format is learned and the task is not ({told})"


def _rise(entries: Sequence[Entry], first: Sequence[Entry], recent: Sequence[Entry], key: str) -> float:
    before, after = mean(first, key), mean(recent, key)
    largest = max((abs(entry[key]) for entry in entries if is_number(entry.get(key))), default=0.0)
    return (after - before) / largest if before is not None and after is not None and largest else 0.0


def _short(entries: Sequence[Entry], recent: Sequence[Entry]) -> str | None:
    before, after = (mean(part, "completions/mean_length") for part in (opening(entries, recent), recent))
    if not before or after is None or after >= LENGTH_SHARE * before:
        return None
    return f"completions shrank from {before:.0f} to {after:.0f} tokens"


def _long(entries: Sequence[Entry], recent: Sequence[Entry]) -> str | None:
    first = opening(entries, recent)
    before, after = (mean(part, "completions/mean_length") for part in (first, recent))
    longer = before and after is not None and after >= LENGTH_GROWTH * before
    if not longer or _rise(entries, first, recent, "reward") > CORRECTNESS_RISE:
        return None
    return f"completions grew from {before:.0f} to {after:.0f} tokens and earn no more"


def _entropy(entries: Sequence[Entry], recent: Sequence[Entry]) -> str | None:
    before, after = (mean(part, "entropy") for part in (opening(entries, recent), recent))
    best = max((entry["groups/best"] for entry in entries if is_number(entry.get("groups/best"))), default=None)
    earned = mean(recent, "reward")
    if not before or after is None or after >= ENTROPY_SHARE * before or best is None or earned is None or earned >= SOLVED_SHARE * best:
        return None
    return f"entropy fell from {before:.2g} to {after:.2g} nats a token at a reward of {earned:.2f}, where groups have shown {best:.2f}"


def _silent(_: Sequence[Entry], recent: Sequence[Entry]) -> str | None:
    share = mean(recent, "rendered/empty")
    return f"{share:.2f} of the completions have no word to draw" if share and share >= EMPTY_SHARE else None


def _not_a_number(entries: Sequence[Entry], _: Sequence[Entry]) -> str | None:
    last = entries[-1]
    parts = [key for key in last if key.startswith("rewards/") and key.endswith("/mean")]
    broken = [key for key in ("loss", "grad_norm", "reward", *parts) if key in last and not is_number(last[key])]
    return f"no number in {', '.join(broken)}" if broken else None


def _zero(_: Sequence[Entry], recent: Sequence[Entry]) -> str | None:
    nothing = recent and all(entry.get("reward") == 0 and not entry.get("reward_std") for entry in recent)
    return f"no completion has earned anything for {STEPS} steps" if nothing else None


def _kl(_: Sequence[Entry], recent: Sequence[Entry]) -> str | None:
    apart = mean(recent, "kl")
    return f"the policy is {apart:.2g} nats a token from its reference" if apart is not None and apart >= KL else None


def _unjudged(_: Sequence[Entry], recent: Sequence[Entry]) -> str | None:
    share = mean(recent, "rendered/failed")
    return f"{share:.2f} of the pictures could not be drawn or judged" if share and share >= FAILED_SHARE else None


def _reward_alone(entries: Sequence[Entry], recent: Sequence[Entry]) -> str | None:
    for name in INDEPENDENT:
        *earlier, before, last = [(0, 0.0)] * 3 + [(entry["step"], entry[name]) for entry in entries if is_number(entry.get(name))]
        step, best = max(earlier, key=lambda pair: pair[1])
        then = [entry for entry in entries if step - STEPS < entry["step"] <= step]
        fell = best and max(before[1], last[1]) <= (1 - FALL) * best
        if fell and _rise(entries, then, recent, "reward") >= REWARD_RISE:
            return (
                f"the reward rose from {mean(then, 'reward'):.2f} to {mean(recent, 'reward'):.2f} "
                f"while {name} fell from {best:.2f} at step {step} to {last[1]:.2f}"
            )
    return None


def _slow(entries: Sequence[Entry], recent: Sequence[Entry]) -> str | None:
    first = opening(entries, recent)
    before, after = mean(first, "step_time"), mean(recent, "step_time")
    if not before or after is None:
        return None
    longer = (mean(recent, "completions/mean_length") or 1) / (mean(first, "completions/mean_length") or 1)
    return f"a step takes {after:.1f} s, before {before:.1f} s" if after >= SLOWER * before * max(1.0, longer) else None


def _disagreement(_: Sequence[Entry], recent: Sequence[Entry]) -> str | None:
    size, gap = mean(recent, "rollouts/effective_sample_size"), mean(recent, "rollouts/logp_difference/mean")
    if size is not None and size < SAMPLE_SIZE:
        return f"the importance weights leave {size:.2f} of the samples"
    masked = mean(recent, "rollouts/masked_share")
    if masked is not None and masked >= MASKED_SHARE:
        return f"{masked:.2f} of the importance weights are cut off or masked"
    return f"vLLM's log-probabilities differ from the trainer's by {gap:.2g} a token" if gap is not None and gap > LOGP_GAP else None


ALARMS = (
    Alarm(
        "clipped", _clipped,
        "Raise max_completion_length; if the text rambles, reward its end (strict_format_reward_func) or lower temperature",
    ),
    Alarm(
        "groups_without_spread", _without_spread,
        "All right: the data is too easy, so stop here or take harder rows. All wrong: the rows are too hard or the reward too strict. "
        "In both cases leave such rows out (`grpo probe`, data.filter; dynamic_sampling), or raise num_generations or temperature",
    ),
    Alarm(
        "format_without_correctness", _format_alone,
        "The format's weight drowns the rest, or its reward can be earned without an answer: lower its weight under rewards, and read "
        "the completions",
    ),
    Alarm("length_collapse", _short, "A reward pays for short answers, or the format can be met without reasoning: read the completions"),
    Alarm(
        "length_runaway", _long,
        "Length costs nothing and hides the answer: lower max_completion_length, keep loss_type: dapo, or reward the end of the text",
    ),
    Alarm("entropy_collapse", _entropy, "The policy tries nothing else: lower learning_rate, raise temperature, or set beta above 0"),
    Alarm("kl", _kl, "The policy has left its base: lower learning_rate, raise beta, or go on from an earlier checkpoint with init_from"),
    Alarm(
        "reward_alone", _reward_alone,
        "The reward is met without the task, or the policy overfits its rows: read the best-paid completions, stop here, and take the "
        "checkpoint that keep_best names",
    ),
    Alarm(
        "judge_failures", _unjudged,
        "Those completions teach nothing, and if they are of one kind the rest is biased: see training.log for the first failure; "
        "limits are judge.requests_per_minute and judge.timeout",
    ),
    Alarm(
        "silent", _silent,
        "A bad picture costs the policy something and silence nothing: lower learning_rate, set beta above 0, or add a reward for words "
        "under rewards",
    ),
    Alarm("not_a_number", _not_a_number, "A reward judged nothing in this step (is its judge down?): see training.log"),
    Alarm(
        "zero_reward", _zero,
        "Nothing can be learned from it: look at the completions and at `grpo infer` of the base; the prompt does not ask for the format "
        "that the rewards want, or answers are cut off",
    ),
    Alarm(
        "slow_step", _slow,
        "Not the completions' length: rollouts/seconds/… and rendered/… say which part grew; a judge or a disk that has become slow, "
        "or another process on the card",
    ),
    Alarm(
        "sampling_disagreement", _disagreement,
        "Run `grpo doctor --rollouts CONFIG`; then importance_correction: sequence_mean, the same dtype on both sides, and temperature 1.0",
    ),
)  # fmt: skip
