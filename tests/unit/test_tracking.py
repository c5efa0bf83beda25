"""Covers what leaves for a tracker: nothing that looks like a secret, and nothing at all when tracking is off."""

import pytest
from PIL import Image

from qwen_vl_grpo import trackers, tracking


@pytest.mark.parametrize("key", ["token", "api_key", "hub_token", "client_secret", "password", "WANDB_API_KEY"])
def test_a_value_whose_key_looks_like_a_secret_is_hidden_at_any_depth(key):
    assert trackers.scrub({"trl": {key: "hunter2"}}) == {"trl": {key: "***"}}


def test_a_secret_inside_a_list_is_hidden_too():
    assert "hunter2" not in str(trackers.scrub({"rewards": [{"api_key": "hunter2"}]}))


def test_every_other_value_stays(config_of):
    content = config_of().model_dump(mode="json")
    assert trackers.scrub(content) == content


@pytest.mark.parametrize("report_to", ["wandb", "trackio", "tensorboard", ["wandb", "trackio", "tensorboard"]])
def test_a_second_rank_starts_no_tracker(config_of, tmp_path, monkeypatch, report_to):
    monkeypatch.setenv("RANK", "1")
    config = config_of(tracking={"report_to": report_to, "mode": "offline"})
    assert tracking.start(config, "task", tmp_path)["report_to"] == config.tracking.report_to
    tracking.log_metrics({"alarms/any": 1.0}, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_fails_later_warns_once_and_the_call_returns(caplog):
    def log(_):
        raise ConnectionResetError("the service is gone")

    call = tracking.forgiving("a tracker", log)
    assert call(1) is call(2) is None
    assert [record.message for record in caplog.records] == [
        "a tracker: ConnectionResetError: the service is gone; it has gaps from here on, the files here have none"
    ]


def test_no_tracking_starts_no_tracker(config_of, tmp_path):
    import sys

    assert tracking.start(config_of(tracking={"report_to": "none"}), "task", tmp_path) == {"report_to": "none"}
    assert list(tmp_path.iterdir()) == []
    assert getattr(sys.modules.get("wandb"), "run", None) is None


class Reports:
    """Keeps what is reported, as the W&B run that a server knows up to a step; there is no server here."""

    def __init__(self, had: int | None):
        self.resumed, self.summary, self.lines = had is not None, {"train/global_step": had}, []

    def define_metric(self, *_, **__):
        pass

    def log(self, values):
        self.lines.append(values)


@pytest.mark.parametrize(("had", "steps"), [(None, [1, 2, 2, 3]), (0, [1, 2, 2, 3]), (2, [3]), (9, [])])
def test_what_the_tracker_lacks_of_earlier_attempts_is_reported_once_and_in_order(had, steps):
    written = [
        {"step": step, "attempt": attempt, "time": 1.0, **values}
        for attempt, step, values in [
            (1, 1, {"loss": 0.5}),
            (1, 2, {"eval/a": 1}),
            (1, 2, {"loss": 0.4}),
            (2, 2, {"loss": 0.4}),
            (2, 3, {"loss": 0.3}),
        ]
    ]
    run = Reports(had)
    trackers.report_again(run, written)
    assert [line["train/global_step"] for line in run.lines] == steps
    assert all(set(line) <= {"train/loss", "eval/a", "train/global_step"} for line in run.lines)


@pytest.mark.parametrize(
    ("asked", "mode", "key", "expected"),
    [
        ("auto", "", "", "offline"), ("auto", "", "k", "online"), ("auto", "offline", "k", "offline"),
        ("auto", "disabled", "k", "disabled"), ("auto", "dryrun", "k", "offline"),
        ("online", "offline", "", "online"), ("offline", "online", "k", "offline"),
    ],
)  # fmt: skip
def test_the_config_decides_then_wandbs_own_variable_then_the_key(monkeypatch, asked, mode, key, expected):
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.setenv("WANDB_API_KEY", key)
    assert trackers.wandb_mode(asked) == expected


def test_the_pictures_of_a_table_are_shrunken_once_each_and_the_rows_keep_theirs(config_of, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    wide, small = Image.new("RGB", (2048, 1024), "red"), Image.new("RGB", (56, 56))
    tracking.start(config_of(tracking={"report_to": "wandb", "mode": "offline"}), "task", tmp_path)
    try:
        first, again, both, none = tracking.pictures([[wide], [wide], [small, wide], []])
    finally:
        tracking.finish()
    assert first[0] is again[0] is both[1]
    assert [picture.image.size for picture in both] == [(56, 56), (512, 256)]
    assert none == []
    assert wide.size == (2048, 1024)
    assert tracking.pictures([[wide]]) == [[wide]]
