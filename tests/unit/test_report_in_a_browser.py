"""Covers the comparison page in a real browser: no script but its own, no network, keyboard, dark, print."""

import base64
import json
import os
import random
import re
from pathlib import Path

import pytest
from PIL import Image

from benchmarks import chromium
from qwen_vl_grpo import gallery, registry, report, tasks
from qwen_vl_grpo.audit import audit
from qwen_vl_grpo.config import TaskSection
from qwen_vl_grpo.interfaces import RunCard, Sample

pytestmark = pytest.mark.skipif(
    chromium.installed() is None and os.environ.get("CI") != "true", reason="no Chromium on this machine (Debian: apt-get install chromium)"
)
EVIL = '</pre></style></script><script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'
SCORED = {"correct": 0.5, "interval": [0.3, 0.7], "format": 0.75, "n": 40, "rows": 20}


@pytest.fixture(scope="module")
def browser():
    with chromium.Chromium() as running:
        yield running


@pytest.fixture
def opened(browser, tmp_path):
    """Open the page of two runs of 400 steps whose completions attack it; returns the browser."""
    for number, run_id in enumerate(("one", "two")):
        folder = tmp_path / run_id
        folder.mkdir()
        draw = random.Random(number)
        rows = [{"step": step, "reward": step / 200 + draw.gauss(0, 0.1), "num_tokens": step} for step in range(1, 401)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        sample = Sample("7", [{"role": "user", "content": EVIL}], [Image.new("RGB", (30, 20), "red")], "4")
        gallery.keep(folder, "after", tasks.build(TaskSection()), [sample], [[EVIL]])
        metrics = {"before": {"greedy": SCORED | {"correct": 0.35}}, "after": {"greedy": SCORED}}
        card = {"run_id": run_id, "task": "visual_reasoning", "base_model": EVIL, "state": "finished", "metrics": metrics}
        registry.write(RunCard(**card, config={"seed": number, "note": EVIL + run_id}), folder)
    page = report.compare(["one", "two"], tmp_path / "out")[0]
    browser.events.clear()
    browser.send("Emulation.setEmulatedMedia", media="", features=[])
    browser.open(Path(page))
    return browser


def test_strangers_text_is_shown_and_never_run(opened):
    assert opened.value("document.title") == "one and two"
    assert opened.value("document.querySelectorAll('script').length") == 1
    assert opened.value("[...document.querySelectorAll('pre')].every(block => block.textContent.includes('<script>document.title'))")


def test_a_script_that_got_into_the_page_would_not_run(opened):
    opened.value(
        "(() => { const one = document.createElement('script'); one.textContent = 'document.title = 1'; document.body.append(one) })()"
    )
    opened.value("document.body.insertAdjacentHTML('beforeend', '<img src=\"data:,\" onerror=\"document.title = 1\">')")
    opened.value("new Promise(done => setTimeout(done, 100))")
    assert opened.value("document.title") == "one and two"


def test_nothing_is_asked_of_the_network_and_nothing_complains(opened):
    asked = [event["params"]["request"]["url"] for event in opened.events if event["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in asked if url.startswith("file:")]) == 1
    assert [event["params"] for event in opened.events if event["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")] == []


def test_the_picture_is_shown(opened):
    assert (
        opened.value("(async () => { const shown = document.querySelector('img'); await shown.decode(); return shown.naturalWidth })()")
        == 30
    )


def test_a_tick_hides_a_run_everywhere_and_the_keyboard_can_do_it(opened):
    shown = "[...document.querySelectorAll('main .of-1')].filter(part => getComputedStyle(part).display !== 'none').length"
    assert opened.value(shown) > 5
    for _ in range(20):
        opened.press("Tab")
        if opened.value("document.activeElement.id") == "run-1":
            break
    opened.press(" ", " ")
    assert opened.value(shown) == 0


def test_the_arrow_keys_read_a_curves_values(opened):
    opened.value("document.querySelector('svg.chart').focus()")
    opened.press("End")
    said = opened.value("document.querySelector('output').textContent")
    step, one, _ = re.fullmatch(r"step (\d+) one (\S+) two (\S+)", said).groups()
    assert (int(step), float(one)) == (pytest.approx(399, abs=2), pytest.approx(2, abs=0.2))
    opened.press("Home")
    assert opened.value("document.querySelector('output').textContent").startswith(("step 1", "step 2"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_the_paper_in_light_and_dark(opened, scheme):
    opened.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    paper = luminance(opened.value("getComputedStyle(document.body).backgroundColor"))
    assert (paper < 0.1) == (scheme == "dark")
    for selector, least in (("body", 7), (".quiet", 4.5), ("nav a", 4.5), (".verdict", 4.5)):
        ink = luminance(opened.value(f"getComputedStyle(document.querySelector({selector!r})).color"))
        assert contrast(ink, paper) >= least, selector
    lines = opened.value("[...Array(8).keys()].map(n => getComputedStyle(document.documentElement).getPropertyValue('--c' + n))")
    assert all(contrast(luminance(line), paper) >= 3 for line in lines), lines


@pytest.mark.parametrize("width", [360, 1400])
def test_the_page_itself_never_scrolls_sideways(opened, width):
    opened.send("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    assert opened.value("document.documentElement.scrollWidth") <= width
    opened.send("Emulation.clearDeviceMetricsOverride")


def test_it_prints_with_the_completions_open(opened):
    opened.send("Emulation.setEmulatedMedia", media="print")
    opened.value("new Promise(done => requestAnimationFrame(done))")
    assert opened.value("document.querySelector('pre').checkVisibility({contentVisibilityAuto: true})")
    assert opened.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert base64.b64decode(opened.send("Page.printToPDF")["data"]).startswith(b"%PDF")


def test_the_page_of_an_audit_is_as_safe_and_fits_a_narrow_window(opened, tmp_path):
    opened.events.clear()
    opened.send("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=False)
    opened.open(audit("one", tmp_path / "audit.html")[0])
    assert opened.value("document.title") == "Audit of one"
    assert opened.value("document.documentElement.scrollWidth") <= 360
    opened.send("Emulation.clearDeviceMetricsOverride")
    asked = [event["params"]["request"]["url"] for event in opened.events if event["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked[1:] if not url.startswith("data:")] == []
    assert [event["params"] for event in opened.events if event["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")] == []


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb or rgb(r, g, b) (WCAG 2.2)."""
    colour = colour.strip()
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)] if colour.startswith("#") else [int(part) for part in colour[4:-1].split(",")]
    linear = [part / 255 / 12.92 if part / 255 <= 0.04045 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)
