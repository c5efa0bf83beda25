"""Covers a comparison of runs: what its three forms say, what becomes of strangers' text, and older or broken runs."""

import csv
import html
import json
import random
from html.parser import HTMLParser

import pytest
from PIL import Image

from qwen_vl_grpo import gallery, journal, registry, report, tasks
from qwen_vl_grpo.config import TaskSection
from qwen_vl_grpo.errors import RegistryError, TrackingError
from qwen_vl_grpo.evaluation import wilson
from qwen_vl_grpo.interfaces import RunCard, Sample
from qwen_vl_grpo.report import answered, curves, drawing, tables, written
from tests.commands import wandb_service

EVIL = '</pre></script><script>document.title="owned"</script><img src=x onerror="document.title=1">\'"&lt;'
SCORED = {"correct": 0.5, "interval": [0.3, 0.7], "format": 0.75, "n": 40, "rows": 20, "rewards": {}}


@pytest.fixture
def keep(tmp_path):
    """Keep a run with a card, metrics and answers; returns its folder."""

    def make(run_id, metrics=None, completion="<reasoning>\nr\n</reasoning>\n<answer>\n4\n</answer>", question="Which digit?", **card):
        folder = tmp_path / "outputs" / run_id
        folder.mkdir(parents=True)
        dataset = {"name": "digits", "held_out": "test"}
        card = {"state": "finished", "dataset": dataset, "metrics": {"before": {"greedy": SCORED}, "after": {"greedy": SCORED}}} | card
        registry.write(RunCard(**{"run_id": run_id, "task": "visual_reasoning", "base_model": "tiny"} | card), folder)
        rows = metrics if metrics is not None else [{"step": step, "reward": step / 10, "num_tokens": 50 * step} for step in range(1, 6)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        sample = Sample("7", [{"role": "user", "content": question}], [Image.new("RGB", (30, 20), "red")], "4")
        gallery.keep(folder, "after", tasks.build(TaskSection()), [sample], [[completion]])
        return folder

    return make


@pytest.fixture
def compare(tmp_path):
    """Compare runs and return the page, the Markdown and the rows of the table."""

    def make(*run_ids):
        page, markdown, table = report.compare(run_ids, tmp_path / "out")
        with open(table, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return *(open(path, encoding="utf-8").read() for path in (page, markdown)), rows

    return make


class Parsed(HTMLParser):
    """The tags of a page and the text of its <pre>, as a browser reads them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.pre, self.inside = [], [], [], False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]
        self.inside = tag == "pre"

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, text):
        if self.inside:
            self.pre.append(text)


def test_what_a_model_or_a_data_set_says_is_text_and_no_code(keep, compare):
    keep("a", completion=EVIL, question=EVIL, base_model=EVIL, config={"trl": {EVIL: EVIL}}, error=EVIL, state="failed")
    keep("b", dataset={"name": EVIL, "held_out": EVIL})
    page, markdown, _ = compare("a", "b")
    parsed = Parsed(page)
    assert parsed.tags.count("script") == 1
    assert EVIL in parsed.pre
    assert not [name for name in parsed.attributes if name.startswith("on")]
    assert "<script" not in markdown and "<img" not in markdown


def test_a_bar_or_a_line_break_in_an_answer_stays_in_its_cell_of_the_markdown(keep, compare):
    keep("a", completion="x | y\n[link](http://example.org) `code`")
    line = next(line for line in compare("a")[1].splitlines() if "after" in line and "link" in line)
    assert line.replace("\\|", "").count("|") == 5
    assert r"x \| y<br>\[link\]\(http://example.org\) \`code\`" in line


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"], ids=repr)
def test_a_formula_in_a_config_is_text_in_a_spreadsheet(keep, compare, start):
    keep("a", config={"task": start + "HYPERLINK(1)"})
    keep("b", config={"task": "-1e-5"})
    assert [row["config: task"] for row in compare("a", "b")[2]] == ["'" + start + "HYPERLINK(1)", "-1e-5"]


def test_an_old_card_alone_is_compared_and_what_is_missing_is_said(compare, tmp_path):
    old = tmp_path / "outputs/old"
    old.mkdir(parents=True)
    (old / "run.json").write_text('{"run_id": "old", "task": "visual_reasoning", "base_model": "tiny"}')
    registry.scan(old)
    page, markdown, rows = compare("old")
    for said in ("has no metrics.jsonl", "no answers to held-out questions in its folder", "has no scores in its card", "state: running"):
        assert said in page
        assert said in markdown
    assert rows[0]["tokens"] == ""


@pytest.mark.parametrize(
    "metrics", [{"before": None}, {"after": {"greedy": 3}}, {"after": {"greedy": {"correct": "x", "interval": 1}}}], ids=str
)
def test_a_card_of_another_shape_has_no_scores_and_is_no_error(keep, compare, metrics):
    folder = keep("a")
    registry.write(registry.read(folder).model_copy(update={"metrics": metrics}), folder)
    assert "a: has no scores in its card" in compare("a")[1]


def test_a_task_that_tells_nothing_right_by_its_words_is_compared_by_its_reward(keep, compare):
    drawn = {"format": 1.0, "n": 8, "rows": 8, "rewards": {"rendered_reward": 0.25, "unjudged": None}}
    better = drawn | {"rewards": {"rendered_reward": 0.5, "unjudged": None}}
    folder = keep("a")
    registry.write(registry.read(folder).model_copy(update={"metrics": {"before": {"greedy": drawn}, "after": {"greedy": better}}}), folder)
    page, markdown, _ = compare("a")
    assert r"| a | greedy answers, mean of rendered\_reward | 8 | 8 | 0.250 | 0.500 | \+0.250 | 1.000 → 1.000 |" in markdown
    assert "has no scores" not in page
    kept = {"completion": "a frog", "format": True, "correct": None}
    assert [answered._answer(kept | changes).verdict for changes in ({}, {"format": False})] == ["", "not well-formed"]


def test_lines_and_values_that_cannot_be_read_are_counted_and_passed_over(keep, compare):
    folder = keep("a", metrics=[{"step": 1, "reward": 1.0}, {"step": 2, "reward": float("nan")}, {"step": 3, "reward": 2.0}])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rew')
    with (folder / "answers.jsonl").open("a") as file:
        file.write("[]\n")
    page, _, rows = compare("a")
    assert "1 lines of metrics.jsonl could not be read" in page
    assert "1 values in metrics.jsonl were no number that can be drawn" in page
    assert "1 lines of answers.jsonl could not be read" in page
    assert (rows[0]["reward: first"], rows[0]["reward: last"]) == ("1.0", "2.0")


@pytest.mark.parametrize("values", [[1e308, 1e308], [-1e99, 1e99], [5e-324, 1e-323], [10**400, True], [1e15, 1e15 + 1], [0, -0.0]], ids=str)
def test_values_of_any_size_are_drawn_or_counted(keep, compare, values):
    keep("a", metrics=[{"step": 10**12 * step, "reward": value, "num_tokens": value, "time": value} for step, value in enumerate(values)])
    page = compare("a")[0]
    assert 'svg class="chart' in page or "no number that can be drawn" in page
    assert "nan" not in page.split("<main>")[1] and ">inf" not in page


def test_joining_keeps_every_extreme_and_the_mean():
    draw = random.Random(0)
    values = [draw.random() for _ in range(5003)]
    values[1234], values[4321] = 99.0, -99.0
    curve = curves.join(list(range(5003)), values)
    assert len(curve.steps) == len(curve.values) == curves.BUCKETS
    assert (max(curve.high), min(curve.low), curve.count) == (99.0, -99.0, 5003)
    assert sum(curve.values) / curves.BUCKETS == pytest.approx(sum(values) / 5003, abs=0.02)
    assert (curve.first, curve.last) == (values[0], values[-1])


def test_a_short_curve_is_drawn_value_by_value():
    curve = curves.join([1, 2, 5], [0.5, 0.1, 0.3])
    assert (curve.steps, curve.values) == ([1, 2, 5], [0.5, 0.1, 0.3])


def test_a_step_that_was_done_again_after_a_resume_counts_once(tmp_path):
    rows = [(1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0), (3, 30.0), (4, 40.0)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"step": step, "reward": value}) + "\n" for step, value in rows))
    curve = curves.read(tmp_path / "metrics.jsonl").curves["reward"]
    assert (curve.steps, curve.values) == ([1, 2, 3, 4], [1.0, 20.0, 30.0, 40.0])


def test_a_line_of_the_attempt_before_does_not_stand_beside_the_one_that_did_its_step_again(tmp_path):
    rows = [(1, 1, 1.0), (2, 1, 2.0), (3, 1, 3.0), (3, 2, 30.0), (4, 2, 40.0)]
    lines = [{"step": step, "attempt": attempt, "reward": value, "time": 10 * step + 100 * attempt} for step, attempt, value in rows]
    lines.insert(3, {"step": 3, "attempt": 1, "eval/greedy/correct": 0.5})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    history = curves.read(tmp_path / "metrics.jsonl")
    curve = history.curves["reward"]
    assert (curve.steps, curve.values) == ([1, 2, 3, 4], [1.0, 2.0, 30.0, 40.0])
    assert "eval/greedy/correct" not in history.curves
    assert history.seconds == 20 + 10


def test_an_older_name_of_a_figure_is_drawn_as_the_same_curve_and_not_beside_it(tmp_path):
    rows = [{"step": 1, "frac_reward_zero_std": 0.5, "groups/without_spread": 0.25}, {"step": 2, "frac_reward_zero_std": 0.75}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert curves.read(tmp_path / "metrics.jsonl").curves["groups/without_spread"].values == [0.25, 0.75]


def test_the_gain_has_newcombes_interval():
    before, after = wilson(48 / 80, 80), wilson(56 / 70, 70)
    difference, interval = tables.gain((48 / 80, 56 / 70), (before, after))
    assert difference == pytest.approx(0.2)
    assert interval == pytest.approx((0.0524, 0.3339), abs=1e-3)  # Newcombe 1998, table II, case (a), method 10


@pytest.mark.parametrize(
    ("low", "high", "ends"),
    [(0.2, 0.9, (0, 1)), (0.95, 0.97, (0.95, 0.97)), (-3, 7, (-4, 8)), (5, 5, (5, 6)), (0, 0, (0, 0.2)), (1e-9, 3e-9, (0, 3e-9))],
)
def test_an_axis_ends_on_round_numbers_around_its_values(low, high, ends):
    bottom, top, ticks = drawing.axis(low, high)
    assert bottom <= low and high <= top and 2 <= len(ticks) <= 7
    assert (bottom, top) == pytest.approx(ends)


def test_scores_of_different_rows_carry_a_warning(keep, compare):
    keep("a")
    keep("b")
    assert "Not the same rows" not in compare("a", "b")[0]
    keep("c", dataset={"name": "digits", "held_out": "validation"})
    assert "digits, test, 20 rows: a; digits, validation, 20 rows: c" in compare("a", "c")[0]


def test_what_differs_is_shown_and_what_is_a_secret_is_not(keep, compare):
    keep("a", config={"lora": {"r": 8}, "seed": 0, "trl": {"hub_token": "hf_secret"}})
    keep("b", config={"lora": {"r": 16}, "seed": 0, "trl": {"hub_token": "hf_other"}})
    page, markdown, rows = compare("a", "b")
    assert [row["config: lora.r"] for row in rows] == ["8", "16"]
    assert "config: seed" not in rows[0]
    assert r"| lora.r | 8 | 16 |" in markdown
    assert "hf_secret" not in page + markdown + str(rows)


def test_cost_is_devices_times_hours_and_a_cpu_has_none(keep, compare):
    hours = {"created": "2026-01-01T00:00:00+00:00", "finished": "2026-01-01T02:00:00+00:00"}
    metrics = {"train_seconds": 3600.0, "peak_gib": 41.5}
    keep("gpu", hardware={"kind": "rocm", "devices": 4, "name": "MI300X"}, **hours)
    folder = keep("cpu", hardware={"kind": "cpu", "devices": 0, "cores": 2}, **hours)
    for run in (folder, folder.parent / "gpu"):
        registry.write(registry.read(run).model_copy(update={"metrics": metrics}), run)
    gpu, cpu = compare("gpu", "cpu")[2]
    assert (gpu["GPU-hours of GRPO"], gpu["GPU-hours, whole run"], gpu["tokens"]) == ("4.0", "8.0", "250.0")
    assert (cpu["GPU-hours of GRPO"], cpu["whole run, hours"], cpu["hardware"]) == ("", "2.0", "2 cores, no GPU")


def test_a_run_on_two_machines_had_the_cards_of_both(keep, compare):
    folder = keep("two", hardware={"kind": "cuda", "devices": 8, "name": "H200", "processes": 16})
    registry.write(registry.read(folder).model_copy(update={"metrics": {"train_seconds": 3600.0}}), folder)
    (row,) = compare("two")[2]
    assert (row["GPU-hours of GRPO"], row["hardware"]) == ("16.0", "16 x H200")


def test_hours_of_a_resumed_run_are_those_of_its_attempts_without_the_pauses(keep, compare):
    hours = {"created": "2026-01-01T00:00:00+00:00", "finished": "2026-01-03T02:00:00+00:00"}
    attempts = [{"start": "2026-01-01T00:00:00+00:00", "end": "2026-01-01T01:00:00+00:00"}]
    attempts += [{"start": "2026-01-03T00:00:00+00:00", "end": "2026-01-03T02:00:00+00:00"}]
    clock = [(1, 1, 0), (5, 1, 3600), (5, 2, 90_000), (9, 2, 97_200)]
    metrics = [{"step": step, "attempt": attempt, "time": moment, "reward": 0.5} for step, attempt, moment in clock]
    folder = keep("a", metrics=metrics, attempts=attempts, hardware={"kind": "cuda", "devices": 2, "name": "H100"}, **hours)
    registry.write(registry.read(folder).model_copy(update={"metrics": {"train_seconds": 7200.0}}), folder)
    (row,) = compare("a")[2]
    assert (row["whole run, hours"], row["GRPO, hours"], row["GPU-hours, whole run"]) == ("3.0", "3.0", "6.0")
    assert row["measured by"] == "the metrics' clock"


def test_answers_to_the_same_question_stand_together_and_others_are_counted(keep, compare):
    keep("a", completion="first answer")
    keep("b", completion="second answer")
    page, markdown, _ = compare("a", "b")
    assert page.count("<article>") == 1
    assert page.count("data:image/png;base64,") == 1
    assert "first answer" in markdown and "second answer" in markdown
    keep("c", dataset={"name": "charts"})
    assert "1 questions that fewer runs answered are left out" in compare("a", "b", "c")[0]
    assert "No question was answered by two of these runs" in compare("b", "c")[0]


def asked(folder, run_id, item, completion, pictures=(), **changes):
    """A record as `grpo infer --input` keeps it."""
    sha = registry.checkpoint_sha(registry.read(folder))
    record = {"run_id": run_id, "sha": sha, "item": item, "prompt": f"Why {item}?", "error": None}
    record |= {"image_sha256": ["0" * 64], "pictures": pictures, "completion": completion, "well_formed": False}
    return json.dumps(record | {"time": "2026-03-04T05:06:07+00:00"} | changes) + "\n"


def test_answers_to_a_file_of_questions_stand_side_by_side_with_their_pictures(keep, compare):
    a, b = keep("a", checkpoint_files={"x": "1"}), keep("b", checkpoint_files={"x": "2"})
    journal.folder().mkdir(parents=True)
    picture = gallery.keep_picture(journal.folder(), Image.new("RGB", (30, 20), "blue"))
    lines = [asked(a, "a", "q1", answer, [picture]) for answer in ("earlier", "from a <b>")] + [asked(b, "b", "q1", "from b", [picture])]
    lines += [asked(a, "a", "q2", "of one alone", ["../../secret.png"]), asked(b, "b", "q1", "of other weights", sha="0" * 64)]
    lines += [asked(b, "b", "q3", "not kept", pictures=None), asked(b, "b", "q1", "", error="at fault"), "{half\n"]
    (journal.folder() / "in-0123.jsonl").write_text("".join(lines))
    (journal.folder() / journal.PROMPTS).write_text(asked(a, "a", "prompt", "single", []))
    page, markdown, _ = compare("a", "b")
    since = page.split("Files of questions asked since")[1]
    assert since.count("<article>") == 1
    assert since.count("data:image/png;base64,") == 1
    assert "from a &lt;b&gt;" in since and "from b" in since and "2026-03-04" in since and "Why q1?" in since
    for absent in ("earlier", "of other weights", "single", "not kept", "of one alone", "Gold"):
        assert absent not in since
    assert "| b | 2026-03-04 | not well-formed | from b |" in markdown
    assert "of one alone" in compare("a")[0]
    assert "The picture ../../secret.png is not there" in compare("a")[0]


def test_without_files_of_questions_there_is_no_part_for_them(keep, compare):
    keep("a")
    page, markdown, _ = compare("a")
    assert "asked since" not in page
    assert "files of questions" not in markdown


def test_a_long_completion_is_cut_and_says_so(keep, compare):
    keep("a", completion="x" * 5000)
    assert "x" * 4000 + "\n… and 1,000 characters more, in answers.jsonl</pre>" in compare("a")[0]


@pytest.mark.parametrize("name", ["../../secret.png", "/etc/hostname", "answers/../run.json", "answers/0123456789abcdef.svg", 7], ids=str)
def test_a_picture_outside_the_gallery_is_not_read(keep, compare, name):
    folder = keep("a")
    (folder.parent.parent / "secret.png").write_bytes(b"secret")
    item = json.loads((folder / "answers.jsonl").read_text()) | {"pictures": [name]}
    (folder / "answers.jsonl").write_text(json.dumps(item) + "\n")
    page = compare("a")[0]
    assert "data:image" not in page.split("<body>")[1]
    assert f"The picture {html.escape(str(name))} is not there" in page


def test_all_are_the_finished_runs_oldest_first(keep):
    keep("new", created="2026-02-01")
    keep("old", created="2026-01-01")
    keep("stopped", state="interrupted")
    assert [card.run_id for card, _ in report.chosen(["all"])] == ["old", "new"]
    assert [card.run_id for card, _ in report.chosen(["stopped", "all", "new"])] == ["old", "new", "stopped"]
    with pytest.raises(RegistryError, match="no such run; did you mean stopped"):
        report.chosen(["all", "stoped"])


def test_a_run_that_is_named_twice_is_compared_once(keep):
    keep("a")
    assert len(report.chosen(["a", "a"])) == 1


def test_nothing_finished_is_said(keep):
    keep("a", state="running")
    with pytest.raises(RegistryError, match="no run is finished yet"):
        report.compare(["all"])


def test_a_folder_that_cannot_be_written_is_named(keep, tmp_path):
    keep("a")
    (tmp_path / "file").write_text("")
    with pytest.raises(RegistryError, match=r"file: the comparison cannot be written there .*--output"):
        report.compare(["a"], tmp_path / "file")


def test_without_wandb_workspaces_the_files_are_written_and_one_sentence_says_the_rest(keep, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb_workspaces.reports.v2", None)
    keep("a")
    with pytest.raises(TrackingError, match=r"pip install wandb-workspaces`, or open .*comparison\.html"):
        report.compare(["a"], tmp_path / "out", wandb=True)
    assert (tmp_path / "out/comparison.html").is_file()


def test_a_wandb_report_has_the_tables_the_curves_and_the_configs_of_the_runs(keep, tmp_path, monkeypatch):
    pytest.importorskip("wandb_workspaces", reason="this environment is older than requirements/dev.in; run make setup")
    for run_id in ("a", "b"):
        keep(run_id, tracking={"report_to": ["wandb"], "project": "grpo"})
    with wandb_service.served() as service:
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        address = report.compare(["a", "b"], tmp_path / "out", wandb=True)[-1]
        assert address == f"{service.url}/someone/grpo/reports/{service.reports[0]['displayName'].replace(' ', '-')}--VIEW"
    (saved,) = service.reports
    assert (saved["entityName"], saved["projectName"], saved["type"]) == ("someone", "grpo", "runs")
    blocks = {block["type"]: block for block in json.loads(saved["spec"])["blocks"]}
    assert blocks["markdown-block"]["content"] == (tmp_path / "out/comparison.md").read_text(encoding="utf-8")
    shown = blocks["panel-grid"]["metadata"]
    (wanted,) = shown["runSets"][0]["filters"]["filters"]
    assert (wanted["key"], wanted["op"], wanted["value"]) == ({"section": "config", "name": "run_id"}, "IN", ["a", "b"])
    panels = shown["panelBankSectionConfig"]["panels"]
    assert ["train/reward"] in [panel["config"].get("metrics") for panel in panels]
    assert panels[-1]["viewType"] == "Run Comparer"
    assert len({tuple(panel["layout"].values()) for panel in panels}) == len(panels)


def test_a_cell_of_markdown_shows_its_characters_as_they_are():
    assert written._cell("a < b & c") == "a &lt; b &amp; c"
