"""The edit payoff by distance: the weight N_e w^e of all strings at each distance e, and from it Z, entropy, P(e).

N_e is counted exactly by the automaton as far as its states go round. That reaches beyond all distances that matter
where alphabet and reference are small or the temperature is low. Otherwise the weights further out are those of all paths
with e edits, which have a closed form, times the share of these paths that are greedy. That share does not depend on the
temperature; it is estimated from drawn paths, always the same ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from tenfold.raml import kernels
from tenfold.raml.canonical_paths import PathWeights
from tenfold.raml.distance_counts import MOST_EDITS, distance_counts

TAIL = 1e-13  # share of the weight of all paths that may be left out
DRAWS = 8192  # of paths, for the shares that are estimated
LEAST_DRAWS, EFFORT = 512, 2e6
MAX_STATES = 60_000  # of the automaton, over all output lengths: about 0.1 s


@dataclass(frozen=True, eq=False)
class DistanceWeights:
    """The weights of all strings by their distance from a reference.

    Attributes:
        log_weights: ln(N_e w^e) for e = 0, 1, ...
        exact_to: The highest distance whose weight was counted; those beyond are estimates.
        error: Standard error of ln Z; 0 where all weights were counted.
    """

    log_weights: Float[np.ndarray, " distances"]
    exact_to: int
    error: float

    @property
    def log_normalizer(self) -> float:
        """The logarithm of Z."""
        return float(logsumexp(self.log_weights))

    @property
    def pmf(self) -> Float[np.ndarray, " distances"]:
        """P(e)."""
        return np.exp(self.log_weights - self.log_normalizer)

    def joined(self, other: DistanceWeights, max_edits: int | None) -> DistanceWeights:
        """Of two references side by side, whose distances add up."""
        high, other_high = self.log_weights.max(), other.log_weights.max()
        with np.errstate(divide="ignore"):
            weights = np.log(np.convolve(np.exp(self.log_weights - high), np.exp(other.log_weights - other_high)))
        weights = (weights + high + other_high)[: None if max_edits is None else max_edits + 1]
        exact_to = len(weights) - 1
        for part in (self, other):
            exact_to = min(exact_to, part.exact_to) if part.error > 0 else exact_to
        return DistanceWeights(weights, exact_to, math.hypot(self.error, other.error))


def path_log_weights(paths: PathWeights, length: int, ends: int, most: int) -> Float[np.ndarray, " distances"]:
    """Logarithms of the weight of all paths with e = 0, ..., most edits.

    >>> np.exp(path_log_weights(PathWeights(2, 0.25), 1, 1, 1)).tolist()  # substitute, delete, insert; 2 at the end
    [1.0, 1.25]
    """
    inside = kernels.position_weights(length, most, *_position_logs(paths))[length]
    behind = kernels.end_weights(ends, most, _log(paths.more_at_end))[ends]
    high, behind_high = inside.max(), behind.max()
    with np.errstate(divide="ignore"):
        product = np.log(np.convolve(np.exp(inside - high), np.exp(behind - behind_high))[: most + 1])
    return np.maximum(product + high + behind_high, -np.inf)


def limited_tables(
    paths: PathWeights, length: int, ends: int, most: int
) -> tuple[Float[np.ndarray, "positions edits"], Float[np.ndarray, "ends edits"], tuple[float, float, float, float]]:
    """What the sampler within ``most`` edits needs: weights over positions, behind ends, and of single edits, as ln."""
    inside = kernels.position_weights(length, most, *_position_logs(paths))
    behind = kernels.end_weights(ends, most, _log(paths.more_at_end))
    logs = (_log(paths.substitution), _log(paths.deletion), _log(paths.more), _log(paths.more_at_end))
    return inside, behind, logs


@lru_cache(maxsize=4096)
def run_weights(
    tokens: tuple[int, ...], paths: PathWeights, max_edits: int | None = None, draws: int = DRAWS
) -> DistanceWeights:
    """The weights of one reference without excluded ids, its tokens numbered by `distance_counts.pattern`.

    >>> weights = run_weights((0,), PathWeights(2, 0.25))
    >>> weights.error, round(math.exp(weights.log_weights[1]), 12)  # five strings at distance 1
    (0.0, 1.25)
    """
    if max_edits is None:
        most, log_paths = _reach(paths, len(tokens))
    else:
        most, log_paths = max_edits, path_log_weights(paths, len(tokens), 1, max_edits)
    allowed = (paths.substitutes, paths.inserts, paths.deletes)
    counts = _most_counts(tokens, paths.size, most, allowed)
    log_w = math.log(paths.weight)
    exact = np.array([math.log(number) + e * log_w if number else -np.inf for e, number in enumerate(counts)])
    if len(counts) == most + 1:
        return DistanceWeights(exact, most, 0.0)
    # long references are judged in time that grows with the square of the edits
    if max_edits is None:
        edits = min(most, paths.mean_edits(len(tokens)))
        draws = min(draws, max(LEAST_DRAWS, round(EFFORT / (1 + len(tokens) + edits**2))))
    drawn, greedy = _tally(tokens, paths, most, draws, aim=None if max_edits is None else max_edits / 2)
    share = np.where(drawn > 0, np.maximum(greedy, 0.5) / np.maximum(drawn, 1), np.nan)
    known = np.flatnonzero(drawn > 0)
    beyond = np.arange(len(counts), most + 1)
    # a distance that no path was drawn at has next to no weight: the share of the nearest one will do
    shares = np.interp(beyond, known, share[known]) if known.size else np.ones(beyond.size)
    weights = np.concatenate([exact, log_paths[beyond] + np.log(shares)])
    parts = np.exp(log_paths[beyond] - logsumexp(weights))
    variance = np.sum(parts**2 * shares * (1 - shares) / np.maximum(drawn[beyond], 1))
    return DistanceWeights(weights, len(counts) - 1, math.sqrt(variance))


def _most_counts(tokens: tuple[int, ...], size: int, most: int, allowed: tuple[bool, bool, bool]) -> tuple[int, ...]:
    """Exact counts as far as they go: all of them, or else those of as many distances as the states allow."""
    if most <= MOST_EDITS:
        counts = distance_counts(tokens, size, most, allowed, MAX_STATES)
        if counts is not None:
            return counts
    counts = (1,)
    for edits in range(1, min(most, MOST_EDITS) + 1):
        further = distance_counts(tokens, size, edits, allowed, MAX_STATES)
        if further is None:
            break
        counts = further
    return counts


def _reach(paths: PathWeights, length: int) -> tuple[int, Float[np.ndarray, " distances"]]:
    """The least number of edits beyond which next to no path goes, and the paths' weights up to it."""
    log_z, most = paths.log_normalizer(length), 15
    while True:
        log_paths = path_log_weights(paths, length, 1, most)
        beyond = 1 - np.cumsum(np.exp(log_paths - log_z))
        if beyond[-1] <= TAIL:
            last = int(np.argmax(beyond <= TAIL))
            return last, log_paths[: last + 1]
        most = 2 * most + 1


def _tally(
    tokens: tuple[int, ...], paths: PathWeights, most: int, draws: int, aim: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Paths drawn at each number of edits, and the greedy ones; at the weight whose paths have ``aim`` edits, if given."""
    length = len(tokens)
    if aim is not None:
        low, high = 0.0, (1 / paths.size if paths.inserts else 1.0) * (1 - 1e-6)
        for _ in range(60):
            middle = 0.5 * (low + high)
            trial = PathWeights(paths.size, middle, paths.substitutes, paths.inserts, paths.deletes)
            low, high = (middle, high) if trial.mean_edits(length) < aim else (low, middle)
        paths = PathWeights(paths.size, high, paths.substitutes, paths.inserts, paths.deletes)
    allowed = (paths.substitutes, paths.inserts, paths.deletes)
    reference = np.asarray(tokens, np.int64)
    drawn, greedy = kernels.tally_paths(
        reference, draws, np.uint64(20161201), paths.chances(), paths.size, allowed, most
    )
    return drawn, greedy


def _position_logs(paths: PathWeights) -> tuple[float, float]:
    return _log(paths.substitution + paths.deletion), _log(paths.more)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
