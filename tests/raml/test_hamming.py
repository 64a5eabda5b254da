"""The Hamming payoff against enumeration and against label smoothing."""

import itertools
import math

import numpy as np
import pytest
import torch
from enumeration import chi_square_p, sampled_strings
from hypothesis import given, settings
from hypothesis import strategies as st

from tenfold.raml import HammingPayoff, hamming

DRAWS = 200_000


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def enumerated(reference, vocab_size, weight):
    strings = itertools.product(range(vocab_size), repeat=len(reference))
    weights = {y: weight ** sum(a != b for a, b in zip(y, reference, strict=True)) for y in strings}
    total = sum(weights.values())
    return {y: value / total for y, value in weights.items()}, total


@pytest.mark.parametrize("raw_tau", [0.4, math.inf])
@pytest.mark.parametrize("dense", [1.0, 0.0])  # gaps between replaced tokens, or a random number for each token
@pytest.mark.parametrize("n", [1, 3])
def test_samples_follow_q(raw_tau, dense, n, monkeypatch):
    monkeypatch.setattr(hamming, "DENSE", dense)
    reference, payoff = (2, 0, 1, 1), HammingPayoff(3, raw_tau, scale="raw")
    y = torch.tensor([reference]).expand(DRAWS // n, -1)
    ids, lengths = payoff.sample(y, n=n, generator=generator())
    q, _ = enumerated(reference, 3, payoff.weight)
    observed = sampled_strings(ids, lengths)
    assert chi_square_p(observed, q) > 1e-3
    wrong, _ = enumerated(reference, 3, payoff.weight * 0.9)
    assert chi_square_p(observed, wrong) < 1e-4  # the test has power


def test_wide_rows_and_narrow_ones_are_drawn_alike():
    payoff, y = HammingPayoff(50, 0.9), torch.randint(0, 50, (30, 100), generator=generator())
    seeds = torch.arange(30)
    wide, _ = payoff.sample(y, seeds=seeds)
    narrow, _ = payoff.sample(y[:, :10].contiguous(), seeds=seeds)
    assert torch.equal(wide[:, :10], narrow)
    many, _ = payoff.sample(y[3:4, :10], n=2, seeds=seeds[3:4])
    assert torch.equal(many[0], narrow[3])
    assert not torch.equal(many[0], many[1])


def test_closed_forms_equal_enumeration():
    reference, payoff = (2, 0, 1, 1), HammingPayoff(3, 0.7, scale="raw")
    q, z = enumerated(reference, 3, payoff.weight)
    y = torch.tensor([reference])
    assert payoff.log_normalizer(y).item() == pytest.approx(math.log(z), rel=1e-12)
    assert payoff.log_normalizer(lengths=torch.tensor([4])).item() == payoff.log_normalizer(y).item()
    assert payoff.entropy(y).item() == pytest.approx(-sum(p * math.log(p) for p in q.values()), rel=1e-12)
    log_q = payoff.log_prob(torch.tensor(list(q)), y)
    np.testing.assert_allclose(log_q.exp().numpy(), list(q.values()), rtol=1e-9)
    pmf = np.zeros(5)
    for string, p in q.items():
        pmf[sum(a != b for a, b in zip(string, reference, strict=True))] += p
    np.testing.assert_allclose(payoff.distance_pmf(y)[0].numpy(), pmf, rtol=1e-9)


def test_expected_loss_with_clean_history_is_label_smoothing():
    vocab_size, payoff = 7, HammingPayoff(7, 0.8)
    logits = torch.randn(5, vocab_size, generator=generator(), dtype=torch.float64)
    labels = torch.randint(0, vocab_size, (5,), generator=generator())
    nll = -logits.log_softmax(-1)
    kept = nll.gather(1, labels[:, None]).squeeze(1)
    expected = (1 - payoff.rate) * kept + payoff.rate / (vocab_size - 1) * (nll.sum(-1) - kept)
    smoothing = payoff.rate * vocab_size / (vocab_size - 1)
    loss = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    torch.testing.assert_close(expected.mean(), loss, rtol=1e-12, atol=1e-12)


def test_one_token_of_two_changes_by_w_over_one_plus_w():  # nematus#52
    payoff = HammingPayoff(2, 1.0, scale="raw")
    ids, _ = payoff.sample(torch.ones(DRAWS, 1, dtype=torch.int64), generator=generator())
    w = math.exp(-1)
    assert (ids == 0).double().mean().item() == pytest.approx(w / (1 + w), abs=0.005)
    assert payoff.rate == pytest.approx(w / (1 + w), rel=1e-12)


def test_excluded_ids_and_padding_stay():  # OpenNMT-py#1463
    payoff = HammingPayoff(200, 5.0, exclude_ids=[0, 1, 2, -100])
    y = torch.tensor([[1, 50, 60, 2, -100, -100]], dtype=torch.int32).expand(4000, -1)
    ids, _ = payoff.sample(y, generator=generator())
    assert torch.equal(ids[:, [0, 3, 4, 5]], y[:, [0, 3, 4, 5]])
    assert ids[:, 1:3].min() >= 3
    assert ids[:, 1:3].max() <= 199
    assert payoff.log_normalizer(y[:1]).item() == pytest.approx(2 * math.log1p(196 * payoff.weight), rel=1e-12)
    assert payoff.log_prob(torch.tensor([[2, 50, 60, 2, -100, -100]]), y[:1].long()).item() == -math.inf
    assert payoff.log_prob(torch.tensor([[1, 50, 0, 2, -100, -100]]), y[:1].long()).item() == -math.inf
    plain = HammingPayoff(200, 5.0)
    ids, _ = plain.sample(torch.tensor([[7, 8, -100]]), torch.tensor([2]), generator=generator(), pad_id=-100)
    assert ids[0, 2] == -100
    with pytest.raises(ValueError, match=r"y\[0, 2\]=-100 is not in 0\.\.199"):
        plain.sample(torch.tensor([[7, 8, -100]]))


def test_the_torch_twin_draws_the_same_distribution():
    reference, payoff = (2, 0, 4, 1), HammingPayoff(5, 0.6, scale="raw", exclude_ids=[4])
    y = torch.tensor([reference]).expand(DRAWS, -1)
    counts = torch.full((DRAWS,), 4)
    ids, lengths = payoff._sample_on_device(y, counts, 1, generator(), 0)
    q, _ = enumerated((2, 0, 1), 4, payoff.weight)
    assert chi_square_p(sampled_strings(ids, lengths), {(a, b, 4, c): p for (a, b, c), p in q.items()}) > 1e-3


def test_temperature_zero_is_the_identity_and_error_rates_are_met():
    y = torch.tensor([[3, 1, 4]])
    assert HammingPayoff(10, 0.0).sample(y)[0].tolist() == y.tolist()
    assert HammingPayoff(10, 0.0).log_prob(y, y).item() == 0.0
    assert HammingPayoff(10, 0.0).entropy(y).item() == 0.0
    for rate in (0.0, 1e-9, 0.1, 0.85):
        assert HammingPayoff.from_error_rate(10, rate).rate == pytest.approx(rate, rel=1e-9)
    with pytest.raises(ValueError, match=r"rate=0.9 must lie in \[0, 0.9\)"):
        HammingPayoff.from_error_rate(10, 0.9)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(0, 6), max_size=9), min_size=1, max_size=5),
    tau=st.floats(0, 100),
    n=st.integers(1, 3),
    excluded=st.sets(st.integers(0, 6), max_size=5),
)
def test_samples_are_what_the_arguments_promise(rows, tau, n, excluded):
    payoff = HammingPayoff(7, tau, exclude_ids=excluded)
    lengths = torch.tensor([len(row) for row in rows])
    y = torch.tensor([[*row, *[99] * (9 - len(row))] for row in rows])
    ids, counts = payoff.sample(y, lengths, n=n, generator=generator(), pad_id=-1)
    assert torch.equal(counts, lengths.repeat_interleave(n))
    assert bool(payoff.log_prob(ids, y.repeat_interleave(n, 0), counts, counts).isfinite().all())
    for sample, row in zip(ids.tolist(), [row for row in rows for _ in range(n)], strict=True):
        assert all(token == -1 for token in sample[len(row) :])
        assert all((a == b) if b in excluded else a not in excluded for a, b in zip(sample, row, strict=False))
