"""The Hamming payoff: tokens are replaced independently, so everything about it has a closed form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import gammaln, xlog1py, xlogy
from torch import Tensor

from tenfold.raml import kernels
from tenfold.raml.alphabet import Alphabet, as_arrays, batched, row_seeds
from tenfold.raml.temperature import edit_weight, hamming_raw_temperature, raw_temperature, scaled_temperature
from tenfold.runtime import parallel_rows

BLOCK = 1 << 20  # tokens that one thread takes at a time, about a millisecond
DENSE = 1 / 256  # from this rate on, a random number for each token is faster than the gaps between replaced ones
SHORT = 64  # up to this width lanes run across the ends of rows


class HammingPayoff:
    """Strings of the reference's length, less likely by exp(-1 / tau_raw) for every token that differs.

    ``q(y | y*) = w^h(y, y*) / Z`` with w = exp(-1 / tau_raw), h the number of positions that differ, and
    ``ln Z = m ln(1 + (V - 1) w)``: each of the m tokens is replaced with probability
    ``rate = (V - 1) w / (1 + (V - 1) w)``, by each of the V - 1 others alike, independently.

    Where only labels are drawn so and the history stays clean, the expected cross-entropy is label smoothing with
    ``label_smoothing = rate * V / (V - 1)``.

    Args:
        vocab_size: Ids are 0, ..., vocab_size - 1.
        tau: Temperature, at least 0 (0: the reference itself); infinity draws all strings alike.
        scale: "paper" (one edit costs 1 + ln V, tau_raw = tau / (1 + ln V)) or "raw" (tau_raw = tau).
        exclude_ids: Ids that never appear anew and never change; V is the number of the others.

    Attributes:
        vocab_size, tau, scale, exclude_ids: As given.
        raw_tau: The temperature of exp(-h / raw_tau).
        weight: w.
        rate: The probability that a token is replaced.

    Raises:
        ValueError: tau is negative or NaN, or fewer than 2 tokens are left.

    Norouzi et al. 2016, section 2; the scale is that of its experiments.

    >>> import torch
    >>> payoff = HammingPayoff(10, tau=1.0, scale="raw")
    >>> ids, lengths = payoff.sample(torch.tensor([[1, 2, 3]]), n=2, generator=torch.Generator().manual_seed(0))
    >>> ids.shape, lengths.tolist()
    (torch.Size([2, 3]), [3, 3])
    >>> math.isclose(payoff.log_normalizer(torch.tensor([[1, 2, 3]])).item(), 3 * math.log1p(9 * math.exp(-1)))
    True
    """

    def __init__(self, vocab_size: int, tau: float, *, scale: str = "paper", exclude_ids: Iterable[int] = ()) -> None:
        self.alphabet = Alphabet(vocab_size, exclude_ids)
        self.vocab_size, self.exclude_ids = self.alphabet.vocab_size, self.alphabet.exclude_ids
        self.tau, self.scale = float(tau), scale
        self.raw_tau = raw_temperature(tau, self.alphabet.size, scale)
        self.weight = edit_weight(self.raw_tau)
        self.odds = (self.alphabet.size - 1) * self.weight  # of a replaced token against a kept one
        self.rate = self.odds / (1 + self.odds)

    @classmethod
    def from_error_rate(
        cls, vocab_size: int, rate: float, *, scale: str = "paper", exclude_ids: Iterable[int] = ()
    ) -> HammingPayoff:
        """The payoff that replaces tokens with that probability.

        Raises:
            ValueError: The rate is not in [0, (V - 1) / V).

        >>> round(HammingPayoff.from_error_rate(60, 0.1).rate, 12)
        0.1
        """
        excluded = tuple(exclude_ids)
        size = Alphabet(vocab_size, excluded).size
        tau = scaled_temperature(hamming_raw_temperature(size, rate), size, scale)
        return cls(vocab_size, tau, scale=scale, exclude_ids=excluded)

    def with_tau(self, tau: float) -> HammingPayoff:
        """The same payoff at another temperature, on the same scale."""
        return type(self)(self.vocab_size, tau, scale=self.scale, exclude_ids=self.exclude_ids)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(vocab_size={self.vocab_size}, tau={self.tau:g}, scale={self.scale!r}, "
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
            ids (B * n, L) in the dtype and on the device of y, and lengths (B * n,). Row b * n + k is sample k of y[b].

        Raises:
            ValueError: An id that is neither in the vocabulary nor excluded, n < 1, seeds and a generator at once.
        """
        rows, counts = batched(y, lengths, self.alphabet)
        check_samples(n)
        width = rows.shape[1]
        if rows.device.type != "cpu" and seeds is None:
            return self._sample_on_device(rows, counts, n, generator, pad_id)
        plain, plain_counts = as_arrays(rows, counts)
        streams = row_seeds(len(plain), generator, seeds)
        out = np.empty((len(plain) * n, width), np.int64)
        dense, alphabet = self.rate >= DENSE, self.alphabet
        short = dense and n == 1 and alphabet.rank.size == 0 and 0 < width <= SHORT

        def fill(start: int, stop: int) -> None:
            if short:
                kernels.short_hamming_rows(
                    plain, plain_counts, streams, self.rate, alphabet.size, pad_id, out, start, stop
                )
                return
            kernels.hamming_rows(
                plain, plain_counts, streams, n, self.rate, alphabet.size, alphabet.ids, alphabet.rank, pad_id, dense,
                out, start, stop,
            )  # fmt: skip

        if self.rate == 0:
            out[:] = np.repeat(np.where(np.arange(width) < plain_counts[:, None], plain, pad_id), n, axis=0)
        else:
            parallel_rows(fill, len(out), block_cost=max(1, BLOCK // max(width, 1)), uses_blas=False)
        ids = torch.from_numpy(out).to(rows.device, rows.dtype)
        return ids, counts.repeat_interleave(n)

    def _sample_on_device(
        self, rows: Tensor, counts: Tensor, n: int, generator: torch.Generator | None, pad_id: int
    ) -> tuple[Tensor, Tensor]:
        """The same distribution in torch operations, for accelerators."""
        alphabet, device = self.alphabet, rows.device
        source, lengths = rows.repeat_interleave(n, 0), counts.repeat_interleave(n)
        free = alphabet.is_free(source)
        if alphabet.rank.size:
            rank = torch.from_numpy(alphabet.rank).to(device)[source.clamp(0, self.vocab_size - 1).long()]
        else:
            rank = source
        draw = torch.randint(0, alphabet.size - 1, source.shape, generator=generator, device=device)
        draw = draw + (draw >= rank)
        if alphabet.rank.size:
            draw = torch.from_numpy(alphabet.ids).to(device, torch.int64)[draw]
        uniform = torch.rand(source.shape, generator=generator, device=device, dtype=torch.float32)
        out = torch.where(free & (uniform < self.rate), draw.to(source.dtype), source)
        inside = torch.arange(source.shape[1], device=device) < lengths[:, None]
        return out.masked_fill(~inside, pad_id), lengths

    def log_prob(
        self,
        y: Int[Tensor, "*batch length"],
        reference: Int[Tensor, "*reference_batch reference_length"],
        lengths: Int[Tensor, " batch"] | None = None,
        reference_lengths: Int[Tensor, " reference_batch"] | None = None,
    ) -> Float[Tensor, " batch"]:
        """The log-probability ln q(y | reference) in float64; -inf where lengths differ or an excluded id changed.

        Args:
            y: (B, L) strings.
            reference: (B, L') or (1, L') references, one for each string or one for all.
            lengths: (B,) lengths of the strings; None for L.
            reference_lengths: Lengths of the references; None for L'.
        """
        distance = self.distance(y, reference, lengths, reference_lengths)
        _, counts = batched(reference, reference_lengths, self.alphabet, "reference")
        log_z = self.log_normalizer(reference, counts).to(distance.device).expand_as(distance)
        log_w = -math.inf if self.weight == 0 else -1 / self.raw_tau
        changed = torch.where(distance > 0, distance * log_w, 0.0)
        return torch.where(distance.isinf(), -math.inf, changed - log_z)

    def distance(
        self,
        y: Int[Tensor, "*batch length"],
        reference: Int[Tensor, "*reference_batch reference_length"],
        lengths: Int[Tensor, " batch"] | None = None,
        reference_lengths: Int[Tensor, " reference_batch"] | None = None,
    ) -> Float[Tensor, " batch"]:
        """Positions that differ, infinite where y is not within reach of the payoff."""
        rows, counts = batched(y, lengths, self.alphabet)
        others, other_counts = batched(reference, reference_lengths, self.alphabet, "reference")
        if len(others) not in (1, len(rows)):
            raise ValueError(f"reference has {len(others)} rows, but y has {len(rows)}: give 1 or as many")
        width = min(rows.shape[1], others.shape[1])
        left, right = torch.broadcast_tensors(rows[:, :width], others[:, :width])
        inside = torch.arange(width, device=rows.device) < counts[:, None]
        differs = (left != right) & inside
        fixed = differs & ~(self.alphabet.is_free(left) & self.alphabet.is_free(right))
        unreachable = fixed.any(-1) | (counts != other_counts)
        return torch.where(unreachable, math.inf, differs.sum(-1).double())

    def _free_tokens(self, reference: Tensor | None, lengths: Tensor | None) -> Tensor:
        """How many tokens of each reference may change: without the references, their lengths."""
        if reference is None:
            if lengths is None:
                raise ValueError("give reference, or lengths without it: the numbers of tokens that may change")
            return lengths
        rows, counts = batched(reference, lengths, self.alphabet, "reference")
        inside = torch.arange(rows.shape[1], device=rows.device) < counts[:, None]
        return (self.alphabet.is_free(rows) & inside).sum(-1)

    def log_normalizer(
        self, reference: Int[Tensor, "*batch length"] | None = None, lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, " batch"]:
        """The logarithm of Z, m ln(1 + (V - 1) w), m the tokens that may change, in float64; ``lengths`` alone are such m."""
        return self._free_tokens(reference, lengths).double() * math.log1p(self.odds)

    def entropy(
        self, reference: Int[Tensor, "*batch length"] | None = None, lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, " batch"]:
        """H(q) = ln Z + m rate / tau_raw in nats, in float64; as `log_normalizer`."""
        each = math.log1p(self.odds) + (self.rate / self.raw_tau if self.rate > 0 else 0.0)
        return self._free_tokens(reference, lengths).double() * each

    def distance_pmf(
        self, reference: Int[Tensor, "*batch length"] | None = None, lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch distances"]:
        """P(h) for h = 0, ..., L: binomial in the rate, in float64."""
        free = self._free_tokens(reference, lengths)
        m = free.cpu().numpy()[:, None].astype(float)
        h = np.arange((int(m.max(initial=0)) if reference is None else reference.shape[-1]) + 1.0)
        with np.errstate(invalid="ignore"):
            log_p = gammaln(m + 1) - gammaln(h + 1) - gammaln(np.maximum(m - h, 0) + 1)
            log_p = log_p + xlogy(h, self.rate) + xlog1py(m - h, -self.rate)
        return torch.from_numpy(np.where(h <= m, np.exp(log_p), 0.0)).to(free.device)


def check_samples(n: int) -> None:
    """Raise a ValueError unless n is a number of samples."""
    if isinstance(n, bool) or n < 1:
        raise ValueError(f"n={n} samples: at least 1 must be drawn")
