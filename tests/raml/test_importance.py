"""Importance weights against the target distribution, which is enumerated."""

import itertools
import math

import pytest
import torch

from tenfold.raml import EditPayoff, HammingPayoff
from tenfold.raml.importance import ImportanceWeighted
from tenfold.raml.rewards import SentenceBLEU, negative_edit_distance

REFERENCE = torch.tensor([[0, 1, 2, 1]])
STRINGS = torch.tensor(list(itertools.product(range(3), repeat=4)))


def agreement_at_the_ends(hypothesis, reference):
    return 2.0 * (hypothesis[0] == reference[0]) + (hypothesis[-1] == reference[-1])


def enumerated_target(reward, tau):
    """``q`` over all strings of length 4 of 3 tokens."""
    values = [reward(string, REFERENCE[0].tolist()) / tau for string in STRINGS.tolist()]
    return torch.tensor(values, dtype=torch.float64).softmax(0)


REWARDS = [negative_edit_distance, agreement_at_the_ends, SentenceBLEU(max_order=2)]


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("proposal_tau", [0.7, 1.5])
def test_weights_times_proposal_is_the_target(reward, proposal_tau):
    proposal = HammingPayoff(3, proposal_tau)  # on the paper's scale
    weighted = ImportanceWeighted(proposal, reward, tau=0.6)
    log_weight = weighted.log_weight(STRINGS, REFERENCE)
    product = log_weight + proposal.log_prob(STRINGS, REFERENCE)
    torch.testing.assert_close(product.softmax(0), enumerated_target(reward, 0.6), rtol=1e-12, atol=0)
    # the proposal's mean of the weights is the normalizer
    mean = torch.logsumexp(product, 0).exp().item()
    direct = sum(math.exp(reward(string, REFERENCE[0].tolist()) / 0.6) for string in STRINGS.tolist())
    assert mean == pytest.approx(direct, rel=1e-12)


@pytest.mark.parametrize("reward", REWARDS)
def test_weighted_samples_follow_the_target(reward):
    n, tau = 20_000, 0.6
    proposal = HammingPayoff(3, 1.2)
    weighted = ImportanceWeighted(proposal, reward, tau=tau)
    ids, lengths, weights, ess = weighted.sample(REFERENCE, n=n, generator=torch.Generator().manual_seed(1))
    assert lengths.unique().tolist() == [4]
    code = (ids * torch.tensor([27, 9, 3, 1])).sum(1)
    estimate = torch.zeros(81, dtype=torch.float64).index_add(0, code, weights)
    q = enumerated_target(reward, tau)
    # delta method: n var = E_q0[(q / q0)^2 (1[y = s] - q(s))^2] for each string s
    ratio = q / proposal.log_prob(STRINGS, REFERENCE).exp()
    others = (ratio * q).sum() - ratio * q
    deviation = ((ratio * q * (1 - q).square() + q.square() * others) / n).sqrt()
    assert ess.item() == pytest.approx(n / (ratio * q).sum().item(), rel=0.3)
    assert ((estimate - q).abs() / deviation).max() < 6
    # power: weights of exp(reward / tau + distance / tau) with the number of the paper's scale, a published mistake
    distance = (ids != REFERENCE).sum(1).double()
    rewards = torch.tensor([reward(row, REFERENCE[0].tolist()) for row in ids.tolist()], dtype=torch.float64)
    wrong = torch.zeros(81, dtype=torch.float64).index_add(0, code, (rewards / tau + distance / 1.2).softmax(0))
    assert ((wrong - q).abs() / deviation).max() > 20


