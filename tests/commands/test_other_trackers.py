"""Covers runs that are tracked by TensorBoard and trackio: every step once under the run_id, resumed or not, in the run's folder."""

import json

import pytest

STEPS = 10
BOTH = {"tracking": {"report_to": ["tensorboard", "trackio"]}, "max_steps": STEPS, "save_steps": 5}
NAMES = ("train/reward", "train/loss", "train/rewards/brevity/mean", "train/groups/reward_std")
ASK_TRACKIO = """\
import json, sys, trackio
from trackio.sqlite_storage import SQLiteStorage
runs = [(run.name, run.config) for run in trackio.Api().runs("grpo")]
print(json.dumps([runs, SQLiteStorage.get_logs("grpo", sys.argv[1])], default=str))
"""


@pytest.fixture(scope="module")
def killed(workshop) -> str:
    """A run that was killed after its first checkpoint, and then resumed to its end."""
    process = workshop.start("-m", "qwen_vl_grpo", "train", "--config", workshop.config("drawn", **BOTH))
    workshop.killed_at(8, "drawn", process)
    done = workshop.train("drawn", "--resume", **BOTH)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "run drawn is finished: runs/drawn/run.json\n", "trackio prints to stdout"
    return "drawn"


@pytest.fixture(scope="module")
def written(workshop, killed):
    """name -> step -> value, the last one where a step was done again."""
    lines = [line for line in workshop.metrics(killed) if "loss" in line]
    assert len(lines) > STEPS, "no step was done again, so nothing was shown"
    return {name: {line["step"]: line[name.removeprefix("train/")] for line in lines} for name in NAMES}


def test_tensorboard_shows_every_step_once_in_a_run_of_this_name(workshop, killed, written):
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.util.tensor_util import make_ndarray

    shown = EventMultiplexer().AddRunsFromDirectory(str(workshop.folder / "runs"))
    shown.Reload()
    assert [run for run in shown.Runs() if run.startswith(killed)] == [killed]
    for name in NAMES:
        points = [(point.step, float(make_ndarray(point.tensor_proto))) for point in shown.Tensors(killed, name)]
        assert [step for step, _ in points] == list(range(1, STEPS + 1))
        assert dict(points) == pytest.approx(written[name], abs=1e-6)


@pytest.fixture(scope="module")
def kept(workshop, killed):
    """What trackio has below the run's folder."""
    workshop_environment = {"TRACKIO_DIR": str(workshop.run_dir(killed) / "trackio")}
    done = workshop.run("-c", f"import os; os.environ.update({workshop_environment!r})\n{ASK_TRACKIO}", killed)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_trackio_has_one_run_of_this_name_with_its_config_and_group(killed, kept):
    ((name, config),) = kept[0]
    assert (name, config["run_id"], config["_Group"]) == (killed, killed, "visual_reasoning")


def test_trackio_has_every_step_once_and_in_order(kept, written):
    for name in NAMES:
        steps = [(line["train/global_step"], line[name]) for line in kept[1] if name in line]
        assert steps == sorted(written[name].items())


def test_trackio_has_the_tables_of_completions_with_pictures(workshop, killed, kept):
    tables = [line["completions"] for line in kept[1] if "completions" in line]
    assert tables
    for table in tables:
        assert all("[picture]" in row["prompt"] and row["image"] for row in table["_value"])
    media = workshop.run_dir(killed) / "trackio/media"
    assert any(path.read_bytes().startswith(b"\x89PNG") for path in media.rglob("*.png"))


def test_the_card_says_where_trackio_keeps_the_run(workshop, killed):
    tracking = workshop.card(killed)["tracking"]
    assert tracking["report_to"] == ["tensorboard", "trackio"]
    assert tracking["trackio"] == {"project": "grpo", "folder": str(workshop.run_dir(killed).resolve() / "trackio")}


def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_loaded(workshop, refused):
    hidden = "import sys; sys.modules['trackio'] = None; from qwen_vl_grpo.cli import main; main(sys.argv[1:])"
    config = workshop.config("unshown", tracking={"report_to": "trackio"})
    line = refused(workshop.run("-c", hidden, "train", "--config", config))
    assert "tracking.report_to: trackio is not installed here; `pip install trackio`" in line
    assert not workshop.run_dir("unshown").exists()


def test_a_tracker_that_nobody_knows_is_refused(workshop, refused):
    line = refused(workshop.grpo("train", "--config", workshop.config("unknown", tracking={"report_to": ["wandb", "tensorbord"]})))
    assert "tracking.report_to: 'tensorbord' cannot stand here; choose of wandb, trackio, tensorboard, or none alone" in line
