"""Covers importance weights and the effective sample size, with numbers by hand."""

import math

import pytest
import torch

from qwen_vl_grpo.correction import effective_sample_size, importance_weights, statistics

GAPS = torch.tensor([[0.1, 0.3, 9.0], [-0.2, 0.0, 0.2]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])


def test_the_mean_ratio_of_a_sequence_leaves_padding_out():
    weights = importance_weights("sequence_mean", GAPS, MASK)
    assert weights.shape == (2, 1)
    assert weights[:, 0].tolist() == pytest.approx([math.exp(0.2), 1.0])


def test_token_weights_are_cut_above_the_clip_alone():
    weights = importance_weights("token_truncate", torch.tensor([[2.0, -2.0]]), torch.ones(1, 2))
    assert weights[0].tolist() == pytest.approx([3.0, math.exp(-2)])


def test_trls_own_ratio_sums_and_masks():
    weights = importance_weights("sequence_mask", torch.tensor([[0.5, 0.5], [0.6, 0.6]]), torch.ones(2, 2))
    assert weights[:, 0].tolist() == pytest.approx([math.e, 0.0])


def test_no_correction_weighs_every_sequence_alike():
    assert importance_weights("none", GAPS, MASK).tolist() == [[1.0], [1.0]]


def test_a_gap_that_vllm_could_not_score_corrects_nothing():
    assert importance_weights("sequence_mean", torch.tensor([[float("nan"), 0.0]]), torch.ones(1, 2)).item() == 1.0


def test_the_effective_sample_size_of_equal_weights_is_all_and_of_one_is_one():
    assert effective_sample_size(torch.zeros(4)) == pytest.approx(1.0)
    assert effective_sample_size(torch.tensor([0.0, -60.0, -60.0, -60.0])) == pytest.approx(0.25)


def test_rounding_noise_of_bf16_costs_the_summed_ratio_half_its_sample_and_the_mean_ratio_nothing():
    torch.manual_seed(0)
    gaps = torch.randn(512, 512) * 0.038
    figures = statistics("sequence_mean", gaps, torch.ones(512, 512))
    assert figures["rollouts/raw_effective_sample_size"] < 0.6
    assert figures["rollouts/effective_sample_size"] > 0.99
    assert figures["rollouts/logp_difference/mean"] == pytest.approx(0.038 * math.sqrt(2 / math.pi), rel=0.01)


def test_the_sample_size_of_token_weights_is_that_of_the_tokens():
    gaps = torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    weights = torch.tensor([1.0, math.exp(2.0), 1.0, 1.0])
    expected = (weights.sum() ** 2 / (weights**2).sum() / 4).item()
    assert statistics("token_truncate", gaps, torch.ones(2, 2))["rollouts/effective_sample_size"] == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "share"), [("sequence_mean", 0.5), ("token_truncate", 0.375), ("sequence_mask", 0.25), ("none", 0.0)])
def test_the_masked_share_is_that_of_the_weights_which_a_kind_cuts_off(kind, share):
    gaps = torch.tensor([[2.0, 2.0], [-2.0, -2.0], [2.0, -2.0], [0.1, 0.1]])
    assert statistics(kind, gaps, torch.ones(4, 2))["rollouts/masked_share"] == share
