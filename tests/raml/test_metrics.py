"""Edit distance against the textbook recurrence, and what error rates are where something is empty."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenfold.raml.metrics import closest_reference, edit_distance, edit_distances, error_rate


def distance_by_recurrence(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


tokens = st.lists(st.sampled_from(["AH", "a", 97, -1, -2, 0, 2**61 - 1, "b"]), max_size=12)


@settings(max_examples=150, deadline=None)
@given(tokens, tokens)
def test_distance_of_token_lists_is_that_of_the_recurrence(a, b):
    assert edit_distance(a, b) == distance_by_recurrence(a, b)
    assert edit_distances([a, b], [b, b]).tolist() == [distance_by_recurrence(a, b), 0]


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=10), st.text(max_size=10))
def test_distance_of_strings_is_that_of_the_recurrence(a, b):
    assert edit_distance(a, b) == distance_by_recurrence(a, b)


def test_tokens_with_equal_hashes_are_different_tokens():
    assert hash(0) == hash(2**61 - 1)
    assert hash(-1) == hash(-2)
    assert edit_distance([0, -1], [2**61 - 1, -2]) == 2
    assert edit_distance(["a"], [97]) == 1


def test_empty_sides():
    # jiwer#98: an empty reference; jiwer#108 and speechbrain#1919: an empty hypothesis; NVIDIA-NeMo/Speech#6633
    assert edit_distance("", "abc") == edit_distance("abc", "") == edit_distance([], [1, 2, 3]) == 3
    assert error_rate([""], [""]) == error_rate([[]], [[]]) == error_rate([], []) == error_rate("", "") == 0.0
    assert error_rate([""], ["abc"]) == error_rate([[]], [[1, 2, 3]]) == error_rate("", "abc") == 3.0
    assert error_rate(["abc"], [""]) == error_rate([[5, 6]], [[]]) == 1.0


def test_corpus_rate_is_the_sum_of_errors_over_the_sum_of_lengths():
    references, hypotheses = [["a"], ["a", "b", "c"], []], [["x"], ["a", "b", "c"], ["y"]]
    assert error_rate(references, hypotheses) == (1 + 0 + 1) / (1 + 3 + 0)  # not the mean of 1, 0 and 1


def test_code_points_are_not_normalized():
    assert edit_distance("\u00e9", "e\u0301") == 2


def test_arrays_and_tensors_are_sequences_of_their_numbers():
    # editdistance#115 and FunASR#3105: the usual package is archived; tensors were compared by identity elsewhere
    assert edit_distance(torch.tensor([1, 2, 3]), torch.tensor([1, 3])) == 1
    assert edit_distance(np.array([1, 2, 3]), [1, 2, 3]) == 0
    assert edit_distance([torch.tensor(1), torch.tensor(2)], [np.int64(1), 2]) == 0
    assert error_rate(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 5]])) == 0.25


def test_closest_reference_is_the_first_of_equals():
    assert closest_reference(["ab", "ac"], "ad") == "ab"
    with pytest.raises(ValueError, match="references is empty"):
        closest_reference([], "a")


def test_mistakes_are_named():
    with pytest.raises(TypeError, match="two strings or two lists"):
        edit_distance("abc", ["a", "b"])
    with pytest.raises(ValueError, match="2 references and 1 hypotheses"):
        error_rate(["a", "b"], ["a"])
    with pytest.raises(TypeError, match="both a single string"):
        error_rate("abc", ["abc"])
