"""The edit-distance payoff: exact samples, log-probabilities, and what the distribution looks like."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tenfold.raml import kernels
from tenfold.raml.alphabet import Alphabet, as_arrays, batched, row_seeds
from tenfold.raml.canonical_paths import PathWeights
from tenfold.raml.distance_counts import OPERATIONS, Operation, checked_operations, distance_counts, pattern
from tenfold.raml.hamming import check_samples
from tenfold.raml.temperature import (
    Scale,
    edit_raw_temperature,
    edit_weight,
    raw_temperature,
    scaled_temperature,
    temperature_limit,
)
from tenfold.runtime import parallel_rows

BLOCK = 1 << 14  # tokens that one thread takes at a time, about a millisecond


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
        scale: Scale = "paper",
        exact: bool = True,
        max_edits: int | None = None,
        operations: Iterable[Operation] = OPERATIONS,
        exclude_ids: Iterable[int] = (),
    ) -> None:
        self.alphabet = Alphabet(vocab_size, exclude_ids)
        self.vocab_size, self.exclude_ids = self.alphabet.vocab_size, self.alphabet.exclude_ids
        self.tau, self.scale, self.exact, self.max_edits = float(tau), scale, bool(exact), max_edits
        self.operations = tuple(operations) if not isinstance(operations, str) else (operations,)
        self.allowed = checked_operations(self.operations)
        size = self.alphabet.size
        self.raw_tau = raw_temperature(tau, size, scale)
        self.weight = edit_weight(self.raw_tau)
        if self.allowed[1] and max_edits is None and self.weight * size >= 1:
            raise ValueError(
                f"tau={tau} is too large: without max_edits, the edit payoff over all strings exists only below "
                f"tau={temperature_limit(size, scale):.6g} on the {scale} scale with {size} tokens"
            )
        self.paths = PathWeights(size, self.weight, *self.allowed)

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
        alphabet = self.alphabet
        total = len(plain) * n
        if self.weight == 0 or total == 0:
            inside = np.arange(plain.shape[1]) < plain_counts[:, None]
            out = np.repeat(np.where(inside, plain, pad_id), n, axis=0)
            written, edits = np.repeat(plain_counts, n), np.zeros(total, np.int64)
        else:
            draw = partial(
                kernels.edit_rows, plain, plain_counts, streams, n, self.paths.chances(), alphabet.size, alphabet.ids,
                alphabet.rank, self.allowed, self.exact,
            )  # fmt: skip
            parts = parallel_rows(draw, total, block_cost=max(1, BLOCK // max(plain.shape[1], 8)), uses_blas=False)
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
