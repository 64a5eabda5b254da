"""The edit payoff against enumeration: samples, probabilities, and what its arguments promise."""

import itertools
import math

import numpy as np
import pytest
import torch
from enumeration import (
    ALL,
    chi_square_p,
    least_operations,
    payoff_weights,
    sampled_strings,
    strings,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from tenfold.raml import EditPayoff, HammingPayoff, edit, kernels
from tenfold.runtime import threads

DRAWS = 200_000
MODES = [ALL, ("insert", "delete"), ("substitute", "insert"), ("substitute", "delete"), ("insert",), ("delete",)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def one_letter_normalizer(vocab_size, weight):
    """Z of the reference "a": d is n - 1 for a string of n >= 1 letters with an "a", n without, 1 for the empty one."""
    with_any, without = vocab_size / (1 - vocab_size * weight), (vocab_size - 1) / (1 - (vocab_size - 1) * weight)
    return with_any - without + weight * without + weight


def p_of_samples(payoff, reference, vocab_size, log_z, longest, draws=DRAWS, operations=ALL, max_edits=math.inf):
    ids, lengths = payoff.sample(torch.tensor([reference], dtype=torch.int64), n=draws, generator=generator(1))
    weights = payoff_weights(reference, vocab_size, payoff.weight, longest, operations, max_edits)
    probabilities = {y: weight / math.exp(log_z) for y, weight in weights.items()}
    return chi_square_p(sampled_strings(ids, lengths), probabilities)


# ---------------------------------------------------------------- samples


@pytest.mark.parametrize(
    ("vocab_size", "reference", "raw_tau"), [(2, (0, 0, 1, 0), 0.8), (3, (0, 1, 0, 2), 0.55), (3, (0, 0, 0), 0.6)]
)
def test_samples_follow_q_and_paths_without_rejection_do_not(vocab_size, reference, raw_tau):
    payoff = EditPayoff(vocab_size, raw_tau, scale="raw")
    log_z = payoff.log_normalizer(torch.tensor([reference])).item()
    longest = len(reference) + 3
    assert p_of_samples(payoff, reference, vocab_size, log_z, longest) > 1e-3
    paths = EditPayoff(vocab_size, raw_tau, scale="raw", exact=False)
    assert p_of_samples(paths, reference, vocab_size, log_z, longest) < 1e-12  # the test has power


def test_samples_of_the_paths_follow_their_own_log_prob():
    reference, payoff = (0, 1, 1), EditPayoff(2, 0.8, scale="raw", exact=False)
    ids, lengths = payoff.sample(torch.tensor([reference]), n=DRAWS, generator=generator())
    listed = list(strings(2, 7))
    padded = torch.tensor([[*y, *[0] * (7 - len(y))] for y in listed])
    sizes = torch.tensor([len(y) for y in listed])
    q = payoff.log_prob(padded, torch.tensor([reference]), sizes).exp()
    assert q.sum() < 1
    assert chi_square_p(sampled_strings(ids, lengths), dict(zip(listed, q.tolist(), strict=True))) > 1e-3


def test_halves_joined_to_wholes_follow_q(monkeypatch):
    monkeypatch.setattr(edit, "LEAF_EDITS", 0)
    monkeypatch.setattr(edit, "LEAST_LEAF", 1)
    reference, payoff = (0, 1, 1, 0, 1), EditPayoff(2, 0.75, scale="raw")
    log_z = payoff.log_normalizer(torch.tensor([reference])).item()
    assert p_of_samples(payoff, reference, 2, log_z, 8) > 1e-3


@pytest.mark.parametrize("operations", MODES[1:])
def test_samples_with_fewer_operations_follow_q(operations):
    reference, max_edits = (0, 1, 1, 2), 3
    for limit in (None, max_edits):
        payoff = EditPayoff(3, 0.5, scale="raw", operations=operations, max_edits=limit)
        log_z = payoff.log_normalizer(torch.tensor([reference])).item()
        bound = math.inf if limit is None else limit
        assert p_of_samples(payoff, reference, 3, log_z, 7, 100_000, operations, bound) > 1e-3


@pytest.mark.parametrize("raw_tau", [0.4, 2.0])  # the second has no normaliser without the limit
def test_samples_within_a_number_of_edits_follow_q(raw_tau):
    reference, payoff = (0, 1, 0), EditPayoff(3, raw_tau, scale="raw", max_edits=3)
    weights = payoff_weights(reference, 3, payoff.weight, 6, max_edits=3)
    assert payoff.log_normalizer(torch.tensor([reference])).item() == pytest.approx(
        math.log(sum(weights.values())), abs=1e-12
    )
    assert p_of_samples(payoff, reference, 3, math.log(sum(weights.values())), 6, max_edits=3) > 1e-3


@pytest.mark.parametrize("max_edits", [None, 2])
def test_runs_between_excluded_ids_are_references_of_their_own(max_edits):
    payoff = EditPayoff(4, 0.25, scale="raw", exclude_ids=[3, -100], max_edits=max_edits)
    reference = [3, 0, 1, 3, 3, 2, -100]  # begins and ends with excluded ids; two are neighbours
    ids, lengths = payoff.sample(torch.tensor([reference]), n=DRAWS, generator=generator())
    first = payoff_weights((0, 1), 3, payoff.weight, 6)
    second = payoff_weights((2,), 3, payoff.weight, 5)
    joint = {
        (3, *a, 3, 3, *b, -100): u * v
        for (a, u), (b, v) in itertools.product(first.items(), second.items())
        if max_edits is None or least_operations((0, 1), a) + least_operations((2,), b) <= max_edits
    }
    if max_edits is None:
        log_z = payoff.log_normalizer(torch.tensor([reference])).item()
        # to the tail of what was enumerated
        assert log_z == pytest.approx(math.log(sum(joint.values())), abs=1e-3)
    else:
        log_z = math.log(sum(joint.values()))
        assert payoff.log_normalizer(torch.tensor([reference])).item() == pytest.approx(log_z, abs=1e-12)
    probabilities = {y: weight / math.exp(log_z) for y, weight in joint.items()}
    assert chi_square_p(sampled_strings(ids, lengths), probabilities) > 1e-3


@pytest.mark.parametrize("operations", MODES)
def test_each_string_has_one_greedy_path_of_the_length_of_its_distance(operations):
    allowed = tuple(operation in operations for operation in ALL)
    vocab_size, most = 2, 4
    for reference in strings(vocab_size, 4, shortest=3):
        tokens, out, front = np.array(reference), np.empty(64, np.int64), np.empty(64, np.int64)
        greedy = {}
        for path in _paths(reference, vocab_size, most, operations):
            edits = np.array([*path, (0, 0, 0)], np.int64)
            if kernels.path_verdict(tokens, 0, len(tokens), edits, 0, len(path), allowed, out, 0, front) == 1:
                y = tuple(out[: kernels.write_path(tokens, 0, len(tokens), edits, 0, len(path), out, 0)].tolist())
                assert y not in greedy
                greedy[y] = len(path)
        distances = {y: least_operations(reference, y, operations) for y in strings(vocab_size, len(reference) + most)}
        assert greedy == {y: d for y, d in distances.items() if d <= most}


def _paths(reference, vocab_size, most, operations):
    """All paths of independent edits: lists of (position, kind, token)."""
    if not reference:
        behind = range(most + 1) if "insert" in operations else [0]
        for count in behind:
            for tokens in itertools.product(range(vocab_size), repeat=count):
                yield tuple((0, 2, token) for token in tokens)
        return
    others = [other for other in range(vocab_size) if other != reference[0]]
    here = [()]
    if "substitute" in operations:
        here += [((0, 0, other),) for other in others]
    if "delete" in operations:
        here += [((0, 1, -1),)]
    if "insert" in operations:
        for count in range(1, most + 1):
            here += [tuple((0, 2, t) for t in ts) for ts in itertools.product(others, repeat=count)]
    for first in here:
        if len(first) <= most:
            for rest in _paths(reference[1:], vocab_size, most - len(first), operations):
                yield first + tuple((i + 1, kind, token) for i, kind, token in rest)


def test_long_references_stay_finite():
    y = torch.randint(0, 60, (2, 2000), generator=generator())
    payoff = EditPayoff(60, 0.75)
    ids, lengths = payoff.sample(y, n=2, generator=generator())
    distances = payoff.distance(ids, y.repeat_interleave(2, 0), lengths)
    mean = payoff.paths.mean_edits(2000)
    assert bool(((distances - mean).abs() < 6 * math.sqrt(2 * mean)).all())
    z = payoff.log_normalizer(y[:1])
    assert bool(z.isfinite().all())
    assert 0 < payoff.paths.log_normalizer(2000) - z.item() < 2.0  # paths are more than strings, by few


# ---------------------------------------------------------------- probabilities


@pytest.mark.parametrize("operations", MODES)
def test_probabilities_within_a_number_of_edits_equal_enumeration(operations):
    reference, max_edits = (0, 0, 1), 3
    payoff = EditPayoff(2, 0.7, scale="raw", operations=operations, max_edits=max_edits)
    weights = payoff_weights(reference, 2, payoff.weight, 6, operations, max_edits)
    z = sum(weights.values())
    listed = list(strings(2, 6))
    padded = torch.tensor([[*y, *[-7] * (6 - len(y))] for y in listed])
    log_q = payoff.log_prob(padded, torch.tensor([reference]), torch.tensor([len(y) for y in listed]))
    expected = torch.tensor([weights.get(y, 0.0) / z for y in listed], dtype=torch.float64)
    torch.testing.assert_close(log_q.exp(), expected, rtol=1e-9, atol=0)
    y = torch.tensor([reference])
    entropy = -sum(w / z * math.log(w / z) for w in weights.values())
    assert payoff.entropy(y).item() == pytest.approx(entropy, rel=1e-9)
    pmf = np.zeros(max_edits + 1)
    for string, weight in weights.items():
        pmf[int(least_operations(reference, string, operations))] += weight / z
    np.testing.assert_allclose(payoff.distance_pmf(y)[0].numpy(), pmf, rtol=1e-9)


def test_probabilities_over_all_strings_equal_enumeration():
    reference, payoff = (0, 1, 0), EditPayoff(2, 0.17, scale="raw")
    weights = payoff_weights(reference, 2, payoff.weight, 8)  # what is longer weighs (2 w)^6 = 2e-13
    z, y = sum(weights.values()), torch.tensor([reference])
    assert payoff.log_normalizer(y).item() == pytest.approx(math.log(z), abs=1e-11)
    entropy = -sum(w / z * math.log(w / z) for w in weights.values())
    assert payoff.entropy(y).item() == pytest.approx(entropy, rel=1e-9)


@pytest.mark.parametrize(("vocab_size", "raw_tau"), [(2, 0.3), (2, 1.2), (39, 0.2), (60, 0.22)])
def test_normalizers_of_the_empty_reference_and_of_one_token_have_closed_forms(vocab_size, raw_tau):
    payoff = EditPayoff(vocab_size, raw_tau, scale="raw")
    w = payoff.weight
    empty = torch.zeros(1, 0, dtype=torch.int64)
    assert payoff.log_normalizer(empty).item() == pytest.approx(-math.log1p(-vocab_size * w), abs=1e-9)
    pmf = payoff.distance_pmf(empty)[0].numpy()
    expected = (1 - vocab_size * w) * (vocab_size * w) ** np.arange(len(pmf))
    np.testing.assert_allclose(pmf, expected, rtol=1e-9)
    one = payoff.log_normalizer(torch.tensor([[0]])).item()
    assert one == pytest.approx(math.log(one_letter_normalizer(vocab_size, w)), abs=1e-9)


def test_estimated_normalizers_agree_with_counted_ones(monkeypatch):
    from tenfold.raml import distance_weights

    y, payoff = torch.tensor([[0, 1, 1, 2, 0, 2]]), EditPayoff(3, 0.6, scale="raw")
    (counted,) = payoff.distance_weights(y)
    assert counted.error == 0
    distance_weights.run_weights.cache_clear()
    monkeypatch.setattr(distance_weights, "MAX_STATES", 300)
    (estimated,) = payoff.distance_weights(y)
    distance_weights.run_weights.cache_clear()
    assert 0 < estimated.exact_to < len(estimated.log_weights) - 1
    assert 0 < estimated.error < 0.02
    assert abs(estimated.log_normalizer - counted.log_normalizer) < 4 * estimated.error


def test_probabilities_of_paths_add_up_to_one():
    payoff, reference = EditPayoff(2, 0.2, scale="raw", exact=False), torch.tensor([[0, 1, 1]])
    listed = list(strings(2, 8))
    padded = torch.tensor([[*y, *[0] * (8 - len(y))] for y in listed])
    log_q = payoff.log_prob(padded, reference, torch.tensor([len(y) for y in listed]))
    assert log_q.exp().sum().item() == pytest.approx(1, abs=1e-10)
    with pytest.raises(ValueError, match="exact=False has no entropy"):
        payoff.entropy(reference)


def test_substitutions_alone_are_the_hamming_payoff():
    y = torch.tensor([[1, 2, 3, 4]])
    payoff, hamming = EditPayoff(6, 0.9, operations=("substitute",)), HammingPayoff(6, 0.9)
    others = torch.tensor([[1, 2, 3, 4], [1, 5, 3, 4], [0, 0, 0, 0]])
    torch.testing.assert_close(payoff.log_prob(others, y), hamming.log_prob(others, y), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(payoff.distance_pmf(y), hamming.distance_pmf(y), rtol=1e-9, atol=1e-12)
    _, lengths = payoff.sample(y, n=100, generator=generator())
    assert lengths.tolist() == [4] * 100


# ---------------------------------------------------------------- arguments


def test_improper_temperatures_are_refused_with_the_largest_legal_one():
    with pytest.raises(ValueError, match=r"only below tau=1\.24424 on the paper scale with 60 tokens"):
        EditPayoff(60, 1.25)
    with pytest.raises(ValueError, match=r"only below tau=0\.244239 on the raw scale"):
        EditPayoff(60, 0.6, scale="raw")
    EditPayoff(60, 1.25, max_edits=3)
    EditPayoff(60, 1.25, operations=("substitute", "delete"))
    for tau in (-0.1, math.nan):
        with pytest.raises(ValueError, match="must be at least 0"):
            EditPayoff(60, tau)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 1}, "at least 2 tokens"),
        ({"exclude_ids": range(9)}, "exclude_ids leaves 1 of vocab_size=10"),
        ({"operations": ("swap",)}, "must be some of: substitute, insert, delete"),
        ({"operations": ()}, "must be some of"),
        ({"scale": "log"}, "must be one of: paper, raw"),
        ({"max_edits": -1}, "max_edits=-1 must lie in"),
        ({"max_edits": 2, "exact": False}, "max_edits needs exact=True"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options, message):
    arguments = {"vocab_size": 10, "tau": 0.5} | options
    with pytest.raises(ValueError, match=message):
        EditPayoff(**arguments)


def test_ids_outside_of_the_vocabulary_are_refused():
    payoff = EditPayoff(5, 0.5)
    with pytest.raises(ValueError, match=r"y\[1, 2\]=5 is not in 0\.\.4"):
        payoff.sample(torch.tensor([[0, 1, 2], [0, 1, 5]]))
    with pytest.raises(ValueError, match="n=0 samples"):
        payoff.sample(torch.tensor([[0]]), n=0)
    with pytest.raises(ValueError, match="seeds or generator"):
        payoff.sample(torch.tensor([[0]]), generator=generator(), seeds=[1])
    with pytest.raises(ValueError, match="lengths must lie in"):
        payoff.sample(torch.tensor([[0]]), torch.tensor([2]))


def test_temperature_zero_is_the_identity():
    y, lengths = torch.tensor([[3, 1, 4], [1, 5, 9]]), torch.tensor([3, 2])
    for payoff in (EditPayoff(10, 0.0), EditPayoff(10, 0.0, max_edits=2), EditPayoff(10, 0.0, exact=False)):
        ids, counts = payoff.sample(y, lengths, n=2, pad_id=-1)
        assert ids.tolist() == [[3, 1, 4], [3, 1, 4], [1, 5, -1], [1, 5, -1]]
        assert counts.tolist() == [3, 3, 2, 2]
        assert payoff.log_prob(y, y).tolist() == [0.0, 0.0]
        assert payoff.log_prob(y.flip(0), y).tolist() == [-math.inf, -math.inf]
    assert EditPayoff(10, 0.0).entropy(y).tolist() == [0.0, 0.0]
    assert EditPayoff(10, 0.0).distance_pmf(y).tolist() == [[1.0], [1.0]]
    # a temperature that falls to zero ends there, neuralmonkey#739, OpenNMT-tf#90
    assert EditPayoff(10, 0.9).with_tau(1e-6).sample(y, generator=generator())[0].tolist() == y.tolist()


def test_a_row_is_drawn_alike_whatever_the_batch_and_the_threads():
    payoff = EditPayoff(30, 0.9)
    y, lengths = torch.randint(0, 30, (400, 9), generator=generator()), torch.arange(400) % 10
    seeds = torch.arange(400)
    ids, counts = payoff.sample(y, lengths, n=3, seeds=seeds)
    with threads(2):
        again, again_counts = payoff.sample(y, lengths, n=3, seeds=seeds)
    assert torch.equal(ids, again)
    assert torch.equal(counts, again_counts)
    alone, alone_counts = payoff.sample(y[7:8, :7], lengths[7:8], n=2, seeds=seeds[7:8].numpy())
    assert torch.equal(counts[21:23], alone_counts)
    assert torch.equal(ids[21:23, : alone.shape[1]] * (ids[21:23, : alone.shape[1]] >= 0), alone)
    first, _ = payoff.sample(y, generator=generator(4))
    second, _ = payoff.sample(y, generator=generator(4))
    third, _ = payoff.sample(y, generator=generator(5))
    assert torch.equal(first, second)
    assert first.shape != third.shape or not torch.equal(first, third)


def test_labels_of_minus_100_behind_the_reference_are_never_read():  # OpenNMT-py#1463
    payoff = EditPayoff(200, 0.9)
    y = torch.tensor([[150, 151, -100, -100]], dtype=torch.int32)
    ids, lengths = payoff.sample(y, torch.tensor([2]), n=500, generator=generator(), pad_id=-100)
    assert ids.dtype == torch.int32
    inside = torch.arange(ids.shape[1]) < lengths[:, None]
    assert bool((ids[inside] >= 0).all())
    assert bool((ids[~inside] == -100).all())


def test_short_targets_may_stay_and_may_change_altogether():  # nematus#52
    payoff = EditPayoff(2, 0.9, scale="raw")
    ids, lengths = payoff.sample(torch.tensor([[1]]), n=DRAWS, generator=generator())
    drawn = sampled_strings(ids, lengths)
    z = one_letter_normalizer(2, payoff.weight)
    assert drawn[(1,)] / DRAWS == pytest.approx(1 / z, abs=0.006)
    assert drawn[(0,)] / DRAWS == pytest.approx(payoff.weight / z, abs=0.006)
    assert drawn[()] / DRAWS == pytest.approx(payoff.weight / z, abs=0.006)


def test_from_error_rate_gives_that_rate():
    payoff = EditPayoff.from_error_rate(32_000, 0.1)  # next to nothing is rejected
    y = torch.randint(0, 32_000, (20, 1000), generator=generator())
    ids, lengths = payoff.sample(y, generator=generator())
    mean = payoff.distance(ids, y, lengths).mean().item() / 1000
    assert mean == pytest.approx(0.1, abs=0.01)
    assert EditPayoff.from_error_rate(60, 0).tau == 0
    with pytest.raises(ValueError, match="must be below"):
        EditPayoff.from_error_rate(60, 0.9, operations=("delete",))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(0, 6), max_size=9), min_size=1, max_size=5),
    tau=st.floats(0.01, 1.45),
    n=st.integers(1, 3),
    excluded=st.sets(st.integers(0, 6), max_size=4),
    operations=st.sampled_from(MODES),
    max_edits=st.sampled_from([None, 0, 1, 5]),
)
def test_samples_are_what_the_arguments_promise(rows, tau, n, excluded, operations, max_edits):
    if tau >= 1 + 1 / math.log(7 - len(excluded)) and max_edits is None:
        tau = 1.0
    payoff = EditPayoff(7, tau, operations=operations, exclude_ids=excluded, max_edits=max_edits)
    lengths = torch.tensor([len(row) for row in rows])
    y = torch.tensor([[*row, *[99] * (9 - len(row))] for row in rows])
    ids, counts = payoff.sample(y, lengths, n=n, generator=generator())
    assert ids.shape == (len(rows) * n, counts.max())
    references = y.repeat_interleave(n, 0)
    distances = payoff.distance(ids, references, counts, lengths.repeat_interleave(n))
    assert bool(distances.isfinite().all())
    if max_edits is not None:
        assert bool((distances <= max_edits).all())
    for k, (sample, count) in enumerate(zip(ids.tolist(), counts.tolist(), strict=True)):
        kept = [token for token in rows[k // n] if token in excluded]
        assert [token for token in sample[:count] if token in excluded] == kept


@settings(max_examples=200, deadline=None)
@given(a=st.lists(st.integers(0, 3), max_size=12), b=st.lists(st.integers(0, 3), max_size=12))
def test_distance_is_levenshtein(a, b):
    y, reference = (torch.tensor([row], dtype=torch.int64).reshape(1, -1) for row in (a, b))
    assert EditPayoff(4, 0.5).distance(y, reference).item() == Levenshtein.distance(a, b)
    indel = least_operations(b, a, ("insert", "delete"))
    assert EditPayoff(4, 0.5, operations=("insert", "delete")).distance(y, reference).item() == indel
