"""Covers the story of `grpo evaluate` with tiny policies: run and base, a kill on the way, official scores, rows that were seen."""

import json
import shutil
from dataclasses import replace

import pytest

from demo import digits, edit_rows, knowledge_rows, tiny_qwen_image
from demo.images import answer
from demo.judge_server import JudgeServer
from qwen_vl_grpo import exports, loading, registry, scoring, subjects
from qwen_vl_grpo.errors import ConfigError, DataError, RegistryError
from qwen_vl_grpo.report import evaluated
from tests.made_runs import lines, make_run

ASKED = scoring.Asked(limit=6, samples=2, backend="transformers", batch_size=4)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    digits.write(folder / "digits")
    return folder


@pytest.fixture
def scored(rows, checkpoint, tmp_path):
    """A run on digits whose test split is scored."""
    make_run(
        tmp_path / "runs", "scored", checkpoint("qwen2_5_vl"), 1, dataset_name=str(rows / "digits"), dataset_split="train",
        evaluation={"dataset_split": "test"}, rewards=[{"function": "well_formed_reward"}], data={"limit": 40},
    )  # fmt: skip
    return load("scored")


def load(run_id):
    return loading.load(*registry.resolve(run_id))


def test_a_run_is_scored_and_compared_with_its_base_item_by_item(scored):
    tuned = scoring.evaluate(scored, scored.config, ASKED)
    base = scoring.evaluate(subjects.find("base", None, scored), scored.config, ASKED)
    assert tuned.folder == scored.run_dir / "evaluations" / tuned.result["digest"][:12]
    assert tuned.result["digest"] == base.result["digest"]
    assert [(kind, scores["n"], scores["rows"]) for kind, scores in tuned.result["scores"].items()] == [
        ("greedy", 6, 6),
        ("sampled", 12, 6),
    ]
    assert json.loads((tuned.folder / scoring.RESULT).read_text()) == json.loads(json.dumps(tuned.result))
    changes = scoring.against(base, tuned)
    assert changes["greedy"]["correct"]["n"] == 6
    page = evaluated.markdown(tuned.result, base.result, changes)
    assert "none of the rows is among the 40 that it was trained on" in page
    assert "# scored against base of scored" in page and str(scored.run_dir) not in page
    assert "McNemar, exact" in page and "well-formed and right" in page
    sampled = [record["completion"] for record in tuned.records if record["kind"] == "sampled"]
    assert len(set(sampled)) > 6, "each completion is drawn with a seed of its own"


def test_what_a_kill_left_is_neither_repeated_nor_lost(scored, monkeypatch):
    whole = scoring.evaluate(scored, scored.config, ASKED)
    path = whole.folder / scoring.ITEMS
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * 0.45)])  # in the middle of a line, and of a batch
    kept = path.read_bytes().count(b"\n")
    assert 0 < kept < len(whole.records)
    again = scoring.evaluate(scored, scored.config, ASKED)
    assert [record["item"] for record in again.records] == [record["item"] for record in whole.records]
    assert sorted(path.read_bytes().splitlines()) == sorted(content.splitlines())
    assert again.result["scores"] == whole.result["scores"]
    monkeypatch.setattr(scoring, "TransformersBackend", None)
    assert scoring.evaluate(scored, scored.config, ASKED).records == again.records, "what is whole needs no model"


def test_answers_of_other_weights_are_not_taken_for_the_models(scored, checkpoint, tmp_path):
    folder, asked = tmp_path / "model", scoring.Asked(2, 0, "transformers", 2)
    shutil.copytree(checkpoint("qwen2_5_vl"), folder)
    before = scoring.evaluate(subjects.find(str(folder), scored.config), scored.config, asked)
    shutil.copy(scored.folder / "model.safetensors", folder)
    after = scoring.evaluate(subjects.find(str(folder), scored.config), scored.config, asked)
    assert after.folder == before.folder
    assert [one["completion"] for one in after.records] != [one["completion"] for one in before.records]
    assert len(lines(after.folder / scoring.ITEMS)) == 4
    one_row = scoring.evaluate(scored, scored.config, scoring.Asked(1, 0, "transformers", 2))
    with pytest.raises(DataError, match=r"not asked the same \(rows differ\)"):
        scoring.against(after, one_row)
    shutil.copy(f"{checkpoint('qwen2_5_vl')}/model.safetensors", folder)
    assert scoring.evaluate(subjects.find(str(folder), scored.config), scored.config, asked).records == before.records


def test_rows_that_a_run_was_trained_on_are_said(scored, config_of, rows):
    part = {"dataset_name": str(rows / "digits"), "dataset_split": "train", "evaluation": {"held_out": 0.1}, "data": {"limit": 40}}
    held_out = config_of(**part, max_completion_length=8)
    done = scoring.evaluate(scored, held_out, scoring.Asked(2, 0, "transformers", 2))
    assert done.result["seen"] == {"rows": 2, "trained_rows": 40, "same_split": True}
    assert "2 of the 2 rows show what it was trained on, so its score rewards memory" in evaluated.markdown(done.result)
    make_run(scored.run_dir.parent, "apart", scored.config.model_name, 2, **part)
    apart = scoring.evaluate(load("apart"), held_out, scoring.Asked(2, 0, "transformers", 2))
    assert "other rows of this very split (train); these were held out" in evaluated.markdown(apart.result)
    make_run(scored.run_dir.parent, "further", scored.config.model_name, 3, **part | {"init_from": "scored", "dataset_split": "test"})
    further = scoring.evaluate(load("further"), held_out, scoring.Asked(2, 0, "transformers", 2))
    assert further.result["seen"]["rows"] == 2, "what it started from was trained on them"


