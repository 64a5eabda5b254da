"""Counts by distance against brute force and the closed form; the published bound and its figure."""

import itertools
import math
from collections import Counter

import pytest
from enumeration import ALL, least_operations, strings
from hypothesis import given, settings
from hypothesis import strategies as st

from tenfold.raml import EditPayoff, count_at_distance
from tenfold.raml.distance_counts import distance_counts, script_bound


@pytest.mark.parametrize(
    ("vocab_size", "reference"),
    [(2, ()), (2, (0,)), (2, (0, 0, 1, 1, 0)), (3, (0, 1, 2, 0)), (4, (1, 1, 1)), (5, (0, 3, 0))],
)
@pytest.mark.parametrize("operations", [ALL, ("insert", "delete"), ("substitute", "insert"), ("delete",)])
def test_counts_equal_brute_force(vocab_size, reference, operations):
    most = 3
    found = Counter(
        least_operations(reference, y, operations) for y in strings(vocab_size, min(len(reference) + most, 7))
    )
    most = min(most, 7 - len(reference))
    for distance in range(most + 1):
        assert count_at_distance(reference, distance, vocab_size, operations=operations) == found[distance]


@settings(max_examples=60, deadline=None)
@given(reference=st.lists(st.integers(0, 4), min_size=1, max_size=12), vocab_size=st.integers(5, 10**6))
def test_strings_at_distance_one_depend_on_runs_alone(reference, vocab_size):
    runs = len(list(itertools.groupby(reference)))
    expected = 2 * len(reference) * (vocab_size - 1) + vocab_size + runs
    assert count_at_distance(reference, 1, vocab_size) == expected


def test_large_counts_are_exact_whole_numbers():
    # of the empty reference: V^e, far beyond 64 bits
    assert count_at_distance([], 9, 32_000) == 32_000**9
    # substitutions alone: C(m, e) (V - 1)^e
    expected = math.comb(30, 5) * 31_999**5
    assert count_at_distance(list(range(30)), 5, 32_000, operations=["substitute"]) == expected


def test_the_bound_is_one_and_its_ratio_is_known():
    reference = [0, 0, 1, 0, 1, 1]
    for edits in range(5):
        assert script_bound(6, 2, edits) >= count_at_distance(reference, edits, 2)
    # of the published experiments: V = 60, m = 20, tau 0.9 gives more than 0.1 to exactly 5, ..., 9 edits
    log_w = -(1 + math.log(60)) / 0.9
    weights = [script_bound(20, 60, e) * math.exp(e * log_w) for e in range(60)]
    total = sum(weights)
    assert [e for e, weight in enumerate(weights) if weight / total > 0.1] == [5, 6, 7, 8, 9]


def test_counts_stop_at_the_states_they_may_use():
    assert distance_counts(tuple(range(20)), 60, 4, (True, True, True), 100) is None


def test_payoffs_count_over_their_own_alphabet():
    payoff = EditPayoff(6, 0.5, exclude_ids=[5])
    assert payoff.count_at_distance([0, 0, 1], 2) == count_at_distance([0, 0, 1], 2, 5)
    # two references side by side: one edit here or there
    one = count_at_distance([0, 0], 1, 5) + count_at_distance([1], 1, 5)
    assert payoff.count_at_distance([0, 0, 5, 1], 1) == one


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 3], 1, 3), "the id 3, but vocab_size=3"),
        (([0], -1, 3), "distance=-1 must lie in"),
        (([0], 1, 1), "at least 2 tokens"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        count_at_distance(*arguments)