def test_edit_proposal_of_its_own_reward_weighs_all_alike():
    # survey#11: BLEU by importance weights was left open; the check is a proposal that needs no correction
    proposal = EditPayoff(5, 0.6, exclude_ids=(0,))
    weighted = ImportanceWeighted(proposal, negative_edit_distance, tau=proposal.raw_tau)
    y, lengths = torch.tensor([[1, 2, 3, 4], [4, 4, 0, 0]]), torch.tensor([4, 2])
    ids, sample_lengths, weights, ess = weighted.sample(y, lengths, n=50, generator=torch.Generator().manual_seed(0))
    assert len(ids) == len(sample_lengths) == len(weights) == 100
    torch.testing.assert_close(weights, torch.full((100,), 0.02, dtype=torch.float64), rtol=1e-10, atol=0)
    torch.testing.assert_close(ess, torch.full((2,), 50.0, dtype=torch.float64), rtol=1e-10, atol=0)


def test_edit_proposal_reaches_other_lengths():
    proposal = EditPayoff(4, 0.9)

    def length_of_three(hypothesis, reference):
        return float(len(hypothesis) == 3)

    weighted = ImportanceWeighted(proposal, length_of_three, tau=0.2)
    log_weight = weighted.log_weight(torch.tensor([[0, 1, 2, 3], [0, 1, 2, 0]]), torch.tensor([[0, 1, 2, 3]]),
                                     torch.tensor([4, 3]))  # fmt: skip
    log_q = proposal.log_prob(torch.tensor([[0, 1, 2, 3], [0, 1, 2, 0]]), torch.tensor([[0, 1, 2, 3]]),
                              torch.tensor([4, 3]))  # fmt: skip
    torch.testing.assert_close(log_weight + log_q, torch.tensor([0.0, 5.0], dtype=torch.float64))


def test_weights_of_each_reference_sum_to_one_and_streams_are_the_rows():
    weighted = ImportanceWeighted(HammingPayoff(6, 1.0), negative_edit_distance, tau=0.5)
    y = torch.tensor([[1, 2, 3], [4, 5, 0]])
    both = weighted.sample(y, n=7, seeds=[11, 12])
    torch.testing.assert_close(both.weights.reshape(2, 7).sum(1), torch.ones(2, dtype=torch.float64))
    assert ((both.effective_sample_size >= 1) & (both.effective_sample_size <= 7 + 1e-9)).all()
    alone = weighted.sample(y[1:], n=7, seeds=[12])
    assert alone.ids.equal(both.ids[7:])
    assert alone.weights.equal(both.weights[7:])


def test_impossible_samples_have_weight_zero():
    def only_the_reference(hypothesis, reference):
        return 0.0 if hypothesis == reference else -math.inf

    weighted = ImportanceWeighted(HammingPayoff(4, 1.0), only_the_reference, tau=1.0)
    y = torch.tensor([[0, 1, 2]])
    samples = weighted.sample(y, n=200, generator=torch.Generator().manual_seed(0))
    same = (samples.ids == y).all(1)
    assert samples.weights[~same].max() == 0
    assert samples.effective_sample_size.item() == pytest.approx(int(same.sum()))


def test_2000_tokens_stay_finite():
    weighted = ImportanceWeighted(EditPayoff(60, 0.85), negative_edit_distance, tau=0.2)
    y = torch.randint(0, 60, (1, 2000), generator=torch.Generator().manual_seed(0))
    samples = weighted.sample(y, n=2, generator=torch.Generator().manual_seed(0))
    assert samples.weights.isfinite().all()


def test_mistakes_are_named():
    proposal = HammingPayoff(4, 0.5)
    with pytest.raises(ValueError, match="tau=0 must be a positive number"):
        ImportanceWeighted(proposal, negative_edit_distance, tau=0)
    y = torch.tensor([[0, 1, 2]])
    with pytest.raises(ValueError, match=r"reward\(\[0, 1, 2\], \[0, 1, 2\]\) is nan"):
        ImportanceWeighted(proposal.with_tau(0), lambda *_: math.nan, tau=1.0).sample(y)
    with pytest.raises(ValueError, match="all 3 samples"):
        ImportanceWeighted(proposal, lambda *_: -math.inf, tau=1.0).sample(y, n=3)
    with pytest.raises(ValueError, match="probability 0 under the proposal"):
        ImportanceWeighted(proposal, negative_edit_distance, tau=1.0).log_weight(y[:, :2], y)
