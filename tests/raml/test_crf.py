"""The CRF's objective against the sum over all labellings, and its derivatives."""

import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from tenfold.raml import HammingPayoff
from tenfold.raml.crf import crf_log_normalizer, crf_raml_loss

DOUBLE = torch.float64


def scores(batch=1, steps=4, labels=3, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, dtype=DOUBLE, generator=generator)

    return draw(batch, steps, labels), draw(labels, labels), draw(labels), draw(labels)


def log_probabilities(emissions, transitions, start, end):
    """Of all labellings of one sequence, from their scores alone."""
    labellings = torch.tensor(list(itertools.product(range(emissions.shape[1]), repeat=emissions.shape[0])))
    total = emissions.gather(1, labellings.T).sum(0)
    total = total + transitions[labellings[:, :-1], labellings[:, 1:]].sum(1)
    total = total + start[labellings[:, 0]] + end[labellings[:, -1]]
    return labellings, total - total.logsumexp(0)


@pytest.mark.parametrize("exclude_ids", [(), (1,), (-100, 2)])
@pytest.mark.parametrize("tau", [0.3, 1.0, math.inf])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_loss_is_the_expectation_over_all_labellings(steps, tau, exclude_ids):
    emissions, transitions, start, end = scores(steps=steps, labels=4)
    payoff = HammingPayoff(4, tau, scale="raw", exclude_ids=exclude_ids)
    reference = torch.tensor([[1, 0, 2, 3][:steps]])
    labellings, log_p = log_probabilities(emissions[0], transitions, start, end)
    q = payoff.log_prob(labellings, reference).exp()
    assert q.sum() == pytest.approx(1, rel=1e-12)
    loss = crf_raml_loss(emissions, transitions, reference, payoff, start=start, end=end)
    assert loss.item() == pytest.approx(-(q * log_p).sum().item(), rel=1e-12)
    divergence = (torch.xlogy(q, q) - q * log_p).sum()
    assert (loss - payoff.entropy(reference)[0]).item() == pytest.approx(divergence.item(), rel=1e-10, abs=1e-12)


def test_at_temperature_zero_it_is_the_likelihood():
    emissions, transitions, start, end = scores()
    reference = torch.tensor([[2, 0, 0, 1]])
    labellings, log_p = log_probabilities(emissions[0], transitions, start, end)
    own = log_p[(labellings == reference).all(1)]
    loss = crf_raml_loss(emissions, transitions, reference, HammingPayoff(3, 0.0), start=start, end=end)
    assert loss.item() == pytest.approx(-own.item(), rel=1e-12)


def test_rows_of_different_lengths_are_each_their_own():
    emissions, transitions, start, end = scores(batch=4, steps=5)
    targets = torch.tensor([[0, 1, 2, 0, 1], [2, 2, -100, -100, -100], [1, -100, -100, -100, -100], [-100] * 5])
    payoff = HammingPayoff(3, 0.7, scale="raw")
    arguments = {"start": start, "end": end}
    rows = crf_raml_loss(emissions, transitions, targets, payoff, reduction="none", **arguments)
    for row, length in enumerate((5, 2, 1)):
        alone = crf_raml_loss(
            emissions[row : row + 1, :length], transitions, targets[row : row + 1, :length], payoff, **arguments
        )
        assert rows[row].item() == pytest.approx(alone.item(), rel=1e-12)
    assert rows[3] == 0
    total = rows.sum().item()
    for reduction, divisor in (("sum", 1), ("mean", 3), ("token_mean", 8)):
        loss = crf_raml_loss(emissions, transitions, targets, payoff, reduction=reduction, **arguments)
        assert loss.item() == pytest.approx(total / divisor, rel=1e-12)


def test_first_and_second_derivatives():
    emissions, transitions, start, end = scores(batch=3, steps=3)
    targets = torch.tensor([[0, 1, 2], [2, 1, -100], [-100, -100, -100]])
    payoff = HammingPayoff(3, 0.9, scale="raw")
    inputs = tuple(value.requires_grad_() for value in (emissions, transitions, start, end))

    def loss(emissions, transitions, start, end):
        return crf_raml_loss(emissions, transitions, targets, payoff, start=start, end=end, reduction="none")

    assert gradcheck(loss, inputs)
    assert gradgradcheck(loss, inputs)


def test_gradient_is_the_difference_of_marginals():
    emissions, transitions, start, end = scores(steps=3)
    emissions.requires_grad_()
    payoff, reference = HammingPayoff(3, 0.6, scale="raw"), torch.tensor([[0, 2, 1]])
    labellings, log_p = log_probabilities(emissions.detach()[0], transitions, start, end)
    difference = log_p.exp() - payoff.log_prob(labellings, reference).exp()
    expected = torch.stack([(difference[:, None] * (labellings == label)).sum(0) for label in range(3)], 1)
    crf_raml_loss(emissions, transitions, reference, payoff, start=start, end=end).backward()
    torch.testing.assert_close(emissions.grad[0], expected, rtol=1e-10, atol=1e-12)


def test_2000_positions_stay_finite():
    emissions, transitions, *_ = scores(steps=2000, labels=5)
    emissions = (50 * emissions).float().requires_grad_()
    targets = torch.zeros(1, 2000, dtype=torch.long)
    loss = crf_raml_loss(emissions, transitions.float(), targets, HammingPayoff(5, 0.8))
    loss.backward()
    assert loss.isfinite()
    assert emissions.grad.isfinite().all()


def test_mistakes_are_named():
    emissions, transitions, _, _ = scores(steps=2)
    payoff = HammingPayoff(3, 0.5)
    with pytest.raises(ValueError, match=r"targets has 3; labels are 0\.\.2"):
        crf_raml_loss(emissions, transitions, torch.tensor([[0, 3]]), payoff)
    with pytest.raises(ValueError, match="targets has padding before a label"):
        crf_raml_loss(emissions, transitions, torch.tensor([[-100, 1]]), payoff)
    with pytest.raises(ValueError, match="payoff has vocab_size=4, but emissions are over 3 labels"):
        crf_raml_loss(emissions, transitions, torch.tensor([[0, 1]]), HammingPayoff(4, 0.5))
    with pytest.raises(ValueError, match="reduction='max'"):
        crf_raml_loss(emissions, transitions, torch.tensor([[0, 1]]), payoff, reduction="max")


def test_no_positions_at_all():
    assert crf_log_normalizer(torch.zeros(2, 0, 3), torch.zeros(3, 3), torch.ones(2, 0).bool()).tolist() == [0, 0]
