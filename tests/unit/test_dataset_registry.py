"""Covers data sets by name: the registry's file, lists and shares of names, where media lie, and what is refused before a run."""

import json
import re
from pathlib import Path

import pytest
import yaml

from qwen_vl_grpo import config as configs
from qwen_vl_grpo import dataset_registry, sources
from qwen_vl_grpo.errors import ConfigError, DataError
from qwen_vl_grpo.sections import DataSection

PROJECT = Path(__file__).parents[2]
HELD = {"whole": {"annotations": "whole.json", "media_root": "media"}, "split": {"annotations": "split"}}


@pytest.fixture
def registry(tmp_path):
    """A registry of a file of 20 rows, and of a folder with two splits."""
    (tmp_path / "split").mkdir()
    for name, count in (("whole", 20), ("split/train", 4), ("split/test", 2)):
        rows = [{"id": f"{name}-{row}", "video": f"{row}.mp4", "image": ["/own.png", "a.png"]} for row in range(count)]
        (tmp_path / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
    (tmp_path / "datasets.yaml").write_text(yaml.safe_dump(HELD), encoding="utf-8")
    return str(tmp_path / "datasets.yaml")


@pytest.fixture
def rows(registry):
    def read(used, split="train", **data):
        return sources.find(used, split, DataSection(registry=registry, **data)).rows()

    return read


def made(registry, **changes):
    return configs.check({"run_id": "x", "dataset_use": "whole", "data": {"registry": registry}} | changes)


def test_a_list_of_names_is_their_rows_one_after_another(rows):
    held = rows("split, whole")
    assert [row["dataset"] for row in held] == ["split"] * 4 + ["whole"] * 20
    assert [row["id"] for row in held[:5]] == ["split/train-0", "split/train-1", "split/train-2", "split/train-3", "whole-0"]
    assert [row["id"] for row in rows("split", "test")] == ["split/test-0", "split/test-1"]
    assert rows("split,whole", limit=6) == held[:6]


def test_a_share_has_always_the_same_rows_in_their_order_and_a_smaller_share_some_of_them(rows):
    whole, half, quarter = (rows(f"whole{share}") for share in ("", "%50", "%25"))
    assert half == rows("whole%50") == [row for row in whole if row in half]
    assert (len(half), len(quarter)) == (10, 5)
    assert all(row in half for row in quarter)
    assert half != whole[:10]
    assert len(rows("whole%0.1")) == 1


def test_media_start_in_their_root_or_beside_the_annotations(rows, tmp_path):
    rooted, beside = rows("whole")[0], rows("split")[0]
    assert (rooted["video"], rooted["image"]) == (str(tmp_path / "media/0.mp4"), ["/own.png", str(tmp_path / "media/a.png")])
    assert beside["video"] == str(tmp_path / "split/0.mp4")


def test_another_share_or_another_root_is_other_data(registry, tmp_path):
    def fingerprint(used):
        return sources.find(used, "train", DataSection(registry=registry)).fingerprint

    seen = [fingerprint("whole"), fingerprint("whole%50"), fingerprint("split")]
    moved = HELD | {"whole": HELD["whole"] | {"media_root": "elsewhere"}}
    (tmp_path / "datasets.yaml").write_text(yaml.safe_dump(moved), encoding="utf-8")
    assert len({*seen, fingerprint("whole")}) == 4


def test_the_documented_run_finds_its_data_by_name(monkeypatch):
    monkeypatch.chdir(PROJECT)
    config = configs.load("configs/video_actions.yaml")
    dataset_registry.check(config)
    assert config.dataset_name == "assy07_grpo"


def test_the_page_about_clips_shows_a_registry_that_can_be_followed(tmp_path):
    (shown,) = re.findall(r"```yaml\n(.*?)```", (PROJECT / "docs/video.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "datasets.yaml").write_text(shown, encoding="utf-8")
    half, whole = dataset_registry.find(str(tmp_path / "datasets.yaml"), "assy07_grpo%50,kitchen")
    assert (half.annotations, half.media_root, half.share) == (tmp_path / "assy07/train.json", Path("/data/assy07"), 0.5)
    assert (whole.annotations, whole.media_root, whole.share) == (tmp_path / "kitchen", None, 1.0)


@pytest.mark.parametrize(
    ("used", "said"),
    [
        ("whol", "holds no 'whol'; did you mean 'whole'\\? it holds split, whole"),
        ("split,", "holds no ''; it holds split, whole"),
        ("whole%0", "'whole%0' is no share of a data set; write a percentage above 0 and up to 100, as in whole%50"),
        ("whole%101", "'whole%101' is no share"),
        ("whole%half", "'whole%half' is no share"),
        ("whole%50,whole", "names whole twice"),
    ],
)
def test_what_the_registry_does_not_hold_is_refused_with_the_nearest(registry, used, said):
    with pytest.raises(DataError, match=said):
        dataset_registry.check(made(registry, dataset_use=used))


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (None, "cannot be read"),
        ("a: [", "is not YAML"),
        ("- a", "is no list of names"),
        ("a%5: {annotations: b}", "is no list of names"),
        ("whole: {media_root: b}", "whole names no annotations"),
        ("whole: {annotations: b, data_path: c}", "whole has a key 'data_path'; it takes annotations and media_root"),
    ],
)
def test_a_registry_that_cannot_be_followed_is_refused(tmp_path, held, said):
    path = tmp_path / "datasets.yaml"
    if held is not None:
        path.write_text(held, encoding="utf-8")
    with pytest.raises(DataError, match=f"data.registry .*datasets.yaml: {said}"):
        dataset_registry.check(made(str(path)))


def test_annotations_that_are_gone_are_named(registry, rows, tmp_path):
    (tmp_path / "whole.json").unlink()
    dataset_registry.check(made(registry))  # a run is planned where its data are not
    with pytest.raises(DataError, match=r"no annotations of whole at .*whole.json"):
        rows("whole")


def test_an_evaluation_is_named_by_the_registry_too_and_never_scores_what_is_trained_on(registry):
    dataset_registry.check(made(registry, dataset_use="split", evaluation={"dataset_split": "test"}))
    dataset_registry.check(made(registry, evaluation={"dataset_split": "train", "dataset_name": "split"}))
    for used, name, split in (("whole", None, "test"), ("whole%50", "whole", "test"), ("split%50", "whole,split", "train")):
        changes = {"dataset_use": used, "dataset_split": "train", "evaluation": {"dataset_split": split, "dataset_name": name}}
        with pytest.raises(DataError, match=r"evaluation.dataset_split: would score rows of (whole|split) that are trained on"):
            dataset_registry.check(made(registry, **changes))
    with pytest.raises(DataError, match="holds no 'splot'; did you mean 'split'"):
        dataset_registry.check(made(registry, evaluation={"dataset_split": "test", "dataset_name": "splot"}))


def test_what_is_used_is_the_name_of_the_data_also_when_a_card_gives_it_back(registry):
    config = made(registry, dataset_use="whole%50,split")
    assert config.dataset_name == "whole%50,split"
    assert configs.check(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dataset_name": "digits"}, "dataset_use whole: dataset_name digits names the data, too; keep one of them"),
        ({"data": {}}, "data.registry: is needed with dataset_use"),
        ({"dataset_use": None}, "dataset_use: is needed with data.registry"),
    ],
)
def test_data_have_one_name_and_a_name_of_the_registry_needs_it(registry, changes, said):
    with pytest.raises(ConfigError, match=said):
        made(registry, **changes)