def test_who_is_neither_run_nor_model_is_refused(scored, tmp_path):
    with pytest.raises(RegistryError, match="no such run; did you mean scored"):
        subjects.find("scord", None)
    with pytest.raises(ConfigError, match="is a model and no run, so --config has to say what it is asked"):
        subjects.find("Qwen/Qwen2.5-VL-7B-Instruct", None)
    begun_from = replace(scored, card=scored.card.model_copy(update={"parent": {"run_id": "scored"}}))
    assert subjects.find("base", None, begun_from).run_id == "scored", "a run that started from another began there"
    with pytest.raises(RegistryError, match="is no run, so nothing is its base"):
        subjects.find("base", None, subjects.find(scored.config.model_name, scored.config))


@pytest.fixture
def drawn(checkpoint, tmp_path):
    """Make a run whose completions are drawn from its states by a tiny real pipeline, and score it."""

    def score(task, pipeline, judge, **data):
        tiny_qwen_image.build(tmp_path / "pipeline", pipeline, checkpoint("qwen2_5_vl"))
        with JudgeServer(answer) as server, tiny_qwen_image.small_sources():
            make_run(
                tmp_path / "runs", task, checkpoint("qwen2_5_vl"), 1, task={"name": task}, evaluation={"held_out": 0.5}, lora={"r": 4},
                renderer={"name": pipeline, "model": str(tmp_path / "pipeline"), "width": 32, "height": 32, "steps": 1},
                judge={"name": judge, "base_url": server.url, "cache": str(tmp_path / "kept.sqlite")}, **data,
            )  # fmt: skip
            run = load(task)
            with pytest.raises(ConfigError, match="is drawn from the policy's own states, which vLLM does not give"):
                scoring.evaluate(run, run.config, scoring.Asked(backend="vllm"))
            return scoring.evaluate(run, run.config, scoring.Asked(2, 0, batch_size=2))

    return score


def test_an_edit_has_complex_edits_score_and_a_table_by_complexity(drawn, tmp_path, own_endpoint, monkeypatch):
    monkeypatch.setattr("qwen_vl_grpo.answering.choose_backend", lambda asked: "transformers")
    edit_rows.write(tmp_path / "edits")
    done = drawn(
        "image_edit", "qwen_image_edit", "complex_edit", dataset_name=str(tmp_path / "edits"), dataset_split="test_real",
        data={"complexity": [1, 3], "limit": 4},
    )  # fmt: skip
    measured = done.result["scores"]["greedy"]["measures"]
    parts = [measured[f"told/{name}"]["mean"] for name in ("alignment", "identity", "quality")]
    assert measured["told/official"]["mean"] == pytest.approx(sum(parts) / 3, abs=1e-3)
    assert done.result["clusters"] == 1, "two instructions for one picture are no independent items"
    assert set(done.result["categories"]["complexity"]) == {"1", "3"}
    assert "Complex-Edit overall" in evaluated.markdown(done.result)


def test_a_taught_picture_has_mmmgs_fidelity(drawn, tmp_path, own_endpoint, monkeypatch):
    monkeypatch.setattr("qwen_vl_grpo.answering.choose_backend", lambda asked: "transformers")
    knowledge_rows.write(tmp_path / "knowledge")
    done = drawn("text_to_image", "qwen_image", "mmmg", dataset_name=str(tmp_path / "knowledge"), dataset_split="train", data={"limit": 4})
    assert 0 <= done.result["scores"]["greedy"]["measures"]["told/fidelity"]["mean"] <= 1
    assert "MMMG knowledge fidelity" in evaluated.markdown(done.result)


def test_exports_hold_the_greedy_answers_as_the_other_programs_read_them(scored):
    done = scoring.evaluate(scored, scored.config, ASKED)
    samples = lines(exports.lmms_eval(done))
    assert [sample["doc_id"] for sample in samples] == list(range(6))
    assert {sample["score"] for sample in samples} <= {0.0, 1.0} and {sample["target"] for sample in samples} <= set("0123456789")
    (aggregated,) = (done.folder / "lmms_eval").glob("*_results.json")
    assert json.loads(aggregated.read_text())["results"]["grpo_run"]["score,none"] == done.result["scores"]["greedy"]["correct"]
    predicted = exports.vlmevalkit(done)
    assert predicted.name == "scored_grpo_run.tsv"
    head, *rest = predicted.read_text().splitlines()
    assert head.startswith('"index"\t"id"\t"question"\t"answer"') and head.endswith('"prediction"')
    assert len(rest) >= 6
