"""Minimum-risk training against its formula."""

import math

import pytest
import torch

from tenfold.raml.risk import first_occurrences, minimum_risk_loss


def test_loss_is_the_expected_cost_under_the_sharpened_model():
    log_prob, cost = (
        torch.tensor([[-1.0, -2.0, -4.0], [-3.0, -3.0, -0.5]]).double(),
        torch.tensor([[0.0, 1.0, 2.0], [1.0, 3.0, 0.0]]),
    )
    for alpha in (0.005, 1.0, 3.0):
        rows = []
        for scores, costs in zip(log_prob.tolist(), cost.tolist(), strict=True):
            weights = [math.exp(alpha * score) for score in scores]
            rows.append(sum(w * c for w, c in zip(weights, costs, strict=True)) / sum(weights))
        found = minimum_risk_loss(log_prob, cost.double(), sharpness=alpha)
        assert float(found) == pytest.approx(sum(rows) / 2, rel=1e-12)


def test_gradient_is_alpha_q_times_the_excess_of_cost():
    log_prob = torch.tensor([[-1.0, -2.0, -4.0]], dtype=torch.double, requires_grad=True)
    cost, alpha = torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.double), 0.7
    (gradient,) = torch.autograd.grad(minimum_risk_loss(log_prob, cost, sharpness=alpha), log_prob)
    q = (alpha * log_prob.detach()).softmax(1)
    torch.testing.assert_close(gradient, alpha * q * (cost - (q * cost).sum()), rtol=1e-12, atol=0)


def test_candidates_of_equal_cost_teach_nothing():
    log_prob = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(minimum_risk_loss(log_prob, torch.tensor([[2.0, 2.0]])), log_prob)
    assert gradient.abs().max() < 1e-7


def test_a_candidate_counts_once():
    ids = torch.tensor([[[4, 5], [4, 0], [4, 5], [4, 0], [6, 0]], [[7, 0], [7, 0], [7, 0], [7, 0], [7, 0]]])
    counted = first_occurrences(ids)
    assert counted.tolist() == [[True, True, False, False, True], [True, False, False, False, False]]
    log_prob, cost = torch.randn(2, 5), torch.rand(2, 5)
    expected = (minimum_risk_loss(log_prob[:1, [0, 1, 4]], cost[:1, [0, 1, 4]]) + cost[1, 0]) / 2
    assert float(minimum_risk_loss(log_prob, cost, counted=counted)) == pytest.approx(float(expected), rel=1e-6)


def test_wrong_options_are_named():
    log_prob, cost = torch.zeros(1, 2), torch.zeros(1, 2)
    with pytest.raises(ValueError, match=r"sharpness=0\.0 must be a positive number"):
        minimum_risk_loss(log_prob, cost, sharpness=0.0)
    with pytest.raises(ValueError, match="counted has a row without True"):
        minimum_risk_loss(log_prob, cost, counted=torch.zeros(1, 2, dtype=torch.bool))
