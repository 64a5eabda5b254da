"""Samples of payoff distributions for a batch of references: Tenfold, and the per-sentence loops that are in public use.

The loops do what the public implementations do, in our words: they draw a number of edits for one sentence after the
other and apply them with NumPy. Both are approximations (a substitute may be the old token, edits may undo each other,
the last token is never changed); Tenfold's samples are exact.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.case import Case

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class Batch(NamedTuple):
    """References of one length, and the temperature on the paper's scale."""

    y: Tensor
    vocab_size: int
    tau: float


def _batch(vocab_size: int, length: int, tau: float, tokens: int) -> Batch:
    import torch

    generator = torch.Generator().manual_seed(0)
    return Batch(torch.randint(0, vocab_size, (tokens // length, length), generator=generator), vocab_size, tau)


def _exact_edits(batch: Batch) -> object:
    from tenfold.raml import EditPayoff

    return EditPayoff(batch.vocab_size, batch.tau).sample(batch.y)


def _paths(batch: Batch) -> object:
    from tenfold.raml import EditPayoff

    return EditPayoff(batch.vocab_size, batch.tau, exact=False).sample(batch.y)


def _hamming(batch: Batch) -> object:
    from tenfold.raml import HammingPayoff

    return HammingPayoff(batch.vocab_size, batch.tau).sample(batch.y)


def _torch_hamming(batch: Batch) -> object:
    import torch

    from tenfold.raml import HammingPayoff

    rate, y = HammingPayoff(batch.vocab_size, batch.tau).rate, batch.y
    draw = torch.randint(0, batch.vocab_size - 1, y.shape)
    return torch.where(torch.rand(y.shape) < rate, draw + (draw >= y), y)


def _histogram(length: int, vocab_size: int, tau: float, log_counts: np.ndarray) -> np.ndarray:
    """Chances of each number of edits, an edit costing (1 + ln V) / tau."""
    import numpy as np

    edits = np.arange(len(log_counts))
    log_p = log_counts + edits * (math.log(vocab_size) - (1 + math.log(vocab_size)) / tau)
    p = np.exp(log_p - log_p.max())
    return p / p.sum()


def _substitution_loop(batch: Batch) -> object:
    """As the translation code that most others took over: positions and new words at random, sentence by sentence."""
    import numpy as np
    from scipy.special import gammaln

    samples = []
    for sentence in batch.y.numpy():
        length = len(sentence)
        edits = np.arange(length)
        log_counts = gammaln(length + 1) - gammaln(edits + 1) - gammaln(length - edits + 1)
        count = np.random.choice(length, p=_histogram(length, batch.vocab_size, batch.tau, log_counts))
        noisy = sentence.copy()
        if count:
            positions = np.random.choice(max(length - 1, 1), size=min(count, max(length - 1, 1)), replace=False)
            noisy[positions] = np.random.randint(0, batch.vocab_size, size=len(positions))
        samples.append(noisy)
    return samples


def _edit_loop(batch: Batch) -> object:
    """As the one public loop with insertions and deletions: one random edit after the other on a list."""
    import numpy as np

    length = batch.y.shape[1]
    log_counts = np.array(
        [
            math.log(
                sum(
                    math.comb(length, s) * math.comb(length + e - 2 * s, e - s)
                    for s in range(min(length, e) + 1)
                    if length + e - 2 * s >= 0
                )
            )
            for e in range(length)
        ]
    )
    samples = []
    for sentence in batch.y.tolist():
        count = np.random.choice(length, p=_histogram(length, batch.vocab_size, batch.tau, log_counts))
        noisy = list(sentence)
        for _ in range(count):
            kind, position = np.random.randint(3), np.random.randint(max(len(noisy), 1))
            if kind == 0 and noisy:
                noisy[position] = int(np.random.randint(batch.vocab_size))
            elif kind == 1 and noisy:
                del noisy[position]
            else:
                noisy.insert(position, int(np.random.randint(batch.vocab_size)))
        samples.append(noisy)
    return samples


def _edit_case(vocab_size: int, length: int, tau: float, *, quick: bool = False) -> Case:
    tokens = 60_000
    return Case(
        f"edit payoff, V={vocab_size}, length {length}, tau {tau}, {tokens:,} tokens",
        lambda: _batch(vocab_size, length, tau, tokens),
        _exact_edits,
        {"tenfold, paths (inexact)": _paths, "loop of random edits": _edit_loop},
        quick=quick,
        goal={"loop of random edits": 0.05},
        note="the loop's samples follow another distribution; Tenfold's are exact",
    )


def _hamming_case(vocab_size: int, length: int, tau: float, *, quick: bool = False) -> Case:
    tokens = 300_000
    return Case(
        f"Hamming payoff, V={vocab_size}, length {length}, tau {tau}, {tokens:,} tokens",
        lambda: _batch(vocab_size, length, tau, tokens),
        _hamming,
        {"torch operations": _torch_hamming, "loop of substitutions": _substitution_loop},
        quick=quick,
        goal={"loop of substitutions": 0.05},
        note="the loop's samples follow another distribution; those of torch are exact",
    )


def _counts(reference: list[int]) -> object:
    from tenfold.raml.distance_counts import distance_counts, pattern

    distance_counts.cache_clear()
    return distance_counts(pattern(reference), 60, 4)


def _counts_in_python(reference: list[int]) -> object:
    """The same automaton with dictionaries: columns of distances up to 4, by output length."""
    vocab_size, most, m = 60, 4, len(reference)
    states, totals = {tuple(min(i, most + 1) for i in range(m + 1)): 1}, [0] * (most + 1)
    while states:
        following: dict[tuple[int, ...], int] = {}
        for column, ways in states.items():
            if column[m] <= most:
                totals[column[m]] += ways
            live = {reference[i] for i in range(m) if column[i] <= most}
            for token, multiplicity in [*((token, 1) for token in live), (None, vocab_size - len(live))]:
                new = [min(column[0] + 1, most + 1)]
                for i in range(m):
                    best = min(column[i] + (reference[i] != token), column[i + 1] + 1, new[i] + 1, most + 1)
                    new.append(best)
                if min(new) <= most:
                    key = tuple(new)
                    following[key] = following.get(key, 0) + ways * multiplicity
        states = following
    return totals


CASES = [
    _edit_case(39, 6, 0.8, quick=True),
    _edit_case(60, 45, 0.85),
    _edit_case(32_000, 30, 0.85),
    _hamming_case(39, 6, 0.8, quick=True),
    _hamming_case(60, 45, 0.85),
    _hamming_case(32_000, 30, 0.85),
    Case(
        "strings at distances 0 to 4, V=60, length 20",
        lambda: [(7 * i * i + 3 * i) % 60 for i in range(20)],
        _counts,
        {"the automaton in Python": _counts_in_python},
        note="exact counts; the bound is 10 ms",
    ),
]
