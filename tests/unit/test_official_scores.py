"""Covers the published numbers of MMMG and Complex-Edit: what their own code said of recorded answers, ours says, too."""

import json
import os
from pathlib import Path

import pytest
from PIL import Image
from pydantic import ValidationError

from demo.judge_server import JudgeServer
from qwen_vl_grpo import knowledge
from qwen_vl_grpo.interfaces import RenderRequest, Source
from qwen_vl_grpo.judges import checklist
from qwen_vl_grpo.judges.editing import Alignment, EditJudge, Quality, scores
from qwen_vl_grpo.rendered_sections import JudgeSection

FIXTURES = Path(__file__).parents[1] / "fixtures"


def fixture(name):
    return map(json.loads, (FIXTURES / name).read_text(encoding="utf-8").splitlines())


MMMG, *PICTURES = fixture("mmmg_scores.jsonl")
COMPLEX_EDIT, *LINES = fixture("complex_edit_scores.jsonl")
EDITS = [line for line in LINES if "overall" in line]
NAMES = ("alignment", "quality", "identity", "official")
TRIED = [line for line in LINES if "accepted" in line]


def test_mmmg_was_run_at_the_named_commit_on_answers_of_every_kind():
    assert MMMG["commit"] == "98bb915a645d6d575dea3700a391966bd317c83a"
    assert len(PICTURES) >= 100
    between = [row for row in PICTURES if 0 < row["ged"] < 1]
    assert len(between) >= 60
    assert {row["ged"] for row in PICTURES} >= {0.0, 1.0}


def test_answers_are_read_as_mmmg_reads_them():
    differing = []
    for row in PICTURES:
        elements, dependencies = checklist.published(row["answer"], row["elements"], row["dependencies"])
        if {"elements": elements, "dependencies": dependencies} != row["read"]:
            differing.append(row)
    assert differing == []


def test_fidelity_and_readability_are_those_of_mmmg():
    for row in PICTURES:
        fidelity = knowledge.fidelity(row["read"]["elements"], row["read"]["dependencies"])
        assert fidelity == pytest.approx(1 - row["ged"], abs=1e-12), row
        if row["regions"] is not None:
            assert fidelity * knowledge.readability(row["regions"]) == pytest.approx(row["score"], abs=1e-12), row


def test_complex_edit_was_run_at_the_named_commit_on_answers_good_and_bad():
    assert COMPLEX_EDIT["commit"] == "3502eaa9e81bc99623bd995106df48c0f921af31"
    assert len(EDITS) >= 100
    assert len({edit["overall"] for edit in EDITS}) > 50
    assert {line["accepted"] for line in TRIED} == {True, False}


def published(edit):
    return pytest.approx(
        [edit[name] for name in ("instruction_following", "perceptual_quality", "identity_preservation", "overall")], abs=1e-12
    )


def test_answers_about_an_edit_get_the_grades_and_the_overall_mean_of_complex_edit():
    for edit in EDITS:
        alignments = map(Alignment.model_validate_json, edit["alignment"])
        qualities = map(Quality.model_validate_json, edit["quality"])
        said = scores(
            [(int(one.instruction_following), int(one.identity_preservation)) for one in alignments],
            [int(one.perceptual_quality) for one in qualities],
        )
        assert [said[name] for name in NAMES] == published(edit), edit


def test_the_judge_gives_those_grades_too(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OPENAI_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    picture = Image.new("RGB", (8, 8))
    request = RenderRequest("Add a red hat.", "", 0, sources=(Source("black", picture),))
    with JudgeServer() as server:
        judge = EditJudge(JudgeSection.model_validate({"name": "complex_edit", "base_url": server.url, "votes": 3}))
        for edit in EDITS[::6]:
            server.answer = lambda asked, edit=edit: edit["alignment" if len(asked.urls) == 2 else "quality"]
            details = judge.judged(request, picture).details
            assert [details[name] for name in NAMES] == published(edit), edit


def test_a_text_is_an_answer_here_where_it_is_one_to_complex_edit():
    def accepted(line):
        try:
            {"alignment": Alignment, "quality": Quality}[line["kind"]].model_validate_json(line["answer"])
        except ValidationError:
            return False
        return True

    assert [line for line in TRIED if accepted(line) != line["accepted"]] == []


def test_the_page_says_how_much_was_compared():
    page = (FIXTURES.parents[1] / "docs/judges_protocols.md").read_text(encoding="utf-8")
    answers = sum(len(edit["alignment"]) + len(edit["quality"]) for edit in EDITS)
    for said in (f"{len(EDITS)} pictures, {answers} answers", f"{len(TRIED)} texts", f"{len(PICTURES)} answers", f"{len(PICTURES)} graphs"):
        assert said in page
    for head in (COMPLEX_EDIT, MMMG):
        assert f"`{head['commit'][:7]}`" in page
    assert f"networkx {MMMG['networkx']}" in page
