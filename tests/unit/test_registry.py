"""Covers the local registry: claiming an id, finding a run by it, and saying what is wrong with a card."""

import json
import shutil

import pytest

from qwen_vl_grpo import registry
from qwen_vl_grpo.errors import RegistryError
from qwen_vl_grpo.interfaces import RunCard


@pytest.fixture
def keep(config_of, tmp_path):
    """Claim a run and write its card; returns its config and folder."""

    def make(run_id="v1-baseline", place="outputs", demo=False, **card):
        config = config_of(run_id=run_id, output_dir=str(tmp_path / place), registry={"demo": demo})
        folder = registry.claim(config)
        registry.write(RunCard(run_id=run_id, task="visual_reasoning", base_model="tiny", demo=demo, **card), folder)
        return config, folder

    return make


def test_a_claimed_run_lives_in_a_folder_of_its_id(keep, tmp_path):
    _, folder = keep("v1-baseline")
    assert folder == tmp_path / "outputs/v1-baseline"
    assert registry.resolve("v1-baseline")[1] == folder


def test_a_card_is_read_as_it_was_written(keep):
    _, folder = keep(metrics={"after": {"greedy": {"correct": 0.5, "n": 4}}}, state="finished")
    card = registry.read(folder)
    assert (card.state, card.metrics["after"]["greedy"]) == ("finished", {"correct": 0.5, "n": 4})


def test_writing_a_card_leaves_no_half_written_file(keep, own_home):
    _, folder = keep()
    assert [path.name for path in folder.iterdir()] == ["run.json"]
    assert [path.name for path in (own_home / "index").iterdir()] == ["v1-baseline.json"]


def test_an_id_that_is_taken_is_refused_and_the_run_stays(keep):
    config, folder = keep()
    before = (folder / "run.json").read_bytes()
    with pytest.raises(RegistryError, match=r"exists already .* choose another run_id"):
        registry.claim(config)
    assert (folder / "run.json").read_bytes() == before


def test_an_id_that_is_taken_in_another_output_dir_is_refused(keep):
    _, first = keep(place="outputs")
    with pytest.raises(RegistryError, match=str(first)):
        keep(place="elsewhere")


def test_a_folder_that_no_index_knows_is_not_overwritten_either(config_of, tmp_path):
    (tmp_path / "outputs/notes").mkdir(parents=True)
    config = config_of(run_id="notes", output_dir=str(tmp_path / "outputs"), registry={"demo": True})
    with pytest.raises(RegistryError, match="exists already"):
        registry.claim(config)


def test_a_demonstration_run_makes_room_for_the_next_one(keep):
    config, folder = keep(demo=True)
    (folder / "old.txt").write_text("old")
    assert registry.claim(config) == folder
    assert list(folder.iterdir()) == []


def test_a_demonstration_run_does_not_replace_a_real_one(keep):
    keep(demo=False)
    with pytest.raises(RegistryError, match="never overwritten"):
        keep(demo=True)


def test_a_real_run_does_not_replace_a_demonstration_run(keep):
    keep(demo=True)
    with pytest.raises(RegistryError, match="never overwritten"):
        keep(demo=False)


def test_a_demonstration_run_does_not_replace_one_in_another_output_dir(keep):
    keep(demo=True, place="outputs")
    with pytest.raises(RegistryError, match="exists already"):
        keep(demo=True, place="elsewhere")


def test_refusing_writes_nothing(keep, config_of, tmp_path):
    keep()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RegistryError):
        registry.refuse_existing(config_of(run_id="v1-baseline", output_dir=str(tmp_path / "elsewhere")))
    registry.refuse_existing(config_of(run_id="new", output_dir=str(tmp_path / "elsewhere")))
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unknown_id_gets_the_nearest_ones(keep):
    keep("v1-baseline")
    keep("v2-baseline")
    with pytest.raises(RegistryError, match=r"v1-baselin: no such run; did you mean v1-baseline or v2-baseline\?"):
        registry.resolve("v1-baselin")


def test_an_unknown_id_like_no_other_gets_the_number_of_runs(keep):
    keep()
    with pytest.raises(RegistryError, match="there are 1 runs; list them with `grpo runs`"):
        registry.resolve("zzz")


