"""The payoff distributions by brute force over small alphabets, and the chi-square test of samples."""

import itertools
import math
from collections import Counter

import numpy as np
from scipy.stats import chi2

ALL = ("substitute", "insert", "delete")


def strings(vocab_size, longest, shortest=0):
    """All strings of these lengths."""
    for length in range(shortest, longest + 1):
        yield from itertools.product(range(vocab_size), repeat=length)


def least_operations(reference, y, operations=ALL):
    """The textbook table: the least number of these operations from the reference to y, or infinity."""
    table = np.full((len(reference) + 1, len(y) + 1), math.inf)
    table[0, 0] = 0
    for i in range(len(reference) + 1):
        for j in range(len(y) + 1):
            if i and j:
                equal = reference[i - 1] == y[j - 1]
                if equal or "substitute" in operations:
                    table[i, j] = min(table[i, j], table[i - 1, j - 1] + (not equal))
            if i and "delete" in operations:
                table[i, j] = min(table[i, j], table[i - 1, j] + 1)
            if j and "insert" in operations:
                table[i, j] = min(table[i, j], table[i, j - 1] + 1)
    return table[-1, -1]


def payoff_weights(reference, vocab_size, weight, longest, operations=ALL, max_edits=math.inf):
    """String -> w^d, for all strings up to a length that the operations reach within max_edits."""
    weights = {}
    for y in strings(vocab_size, longest):
        distance = least_operations(reference, y, operations)
        if distance <= max_edits and distance < math.inf:
            weights[y] = weight**distance
    return weights


def sampled_strings(ids, lengths):
    """How often each string was drawn."""
    return Counter(tuple(row[:length]) for row, length in zip(ids.tolist(), lengths.tolist(), strict=True))


def chi_square_p(observed, probabilities):
    """The p-value of the counts under the probabilities; rare strings, and all those not listed, share one bin."""
    total = sum(observed.values())
    common = {y: p for y, p in probabilities.items() if p * total >= 10}
    expected = np.array([*(p * total for p in common.values()), (1 - sum(common.values())) * total])
    seen = np.array([*(observed[y] for y in common), 0])
    seen[-1] = total - seen.sum()
    if expected[-1] < 5:
        assert seen[-1] <= 40  # next to nothing is there
        expected, seen = expected[:-1], seen[:-1]
    return chi2.sf(((seen - expected) ** 2 / expected).sum(), len(expected) - 1)
