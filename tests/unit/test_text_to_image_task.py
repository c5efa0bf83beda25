"""Covers tasks/text_to_image.py: MMMG's two sets become the same columns, levels and disciplines, decoys, and broken graphs."""

import json

import pytest

from demo import knowledge_rows
from qwen_vl_grpo import knowledge, policy, sources, splits, tasks, validation
from qwen_vl_grpo.errors import ConfigError, DataError
from qwen_vl_grpo.sections import DISCIPLINES, LEVELS, DataSection
from qwen_vl_grpo.tasks import text_to_image

FROG = {"elements": ["egg", "tadpole", "frog"], "dependencies": ["TemporalOrder(egg, tadpole)"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows of our own as the repositories of both sets keep theirs."""
    made = tmp_path_factory.mktemp("knowledge")
    knowledge_rows.write(made)
    return made


@pytest.fixture
def config(checkpoint, config_of, folder):
    def make(**changes):
        given = {"model_name": checkpoint("qwen2_5_vl"), "max_completion_length": 16, "task": {"name": "text_to_image"}}
        return config_of(**given | {"dataset_name": str(folder), "dataset_split": "train"} | changes)

    return make


@pytest.fixture
def own_rows(tmp_path):
    def write(*rows):
        (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(tmp_path / "train.jsonl")

    return write


@pytest.mark.parametrize(("split", "count"), [("train", 24), ("test", 12)])
def test_both_sets_become_the_same_columns(prepare, split, count):
    rows, report = prepare(dataset_split=split)
    assert (len(rows), report.faults, report.remarks) == (count, [], [])
    first = next(iter(knowledge_rows.topics(knowledge_rows.TRAIN if split == "train" else knowledge_rows.TEST)))[2]
    place = rows["id"].index("preschool_Biology_0")
    row = rows[place]
    assert (row["original_prompt"], row["level"], row["discipline"]) == (first["prompt"], "preschool", "Biology")
    assert row["prompt"] == [
        {"role": "system", "content": text_to_image.SYSTEM_PROMPT}, {"role": "user", "content": first["prompt"]},
    ]  # fmt: skip
    rubric = json.loads(row["rubric"])
    assert {key: rubric[key] for key in ("elements", "dependencies")} == first["graph"]
    assert len(rubric["decoys"]) == 3
    assert row["images"] == []


def test_levels_and_disciplines_choose_rows_of_both_sets(prepare):
    chosen = {"levels": ["PRESCHOOL", "highschool"], "disciplines": ["Biology", "Economics"]}
    for split, count in (("train", 8), ("test", 4)):
        rows, _ = prepare(dataset_split=split, data=chosen)
        assert (len(rows), set(rows["level"]), set(rows["discipline"])) == (count, {"preschool", "highschool"}, {"Biology", "Economics"})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"levels": "preschol"}, "data.levels.0: there is no 'preschol'; did you mean 'preschool'"),
        ({"levels": ["phd", "postdoc"]}, "data.levels.1: there is no 'postdoc'"),
        ({"disciplines": "Maths"}, "did you mean 'Math'"),
        ({"decoys": -1}, "data.decoys"),
    ],
)
def test_an_unknown_level_or_discipline_is_refused_with_the_nearest(config, data, said):
    with pytest.raises(ConfigError) as error:
        config(data=data)
    assert said in str(error.value)


def test_mmmg_has_59_configurations():
    assert len(text_to_image.subsets(DataSection())) == 59 == len(LEVELS) * len(DISCIPLINES) - 1
    assert text_to_image.subsets(DataSection(levels=("PhD",), disciplines=("Math",))) == ["PhD_Math"]
    with pytest.raises(DataError, match="MMMG has no preschool_Philosophy"):
        text_to_image.subsets(DataSection(levels=("preschool",), disciplines=("Philosophy",)))


def test_the_configurations_that_are_asked_for_are_loaded_from_the_hub(monkeypatch):
    asked = []
    monkeypatch.setattr(
        sources, "_from_hub", lambda name, split, data: asked.append(data.subset) or sources.Source(data.subset, lambda: [])
    )
    data = DataSection(levels=("PhD",), disciplines=("Math", "Biology"))
    source = sources.find("MMMGBench/MMMG", "test", data, text_to_image.subsets(data))
    assert (asked, source.rows()) == (["PhD_Math", "PhD_Biology"], [])
    assert sources.find("MMMGBench/MMMG", "test", DataSection(subset="PhD_Math"), ["PhD_Biology"]).fingerprint == "PhD_Math"


def test_what_is_scored_may_stand_in_another_data_set(config, folder):
    made = config(dataset_name=f"{folder}/train.json", evaluation={"dataset_name": str(folder), "dataset_split": "test"})
    parts = splits.load(made, tasks.build(made.task), policy.load_processor(made))
    assert (len(parts.train), len(parts.held_out)) == (24, 12)
    assert made.evaluation.part == f"{folder}, split test"
    with pytest.raises(ConfigError, match=r"evaluation\.dataset_name: says where evaluation\.dataset_split is"):
        config(evaluation={"dataset_name": "elsewhere"})


def test_decoys_are_of_other_disciplines_share_no_word_and_stay_the_same(prepare, own_home):
    rows, _ = prepare(data={"decoys": 4})
    graphs = [knowledge.read(rubric) for rubric in rows["rubric"]]
    for graph, own in zip(graphs, rows["discipline"], strict=True):
        others = {
            text for other, discipline in zip(graphs, rows["discipline"], strict=True) if discipline != own for text in other.elements
        }
        assert len(graph.decoys) == 4
        assert set(graph.decoys) <= others | set(knowledge.MADE_UP)
        assert not set(graph.decoys) & set(graph.elements)
    assert len({graph.decoys for graph in graphs}) > 12
    for kept in (own_home / "prepared").iterdir():
        kept.rename(kept.with_name(f"old-{kept.name}"))  # so that they are made again
    again, report = prepare(data={"decoys": 4})
    assert not report.cached
    assert again["rubric"] == rows["rubric"]
    assert {len(json.loads(rubric)["decoys"]) for rubric in prepare(data={"decoys": 0})[0]["rubric"]} == {0}


def test_a_broken_dependency_stays_is_not_asked_for_and_is_said(prepare, own_rows):
    torn = FROG | {"dependencies": ["TemporalOrder(egg, tadpole)", "Causes(egg, moon)", "Contains egg"]}
    rows, report = prepare(
        dataset_name=own_rows({"prompt": "Draw a frog.", "graph": FROG}, {"prompt": "Draw it.", "graph": torn}),
        data={"columns": {"graph": "graph"}},
    )
    assert (len(rows), report.faults) == (2, [])
    assert [number for number, _ in report.remarks] == [1, 1]
    assert "2 rows kept, 0 dropped, 2 remarks on those kept (row 1: dependency 'Causes(egg, moon)' has the end 'moon'" in str(report)
    assert [item.text for item in knowledge.read(rows[1]["rubric"]).sound] == ["TemporalOrder(egg, tadpole)"]
    assert str(prepare(dataset_name=report.name.partition(",")[0], data={"columns": {"graph": "graph"}})[1]).count("2 remarks") == 1


def test_objects_of_different_keys_and_a_picture_in_the_rows_do_no_harm(prepare, tmp_path):
    rows = [
        {"question": "Draw a frog.", "Visual Components": FROG, "Key Knowledge": {"first": "A frog was an egg."}},
        {"question": "Draw it.", "Visual Components": FROG, "Key Knowledge": {"other": ["a", 1]}},
    ]
    (tmp_path / "train.json").write_text(json.dumps({"0_preschool": {"Biology": rows}}), encoding="utf-8")
    kept, _ = prepare(dataset_name=str(tmp_path))
    assert [json.loads(text) for text in kept["Key Knowledge"]] == [row["Key Knowledge"] for row in rows]
    picture = {"bytes": b"PNG", "path": None}
    assert text_to_image.arrange([rows[0] | {"image": picture}], DataSection())[0][1]["image"] == picture


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "Draw it.", "Knowledge_Graph": "{broken"}, "knowledge graph is no JSON"),
        ({"prompt": "Draw it.", "Knowledge_Graph": {"elements": [], "dependencies": []}}, "knowledge graph has no elements"),
        ({"prompt": "Draw it."}, "has no column 'Knowledge_Graph' or"),
        ({"prompt": " ", "Knowledge_Graph": FROG}, "column 'prompt' holds ' '; a prompt is text"),
        ({"key": "a", "Knowledge_Graph": FROG}, "has no column 'prompt' or 'question' or"),
    ],
)
def test_a_row_without_prompt_or_graph_is_refused_with_its_number(prepare, own_rows, row, said):
    rows, report = prepare(dataset_name=own_rows({"prompt": "Draw a frog.", "Knowledge_Graph": FROG}, row))
    assert len(rows) == 1
    assert report.faults[0][0] == 1
    assert said in report.faults[0][2]


@pytest.mark.parametrize(
    ("held", "said"),
    [('{"a": {"b": 3}}', "a/b holds int; rows are a list"), ('[{"a": 1}, 2]', "it holds list"), ("{", "line 1 is not JSON")],
)
def test_a_json_file_that_holds_no_rows_is_refused(tmp_path, held, said):
    (tmp_path / "train.json").write_text(held, encoding="utf-8")
    with pytest.raises(DataError, match=said):
        sources.find(str(tmp_path / "train.json"), "train", DataSection())


def test_a_json_file_keeps_where_its_rows_stood(tmp_path):
    (tmp_path / "train.json").write_text('{"0_PhD": {"Math": [{"key": "k"}]}, "flat": [{"subset": "own"}]}', encoding="utf-8")
    rows = sources.find(str(tmp_path), "train", DataSection()).rows()
    assert rows == [{"subset": "0_PhD/Math", "key": "k"}, {"subset": "own"}]
    assert text_to_image._place(rows[0]) == ("PhD", "Math")


def test_validate_finds_no_fault_in_sound_rows(config):
    found = validation.validate(config(data={"levels": "preschool"}, evaluation={"held_out": 0.25}))
    assert found.faults == []
    assert "6 rows to train on, 2 held out" in "\n".join(found.said)