@pytest.mark.parametrize("run_id", ["../x", "a/b", "..", "a\x00"], ids=ascii)
def test_an_id_that_is_a_path_is_not_looked_up(keep, run_id):
    keep()
    with pytest.raises(RegistryError, match="is not a run id"):
        registry.resolve(run_id)


def test_a_run_whose_folder_is_gone_gets_the_way_back(keep):
    _, folder = keep()
    shutil.rmtree(folder)
    with pytest.raises(RegistryError, match=r"is gone; .*grpo runs scan"):
        registry.resolve("v1-baseline")


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"run_id": "a"}', b"\xff\xfe"], ids=repr)
def test_a_broken_card_is_named(keep, content):
    _, folder = keep()
    (folder / "run.json").write_bytes(content)
    with pytest.raises(RegistryError, match=r"run\.json"):
        registry.read(folder)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"path": 7}'])
def test_a_broken_pointer_is_no_run(keep, own_home, content):
    keep()
    (own_home / "index/v1-baseline.json").write_text(content)
    with pytest.raises(RegistryError, match="v1-baseline"):
        registry.resolve("v1-baseline")


@pytest.mark.parametrize("news", [{}, {"state": "paused"}, {"metrics": []}], ids=str)
def test_a_card_of_a_newer_program_is_refused_as_such(keep, news):
    _, folder = keep()
    card = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(card | {"schema_version": registry.SCHEMA_VERSION + 1} | news))
    with pytest.raises(RegistryError, match=r"newer version .*update this program"):
        registry.read(folder)


def test_an_older_card_with_missing_fields_opens(keep):
    _, folder = keep()
    (folder / "run.json").write_text('{"run_id": "v1-baseline", "task": "visual_reasoning", "base_model": "tiny"}')
    card = registry.read(folder)
    assert (card.schema_version, card.metrics, card.checkpoint) == (1, {}, None)


def test_a_field_that_this_program_does_not_know_is_kept(keep):
    _, folder = keep()
    card = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(card | {"carbon_grams": 12}))
    registry.write(registry.read(folder), folder)
    assert json.loads((folder / "run.json").read_text())["carbon_grams"] == 12


def test_runs_are_listed_newest_first_and_broken_ones_named_and_passed_over(keep, caplog):
    keep("old", created="2026-01-01T00:00:00+00:00")
    keep("new", created="2026-02-01T00:00:00+00:00")
    _, broken = keep("broken", created="2026-03-01T00:00:00+00:00")
    (broken / "run.json").write_text("{")
    shutil.rmtree(keep("gone")[1])
    assert [card.run_id for card, _ in registry.list_runs()] == ["new", "old"]
    (said,) = caplog.messages
    assert said.startswith(f"{broken / 'run.json'}: is not a run card (")


def test_no_runs_is_an_empty_list():
    assert registry.list_runs() == []


def test_runs_that_were_moved_are_found_again(keep, tmp_path):
    keep("one")
    keep("two")
    shutil.move(tmp_path / "outputs", tmp_path / "archive")
    assert registry.scan(tmp_path / "archive") == ["one", "two"]
    assert registry.resolve("one")[1] == tmp_path / "archive/one"


def test_a_scan_passes_over_a_broken_card_and_finds_the_rest(keep, tmp_path):
    _, broken = keep("broken")
    keep("whole")
    (broken / "run.json").write_text("{")
    assert registry.scan(tmp_path / "outputs") == ["whole"]


def test_a_scan_of_no_folder_says_so(tmp_path):
    with pytest.raises(RegistryError, match="gone: there is no such folder"):
        registry.scan(tmp_path / "gone")


def test_a_card_from_elsewhere_cannot_write_outside_the_index(own_home, tmp_path):
    stranger = tmp_path / "downloads/innocent"
    stranger.mkdir(parents=True)
    card = {"run_id": "../../escaped", "task": "visual_reasoning", "base_model": "tiny"}
    (stranger / "run.json").write_text(json.dumps(card))
    try:
        registry.scan(tmp_path / "downloads")
    except RegistryError as refusal:
        assert "run_id" in str(refusal)
    assert not list(tmp_path.glob("escaped*")) + list(own_home.glob("escaped*"))
