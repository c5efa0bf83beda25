"""Covers placement.py: devices that are there, and shares of a card; on a CPU as far as that goes."""

import pytest
import torch

from qwen_vl_grpo import placement
from qwen_vl_grpo.errors import ConfigError, HardwareError
from qwen_vl_grpo.rendered_sections import PlacementSection

ONE, TWO, THREE = (torch.device("cuda", number) for number in range(3))


def test_a_device_is_found_or_refused_by_name():
    assert placement.device("judge", "cpu") == torch.device("cpu")
    assert placement.device("judge", "auto").type in ("cuda", "mps", "cpu")
    with pytest.raises(HardwareError, match=r"^placement.renderer: there is no cuda:9 here; this machine has .*cpu$"):
        placement.device("renderer", "cuda:9")
    with pytest.raises(HardwareError, match=r"^placement.judge: 'gpu one' is no device; write auto, cuda:1, mps or cpu$"):
        placement.device("judge", "gpu one")


def test_auto_is_the_card_of_the_launchers_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert placement.device("renderer", "auto") == ONE
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert placement.device("renderer", "auto") == THREE


def test_three_cards_are_capped_one_by_one():
    section = PlacementSection(renderer="cuda:1", judge="cuda:2", memory_shares={"policy": 0.85, "renderer": 0.85, "judge": 0.85})
    assert placement.caps(section, {"policy": ONE, "renderer": TWO, "judge": THREE}) == {ONE: 0.85, TWO: 0.85, THREE: 0.85}


def test_parts_on_one_card_are_capped_by_their_sum():
    section = PlacementSection(memory_shares={"policy": 0.5, "renderer": 0.25, "judge": 0.125})
    assert placement.caps(section, {"policy": ONE, "renderer": ONE, "judge": ONE}) == {ONE: 0.875}
    assert placement.caps(section, {"policy": ONE, "renderer": TWO, "judge": ONE}) == {ONE: 0.625, TWO: 0.25}
    assert placement.caps(PlacementSection(), {"policy": ONE, "renderer": ONE, "judge": ONE}) == {}


def test_shares_that_do_not_add_up_are_refused():
    with pytest.raises(ConfigError, match="policy, judge lives on cuda:0, too; give each part on a card a share, or none"):
        placement.caps(PlacementSection(memory_shares={"renderer": 0.5}), {"policy": ONE, "renderer": ONE, "judge": ONE})
    section = PlacementSection(memory_shares={"policy": 0.6, "renderer": 0.6, "judge": 0.1})
    with pytest.raises(ConfigError, match=r"the parts on cuda:0 take 1.3 of it together; lower them to 1"):
        placement.caps(section, {"policy": ONE, "renderer": ONE, "judge": ONE})


def test_on_a_cpu_nothing_is_capped_and_giving_memory_back_does_no_harm():
    cpu = torch.device("cpu")
    assert placement.caps(PlacementSection(memory_shares={"renderer": 0.5}), dict.fromkeys(("policy", "renderer", "judge"), cpu)) == {}
    assert placement.apply(PlacementSection(renderer="cpu", judge="cpu"))["renderer"] == cpu
    placement.release()
