"""Are the services of a run reached from here, and does this clock agree with theirs? One question each, without a token."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime

from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.findings import Finding

SECONDS = 5.0
"""How long a service may take to answer."""
SKEW = 60.0
"""Seconds of difference from which signed uploads and certificates begin to fail."""


def reachable(config: RunConfig) -> list[Finding]:
    """Ask the Hub, W&B and the endpoint of the judge at the same time; what is offline by a setting is not asked."""
    hub = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    tracker = os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
    asked = {"Hub": (hub, "HF_TOKEN", "HF_HUB_OFFLINE is set" if offline else "")}
    mode = os.environ.get("WANDB_MODE") or "online"
    silent = f"WANDB_MODE is {mode}" if mode != "online" else ""
    asked["W&B"] = (tracker, "WANDB_API_KEY", silent if "wandb" in config.tracking.trackers else "tracking.report_to does not name it")
    if config.judge is not None and config.judge.remote:
        asked["judge"] = (config.judge.address, "OPENAI_API_KEY", "")
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda item: ask(item[0], *item[1]), asked.items()))
    skews = [skew for _, skew in answers if skew is not None]
    return [found for found, _ in answers] + ([clock(max(skews, key=abs))] if skews else [])


def ask(name: str, address: str, secret: str, unasked: str) -> tuple[Finding, float | None]:
    """Whether a service answers at all, whatever it says, and by how many seconds its clock is ahead of ours."""
    if unasked:
        return Finding(name, "ok", f"not asked: {unasked}"), None
    started = time.time()
    try:
        request = urllib.request.Request(address, method="HEAD", headers={"User-Agent": "grpo-doctor"})  # noqa: S310 - the user's own address
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
            headers = answer.headers
    except urllib.error.HTTPError as error:  # a refusal is an answer
        headers = error.headers
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        remedy = (
            "start it, or correct judge.base_url (docs/judges.md)"
            if name == "judge"
            else "set HTTPS_PROXY, or work offline (HF_HUB_OFFLINE=1, WANDB_MODE=offline) with what is cached"
        )
        return Finding(name, "warn", f"{address} is not reached from here ({reason})", remedy), None
    ended = time.time()
    token = f"{secret} is set" if os.environ.get(secret) else f"no {secret}"
    found = Finding(name, "ok", f"{address} answers in {1000 * (ended - started):.0f} ms; {token}", figures={"seconds": ended - started})
    stated = headers.get("Date")
    return found, parsedate_to_datetime(stated).timestamp() - (started + ended) / 2 if stated else None


def clock(skew: float) -> Finding:
    """Whether this machine's clock is right enough."""
    figures = {"seconds": skew}
    if abs(skew) <= SKEW:
        return Finding("clock", "ok", f"{skew:+.0f} s from the services' (they tell whole seconds)", figures=figures)
    return Finding("clock", "warn", f"this clock is {abs(skew):.0f} s {'behind' if skew > 0 else 'ahead'}", "let NTP set it", figures)
