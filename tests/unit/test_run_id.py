"""Covers which run ids are accepted: each is a folder, a Hub tag and a W&B run at once."""

import pytest

from qwen_vl_grpo import config
from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.run_id import check_run_id

GOOD = ["a", "7", "v1-baseline", "digits-demo-s1", "v1.2.3", "a_b", "A" * 63, "all-runs", "x.y"]
BAD = [
    "", ".", "..", "../x", "a/b", "a\\b", "/etc", "a..b", ".hidden", "-flag", "_x", "%2e", "%2e%2e%2fx", "a b", "a\n", "a\x00", "\x00",
    "ä", "a:b", "~", "$HOME", "A" * 64, "A" * 200, "all", "ALL", "All", "base",
]  # fmt: skip


@pytest.mark.parametrize("run_id", GOOD)
def test_a_good_run_id_is_returned_as_it_is(run_id):
    assert check_run_id(run_id) == run_id


@pytest.mark.parametrize("run_id", BAD, ids=ascii)
def test_a_bad_run_id_is_refused_alone_and_in_a_config(run_id):
    with pytest.raises(ConfigError, match=r"^run_id: "):
        check_run_id(run_id)
    with pytest.raises(ConfigError, match=r"^config: run_id: "):
        config.check({"run_id": run_id})


def test_a_long_run_id_is_not_repeated_whole_in_its_refusal():
    with pytest.raises(ConfigError) as error:
        check_run_id("A" * 5000)
    assert len(str(error.value)) < 300


def test_the_word_for_every_run_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="the word for every run"):
        check_run_id("all")
