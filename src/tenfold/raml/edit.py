"""The edit-distance payoff: exact samples, log-probabilities, and what the distribution looks like."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tenfold.raml import kernels
from tenfold.raml.alphabet import Alphabet, as_arrays, batched, row_seeds
from tenfold.raml.canonical_paths import PathWeights
from tenfold.raml.distance_counts import MOST_EDITS, OPERATIONS, checked_operations, distance_counts, pattern
from tenfold.raml.distance_weights import DistanceWeights, limited_tables, run_weights
from tenfold.raml.hamming import check_samples
from tenfold.raml.temperature import (
    edit_raw_temperature,
    edit_weight,
    raw_temperature,
    scaled_temperature,
    temperature_limit,
)
from tenfold.runtime import parallel_rows

BLOCK = 1 << 14  # tokens that one thread takes at a time, about a millisecond
LEAF_EDITS = 16  # mean edits of a stretch that is drawn as a whole
LEAST_LEAF = 4


class EditPayoff:
    """Strings of any length, less likely by exp(-1 / tau_raw) for every edit that separates them from the reference.

    ``q(y | y*) = w^d(y, y*) / Z(y*)`` with w = exp(-1 / tau_raw) and d the Levenshtein distance. Samples are exact at
    every legal temperature: independent edits are drawn, and kept only where they are the one designated shortest edit
    script of the string that they make (see the module ``canonical_paths``).

    An insertion can be of V tokens at each place and a deletion only of one, so samples are longer than their
    references on average: at V = 39, length 6, tau 0.8, by 0.8 tokens. ``operations=("substitute",)`` keeps the length.

    Args:
        vocab_size: Ids are 0, ..., vocab_size - 1.
        tau: Temperature, at least 0 (0: the reference itself). With insertions it must lie below `temperature_limit`.
        scale: "paper" (one edit costs 1 + ln V, tau_raw = tau / (1 + ln V)) or "raw" (tau_raw = tau).
        exact: False skips the acceptance step: strings that several scripts make come out too often, by a few per
            cent for large vocabularies. `log_prob` and `log_normalizer` are then those of this other distribution.
        max_edits: Only strings within that distance; None for all.
        operations: The edits that are allowed; d is the least number of these.
        exclude_ids: Ids that never appear anew and never change; V is the number of the others. Each run of other
            tokens between them is a reference of its own, and where two excluded ids are neighbours, or one begins or
            ends the reference, nothing is written beside.

    Attributes:
        vocab_size, tau, scale, exact, max_edits, operations, exclude_ids: As given.
        raw_tau: The temperature of exp(-d / raw_tau).
        weight: w.

    Raises:
        ValueError: tau is negative, NaN, or so large that q has no normaliser; fewer than 2 tokens are left; an unknown
            operation.

    Norouzi et al. 2016, section 2.3; there the number of edits is drawn by an upper bound of the counts.

    >>> import torch
    >>> payoff = EditPayoff(39, tau=0.8)
    >>> y = torch.tensor([[3, 1, 4, 1, 5, 9]])
    >>> ids, lengths = payoff.sample(y, n=4, generator=torch.Generator().manual_seed(0))
    >>> ids.shape[0], bool((lengths >= 0).all())
    (4, True)
    >>> payoff.log_prob(y, y).item() == -payoff.log_normalizer(y).item()
    True
    """

    def __init__(
        self,
        vocab_size: int,
        tau: float,
        *,
        scale: str = "paper",
        exact: bool = True,
        max_edits: int | None = None,
        operations: Iterable[str] = OPERATIONS,
        exclude_ids: Iterable[int] = (),
    ) -> None:
        self.alphabet = Alphabet(vocab_size, exclude_ids)
        self.vocab_size, self.exclude_ids = self.alphabet.vocab_size, self.alphabet.exclude_ids
        self.tau, self.scale, self.exact, self.max_edits = float(tau), scale, bool(exact), max_edits
        self.operations = tuple(operations) if not isinstance(operations, str) else (operations,)
        self.allowed = checked_operations(self.operations)
        if max_edits is not None and not 0 <= max_edits <= MOST_EDITS:
            raise ValueError(f"max_edits={max_edits} must lie in 0..{MOST_EDITS}, or be None")
        if max_edits is not None and not exact:
            raise ValueError("max_edits needs exact=True")
        size = self.alphabet.size
        self.raw_tau = raw_temperature(tau, size, scale)
        self.weight = edit_weight(self.raw_tau)
        if self.allowed[1] and max_edits is None and self.weight * size >= 1:
            raise ValueError(
                f"tau={tau} is too large: without max_edits, the edit payoff over all strings exists only below "
                f"tau={temperature_limit(size, scale):.6g} on the {scale} scale with {size} tokens"
            )
        self.paths = PathWeights(size, self.weight, *self.allowed)

    @classmethod
    def from_error_rate(
        cls,
        vocab_size: int,
        rate: float,
        *,
        scale: str = "paper",
        exact: bool = True,
        operations: Iterable[str] = OPERATIONS,
        exclude_ids: Iterable[int] = (),
    ) -> EditPayoff:
        """The payoff whose paths have ``rate`` edits for each token of a long reference, on average.

        The distance of the samples is that or a little less: the more scripts make the same string, the more of them are
        rejected. Ends of references, where tokens may be appended, are not counted.

        Raises:
            ValueError: The rate is negative, or higher than that of any legal temperature.

        >>> round(EditPayoff.from_error_rate(60, 0.1).tau, 2)
        0.72
        """
        excluded, chosen = tuple(exclude_ids), tuple(operations)
        allowed, size = checked_operations(chosen), Alphabet(vocab_size, excluded).size

        def edits_per_token(weight: float) -> float:
            return PathWeights(size, weight, *allowed).mean_edits_per_token()

        raw_tau = edit_raw_temperature(size, rate, edits_per_token, unbounded=allowed[1])
        tau = scaled_temperature(raw_tau, size, scale)
        return cls(vocab_size, tau, scale=scale, exact=exact, operations=chosen, exclude_ids=excluded)

    def with_tau(self, tau: float) -> EditPayoff:
        """The same payoff at another temperature, on the same scale."""
        return type(self)(
            self.vocab_size,
            tau,
            scale=self.scale,
            exact=self.exact,
            max_edits=self.max_edits,
            operations=self.operations,
            exclude_ids=self.exclude_ids,
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(vocab_size={self.vocab_size}, tau={self.tau:g}, scale={self.scale!r}, "
            f"exact={self.exact}, max_edits={self.max_edits}, operations={self.operations}, "
            f"exclude_ids={self.exclude_ids})"
        )

    def sample(
        self,
        y: Int[Tensor, "*batch length"],
        lengths: Int[Tensor, " batch"] | None = None,
        n: int = 1,
        generator: torch.Generator | None = None,
        *,
        seeds: Int[Tensor, " batch"] | np.ndarray | Sequence[int] | None = None,
        pad_id: int = 0,
    ) -> tuple[Int[Tensor, "samples width"], Int[Tensor, " samples"]]:
        """Draw n strings for each reference; those of one reference lie one behind the other.

        Args:
            y: (B, L) references, or (L,) for one.
            lengths: (B,) their lengths; None for L. What lies behind is not read.
            n: Samples of each reference, at least 1.
            generator: Source of randomness; None for torch's own.
            seeds: (B,) integers instead: one stream for each row, whatever the batch around it.
            pad_id: Fills the rows behind their lengths.

        Returns:
            ids (B * n, L') in the dtype and on the device of y, L' the longest sample, and lengths (B * n,). Row
            b * n + k is sample k of y[b].

        Raises:
            ValueError: An id that is neither in the vocabulary nor excluded, n < 1, seeds and a generator at once.
        """
        ids, counts, _ = self._draw(y, lengths, n, generator, seeds, pad_id)
        return ids, counts

    def log_prob(
        self,
        y: Int[Tensor, "*batch length"],
        reference: Int[Tensor, "*reference_batch reference_length"],
        lengths: Int[Tensor, " batch"] | None = None,
        reference_lengths: Int[Tensor, " reference_batch"] | None = None,
    ) -> Float[Tensor, " batch"]:
        """The log-probability ln q(y | reference) = -d / tau_raw - ln Z in float64; -inf where no allowed edits lead to y.

        Args:
            y: (B, L) strings.
            reference: (B, L') or (1, L') references, one for each string or one for all.
            lengths: (B,) lengths of the strings; None for L.
            reference_lengths: Lengths of the references; None for L'.
        """
        distances, masses = self._compared(y, reference, lengths, reference_lengths)
        log_z = self.log_normalizer(reference, reference_lengths).numpy(force=True)
        if not self.exact and self.weight > 0:
            return torch.from_numpy(masses - log_z).to(_device(y))
        within = distances <= (math.inf if self.max_edits is None else self.max_edits)
        penalty = np.zeros_like(distances)
        changed = distances > 0
        penalty[changed] = distances[changed] / self.raw_tau if self.raw_tau > 0 else math.inf
        return torch.from_numpy(np.where(within, -penalty - log_z, -np.inf)).to(_device(y))

    def distance(
        self,
        y: Int[Tensor, "*batch length"],
        reference: Int[Tensor, "*reference_batch reference_length"],
        lengths: Int[Tensor, " batch"] | None = None,
        reference_lengths: Int[Tensor, " reference_batch"] | None = None,
    ) -> Float[Tensor, " batch"]:
        """The least number of allowed edits; infinite where they do not lead to y or would change an excluded id."""
        return torch.from_numpy(self._compared(y, reference, lengths, reference_lengths)[0]).to(_device(y))

    def _compared(
        self, y: Tensor, reference: Tensor, lengths: Tensor | None, reference_lengths: Tensor | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distances, and the logarithms of the weights of all paths where these are the distribution."""
        ys, y_lengths = as_arrays(*batched(y, lengths, self.alphabet))
        others, other_lengths = as_arrays(*batched(reference, reference_lengths, self.alphabet, "reference"))
        if len(others) not in (1, len(ys)):
            raise ValueError(f"reference has {len(others)} rows, but y has {len(ys)}: give 1 or as many")
        distances, masses = np.empty(len(ys)), np.empty(len(ys))
        weight = 0.0 if self.exact else self.weight
        kernels.anchored_rows(
            ys, y_lengths, others, other_lengths, self.alphabet.rank, weight, self.allowed, distances, masses
        )
        return distances, masses

    def log_normalizer(
        self, reference: Int[Tensor, "*batch length"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, " batch"]:
        """The logarithm of Z in float64: counted exactly, or estimated to about 0.5 % of Z (see `distance_weights`)."""
        if not self.exact:
            values = [sum(map(self.paths.log_normalizer, map(len, runs))) for runs in self._runs(reference, lengths)]
            return torch.tensor(values, dtype=torch.float64, device=_device(reference))
        values = [weights.log_normalizer for weights in self.distance_weights(reference, lengths)]
        return torch.tensor(values, dtype=torch.float64, device=_device(reference))

    def entropy(
        self, reference: Int[Tensor, "*batch length"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, " batch"]:
        """H(q) = ln Z + E[d] / tau_raw in nats, in float64.

        Raises:
            ValueError: exact is False: the distribution of all paths has no entropy in closed form.
        """
        if not self.exact:
            raise ValueError("exact=False has no entropy in closed form: average -log_prob over samples")
        values = []
        for weights in self.distance_weights(reference, lengths):
            mean = float(weights.pmf @ np.arange(len(weights.pmf)))
            values.append(weights.log_normalizer + (mean / self.raw_tau if mean > 0 else 0.0))
        return torch.tensor(values, dtype=torch.float64, device=_device(reference))

    def distance_pmf(
        self, reference: Int[Tensor, "*batch length"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch distances"]:
        """P(d) for d = 0, 1, ... in float64, up to where next to nothing is left.

        Raises:
            ValueError: exact is False: what is known then is the number of edits that are drawn, not the distance.
        """
        if not self.exact:
            raise ValueError("exact=False has no distances in closed form: take those of samples")
        rows = [weights.pmf for weights in self.distance_weights(reference, lengths)]
        table = np.zeros((len(rows), max(map(len, rows), default=1)))
        for row, pmf in zip(table, rows, strict=True):
            row[: len(pmf)] = pmf
        return torch.from_numpy(table).to(_device(reference))

    def distance_weights(
        self, reference: Int[Tensor, "*batch length"], lengths: Int[Tensor, " batch"] | None = None
    ) -> list[DistanceWeights]:
        """The weights of all strings by distance, for each reference, and how exact they are."""
        nothing = DistanceWeights(np.zeros(1), 0, 0.0)
        result = []
        for runs in self._runs(reference, lengths):
            weights = nothing
            if self.weight > 0:
                for run in runs:
                    weights = weights.joined(run_weights(pattern(run), self.paths, self.max_edits), self.max_edits)
            result.append(weights)
        return result

    def count_at_distance(self, reference: Int[Tensor, " length"] | Sequence[int], distance: int) -> int:
        """The number of strings at exactly that distance; see the function of that name.

        >>> EditPayoff(60, 0.9).count_at_distance([1, 2, 3], 1)  # 2 m (V - 1) + V + runs
        417
        """
        tokens = torch.as_tensor(reference, dtype=torch.int64)
        counts = [1]
        for run in self._runs(tokens, None)[0]:
            more = distance_counts(pattern(run), self.alphabet.size, distance, self.allowed)
            assert more is not None
            counts = [
                sum(counts[a] * more[total - a] for a in range(min(total, len(counts) - 1) + 1))
                for total in range(distance + 1)
            ]
        return counts[distance] if distance < len(counts) else 0

    def _runs(self, reference: Tensor, lengths: Tensor | None) -> list[list[list[int]]]:
        """For each row its runs of tokens between excluded ids."""
        rows, counts = as_arrays(*batched(reference, lengths, self.alphabet, "reference"))
        free = self.alphabet.is_free(torch.from_numpy(rows)).tolist()
        result = []
        for row, kept, length in zip(rows.tolist(), free, counts.tolist(), strict=True):
            runs: list[list[int]] = [[]]
            for token, is_free in zip(row[:length], kept[:length], strict=True):
                if is_free:
                    runs[-1].append(token)
                else:
                    runs.append([])
            result.append([run for run in runs if run or length == 0])
        return result

    def _draw(
        self,
        y: Tensor,
        lengths: Tensor | None,
        n: int,
        generator: torch.Generator | None,
        seeds: Tensor | np.ndarray | Sequence[int] | None,
        pad_id: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Samples, their lengths, and the numbers of edits that made them: the distances where exact."""
        rows, counts = batched(y, lengths, self.alphabet)
        check_samples(n)
        plain, plain_counts = as_arrays(rows, counts)
        streams = row_seeds(len(plain), generator, seeds)
        total = len(plain) * n
        if self.weight == 0 or total == 0:
            inside = np.arange(plain.shape[1]) < plain_counts[:, None]
            out = np.repeat(np.where(inside, plain, pad_id), n, axis=0)
            written, edits = np.repeat(plain_counts, n), np.zeros(total, np.int64)
        else:
            parts = parallel_rows(
                self._sampler(plain, plain_counts, streams, n),
                total,
                block_cost=max(1, BLOCK // max(plain.shape[1], 8)),
                uses_blas=False,
            )
            written = np.concatenate([part[1] for part in parts])
            edits = np.concatenate([part[2] for part in parts])
            out = np.empty((total, int(written.max())), np.int64)
            row = 0
            for flat, part_lengths, _ in parts:
                kernels.pad_rows(flat, part_lengths, pad_id, out[row : row + len(part_lengths)])
                row += len(part_lengths)
        device = rows.device
        return (
            torch.from_numpy(out).to(device, rows.dtype),
            torch.from_numpy(written).to(device),
            torch.from_numpy(edits).to(device),
        )

    def _sampler(
        self, rows: np.ndarray, counts: np.ndarray, streams: np.ndarray, n: int
    ) -> Callable[[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """The compiled sampler of a range of samples."""
        alphabet, common = self.alphabet, (rows, counts, streams, n)
        if self.max_edits is None:
            leaf = max(LEAST_LEAF, int(LEAF_EDITS / self.paths.mean_edits_per_token()))
            return partial(
                kernels.edit_rows, *common, min(leaf, 2**40), self.paths.chances(), alphabet.size, alphabet.ids,
                alphabet.rank, self.allowed, self.exact,
            )  # fmt: skip
        ends = (
            1
            if alphabet.rank.size == 0
            else max(map(len, self._runs(torch.from_numpy(rows), torch.from_numpy(counts))))
        )
        tables = limited_tables(self.paths, int(counts.max()), max(ends, 1), self.max_edits)
        return partial(kernels.limited_rows, *common, *tables, alphabet.size, alphabet.ids, alphabet.rank, self.allowed)


def _device(ids: Tensor) -> torch.device:
    return ids.device
