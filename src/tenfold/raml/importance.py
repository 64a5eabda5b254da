r"""Any reward as a payoff: samples of a proposal, weighted so that they stand for the distribution that is meant.

Norouzi et al. 2016 (arXiv 1609.00150, section 2.2) draw from an edit payoff and correct for another reward by importance
weights. For the target ``q(y|y*) \propto \exp(R(y, y*) / \tau)`` and samples of a proposal ``q_0``,

.. math:: \log \omega(y) = R(y, y^*) / \tau - \log q_0(y | y^*), \qquad
    E_q[f] \approx \sum_k \bar\omega_k f(y_k), \quad \bar\omega_k = \omega_k / \sum_j \omega_j,

with the true probability of each sample under the proposal that drew it: for a Hamming or an edit payoff ``log q_0`` is
``-d / tau_raw - log Z`` with the raw temperature, which is not the paper's number (see the module ``temperature``). The
effective sample size ``1 / sum_k \bar\omega_k^2`` (Kong 1992) says how many equally weighted samples these are worth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tenfold.raml.edit import EditPayoff
from tenfold.raml.hamming import HammingPayoff
from tenfold.raml.rewards import Reward


class WeightedSamples(NamedTuple):
    """Samples of B references, n each, those of one reference one behind the other.

    Args:
        ids: (B * n, width).
        lengths: (B * n,).
        weights: (B * n,), float64, not negative; those of one reference sum to 1.
        effective_sample_size: (B,), from 1 to n.
    """

    ids: Int[Tensor, "samples width"]
    lengths: Int[Tensor, " samples"]
    weights: Float[Tensor, " samples"]
    effective_sample_size: Float[Tensor, " batch"]


class ImportanceWeighted:
    """Strings that the proposal draws, weighted for ``q(y | y*)`` proportional to ``exp(reward / tau)``.

    Only what the proposal can draw is ever seen: a Hamming payoff as proposal restricts q to strings of the reference's
    length, ``max_edits`` to a neighbourhood. The estimates are consistent as n grows; with few samples they are biased
    towards the proposal, and with ``n=1`` they are the proposal.

    Args:
        proposal: A `HammingPayoff` or an `EditPayoff`.
        reward: ``reward(hypothesis, reference)`` of two lists of ids, more for better ones; see the module ``rewards``.
        tau: Temperature in units of the reward, positive: BLEU from 0 to 1 at 0.1 is BLEU from 0 to 100 at 10.

    Attributes:
        proposal, reward, tau: As given.
        vocab_size, exclude_ids: Of the proposal.

    Raises:
        ValueError: tau is not a positive number.
        TypeError: A reward that cannot be called.

    Norouzi et al. 2016, section 2.2.

    >>> from tenfold.raml import EditPayoff
    >>> from tenfold.raml.rewards import negative_edit_distance
    >>> proposal = EditPayoff(39, tau=0.8)
    >>> same = ImportanceWeighted(proposal, negative_edit_distance, tau=proposal.raw_tau)
    >>> samples = same.sample(torch.tensor([[3, 1, 4, 1, 5]]), n=4, generator=torch.Generator().manual_seed(0))
    >>> [round(w, 6) for w in samples.weights.tolist()], round(samples.effective_sample_size.item(), 6)
    ([0.25, 0.25, 0.25, 0.25], 4.0)
    """

    def __init__(self, proposal: HammingPayoff | EditPayoff, reward: Reward, *, tau: float) -> None:
        if not 0 < tau < math.inf:
            raise ValueError(f"tau={tau} must be a positive number, in units of the reward")
        if not callable(reward):
            raise TypeError(f"reward is a {type(reward).__name__}; it must be callable with (hypothesis, reference)")
        self.proposal, self.reward, self.tau = proposal, reward, float(tau)
        self.vocab_size, self.exclude_ids = proposal.vocab_size, proposal.exclude_ids

    def with_tau(self, tau: float) -> ImportanceWeighted:
        """The same proposal and reward at another temperature of the reward."""
        return ImportanceWeighted(self.proposal, self.reward, tau=tau)

    def __repr__(self) -> str:
        name = getattr(self.reward, "__name__", type(self.reward).__name__)
        return f"{type(self).__name__}({self.proposal!r}, {name}, tau={self.tau:g})"

    def log_weight(
        self,
        y: Int[Tensor, "*batch length"],
        reference: Int[Tensor, "*reference_batch reference_length"],
        lengths: Int[Tensor, " batch"] | None = None,
        reference_lengths: Int[Tensor, " reference_batch"] | None = None,
    ) -> Float[Tensor, " batch"]:
        r"""``reward / tau - log q_0(y | reference)`` in float64; the mean of its exponential over samples estimates Z.

        Args:
            y: (B, L) strings that the proposal can draw.
            reference: (B, L') or (1, L') references, one for each string or one for all.
            lengths: Of the strings; None for the full width.
            reference_lengths: Of the references; None for the full width.

        Raises:
            ValueError: A reward that is NaN or positive infinity, or a string that the proposal cannot draw.
        """
        log_proposal = self.proposal.log_prob(y, reference, lengths, reference_lengths)
        return self._scaled_rewards(y, reference, lengths, reference_lengths, log_proposal) - log_proposal

    def _scaled_rewards(
        self,
        y: Tensor,
        reference: Tensor,
        lengths: Tensor | None,
        reference_lengths: Tensor | None,
        log_proposal: Tensor,
    ) -> Tensor:
        if bool(log_proposal.isneginf().any()):
            row = int(log_proposal.isneginf().nonzero()[0, 0])
            raise ValueError(f"y[{row}] has probability 0 under the proposal {self.proposal!r}, so no weight")
        hypotheses, references = _lists(y, lengths), _lists(reference, reference_lengths)
        if len(references) == 1:
            references = references * len(hypotheses)
        rewards = []
        for hypothesis, right in zip(hypotheses, references, strict=True):
            value = float(self.reward(hypothesis, right))
            if math.isnan(value) or value == math.inf:
                raise ValueError(f"reward({hypothesis}, {right}) is {value}; it must be a number or minus infinity")
            rewards.append(value)
        return torch.tensor(rewards, dtype=torch.float64, device=log_proposal.device) / self.tau

    def _log_proposal_up_to_a_constant(
        self, y: Tensor, reference: Tensor, lengths: Tensor, reference_lengths: Tensor | None
    ) -> Tensor:
        """``log q_0`` and an unknown number for each reference: its normalizer takes long to count, and cancels."""
        proposal = self.proposal
        if isinstance(proposal, EditPayoff) and not proposal.exact:  # not a function of the distance alone
            return proposal.log_prob(y, reference, lengths, reference_lengths)
        distance = proposal.distance(y, reference, lengths, reference_lengths)
        each = -1 / proposal.raw_tau if proposal.raw_tau > 0 else -math.inf
        return torch.where(distance > 0, distance * each, 0.0)

    def sample(
        self,
        y: Int[Tensor, "*batch length"],
        lengths: Int[Tensor, " batch"] | None = None,
        n: int = 1,
        generator: torch.Generator | None = None,
        *,
        seeds: Int[Tensor, " batch"] | np.ndarray | Sequence[int] | None = None,
        pad_id: int = 0,
    ) -> WeightedSamples:
        """Draw n strings of the proposal for each reference, and weigh them.

        Args:
            y: (B, L) references, or (L,) for one.
            lengths: (B,) their lengths; None for L.
            n: Samples of each reference. One sample alone always has weight 1.
            generator: Source of randomness; None for torch's own.
            seeds: (B,) integers instead: one stream for each row.
            pad_id: Fills the rows behind their lengths.

        Raises:
            ValueError: As the proposal and `log_weight`; or all samples of a reference have a reward of minus infinity.
        """
        ids, counts = self.proposal.sample(y, lengths, n, generator, seeds=seeds, pad_id=pad_id)
        rows = y if y.dim() == 2 else y[None]
        own = None if lengths is None else lengths.repeat_interleave(n)
        rows = rows.repeat_interleave(n, 0)
        log_proposal = self._log_proposal_up_to_a_constant(ids, rows, counts, own)
        log_weight = (self._scaled_rewards(ids, rows, counts, own, log_proposal) - log_proposal).reshape(-1, n)
        hopeless = log_weight.isneginf().all(1)
        if bool(hopeless.any()):
            row = int(hopeless.nonzero()[0, 0])
            raise ValueError(f"the rewards of all {n} samples of y[{row}] are minus infinity: no weights exist")
        weights = log_weight.softmax(1)
        return WeightedSamples(ids, counts, weights.flatten(), 1 / weights.square().sum(1))


def _lists(ids: Tensor, lengths: Tensor | None) -> list[list[int]]:
    rows = (ids if ids.dim() == 2 else ids[None]).tolist()
    return rows if lengths is None else [row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]
