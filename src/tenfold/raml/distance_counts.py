"""How many strings lie at each edit distance from a reference, exactly, by a determinised automaton.

Read an output token by token and keep the last column of the table of distances to all prefixes of the reference.
Entries above E never matter again, so a state is the window of 2 E + 1 entries around the diagonal. Tokens that do not
occur in the window all lead to one state: the work does not depend on the size of the alphabet. Strings are counted
forward, one output length after the other, merged by state; each state that is alive can be completed.

The count of the published experiments is one of edit scripts, several of which make the same string: it is an upper
bound. At distance 1 the exact count is ``2 m (V - 1) + V + runs``, runs of equal tokens.

Counts are whole numbers, computed modulo 2^64 and, where they may be larger, modulo primes too, and put together by the
Chinese remainder theorem.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import count
from math import comb

import numpy as np

from tenfold.raml import kernels
from tenfold.raml.temperature import check_vocab_size

OPERATIONS = ("substitute", "insert", "delete")
MOST_EDITS = 250  # of the automaton, whose entries are bytes


def count_at_distance(
    reference: Sequence[int], distance: int, vocab_size: int, *, operations: Iterable[str] = OPERATIONS
) -> int:
    """The number of strings over the vocabulary whose edit distance from the reference is exactly ``distance``.

    Args:
        reference: Token ids in 0..vocab_size - 1.
        distance: Edits, at least 0.
        vocab_size: V, at least 2.
        operations: The edits that count; the distance is the least number of these.

    Returns:
        The count, exact however large. The time grows about fourfold with each further edit.

    Raises:
        ValueError: A negative distance, one above 250, an id outside of the vocabulary, or an unknown operation.

    Norouzi et al. 2016, section 2.3, count edit scripts instead.

    >>> count_at_distance([0, 0, 1], 1, vocab_size=2)  # 2 m (V - 1) + V + runs
    10
    >>> count_at_distance([0, 1], 2, vocab_size=3, operations=["substitute"])
    4
    """
    check_vocab_size(vocab_size)
    tokens = tuple(int(token) for token in reference)
    outside = [token for token in tokens if not 0 <= token < vocab_size]
    if outside:
        raise ValueError(f"reference holds the id {outside[0]}, but vocab_size={vocab_size}")
    if not 0 <= distance <= MOST_EDITS:
        raise ValueError(f"distance={distance} must lie in 0..{MOST_EDITS}")
    counts = distance_counts(pattern(tokens), vocab_size, distance, checked_operations(operations))
    assert counts is not None
    return counts[distance]


def checked_operations(operations: Iterable[str]) -> tuple[bool, bool, bool]:
    """Whether substitution, insertion and deletion are among the operations.

    Raises:
        ValueError: There is none, or an unknown one.
    """
    given = (operations,) if isinstance(operations, str) else tuple(operations)
    unknown = [operation for operation in given if operation not in OPERATIONS]
    if unknown or not given:
        raise ValueError(f"operations={given!r} must be some of: {', '.join(OPERATIONS)}")
    return "substitute" in given, "insert" in given, "delete" in given


def pattern(tokens: Iterable[int]) -> tuple[int, ...]:
    """The reference with its tokens numbered by first occurrence: counts depend on nothing else.

    >>> pattern([7, 3, 7])
    (0, 1, 0)
    """
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(token, len(numbers)) for token in tokens)


@lru_cache(maxsize=4096)
def distance_counts(
    tokens: tuple[int, ...],
    vocab_size: int,
    most: int,
    allowed: tuple[bool, bool, bool] = (True, True, True),
    max_states: int | None = None,
) -> tuple[int, ...] | None:
    """Numbers of strings at distances 0, ..., most; None where there are more than ``max_states`` states.

    >>> distance_counts((0,), 2, 2)
    (1, 5, 8)
    """
    reference = np.asarray(tokens, np.int64)
    limit = 2**62 if max_states is None else max_states
    complete, found = kernels.count_by_distance(reference, vocab_size, most, *allowed, np.uint64(0), limit)
    if not complete:
        return None
    bound = max(script_bound(len(tokens), vocab_size, edits) for edits in range(most + 1))
    totals, modulus = [int(value) for value in found], 2**64
    for prime in _primes():
        if modulus > bound:
            break
        _, found = kernels.count_by_distance(reference, vocab_size, most, *allowed, np.uint64(prime), limit)
        inverse = pow(modulus, -1, prime)
        totals = [
            total + modulus * ((int(rest) - total) * inverse % prime) for total, rest in zip(totals, found, strict=True)
        ]
        modulus *= prime
    return tuple(totals)


def script_bound(length: int, vocab_size: int, edits: int) -> int:
    """The bound of the published experiments on the number of strings at a distance, and no less than the count.

    ``sum_s C(m, s) C(m + e - 2 s, e - s) V^e``: s substitutions (a deletion is one by nothing) and e - s insertions.

    >>> script_bound(6, 2, 1), count_at_distance([0, 1, 0, 1, 0, 1], 1, vocab_size=2)
    (26, 20)
    """
    scripts = sum(
        comb(length, s) * comb(length + edits - 2 * s, edits - s)
        for s in range(min(length, edits) + 1)
        if length + edits - 2 * s >= 0
    )
    return scripts * vocab_size**edits


def _primes() -> Iterable[int]:
    """Primes below 2^31, downward: products of two residues fit into 64 bits."""
    for candidate in count(2**31 - 1, -2):
        if all(candidate % divisor for divisor in range(3, 46341, 2)):
            yield candidate
