r"""The objective of a linear-chain CRF under the Hamming payoff, exact and without a sample.

A linear-chain CRF scores labels ``y`` of T positions with emissions ``e`` and transitions ``A``,

.. math:: s(y) = a_{y_1} + \sum_t e_{t, y_t} + \sum_t A_{y_t, y_{t+1}} + b_{y_T}, \qquad \log p(y) = s(y) - \log Z.

Under the Hamming payoff the positions of a target are independent: position t has its label with probability
``1 - epsilon`` and each other label with an equal share of ``epsilon``. With these marginals ``q_t``, the expectation of
the score needs single positions and neighbours only,

.. math:: E_q[-\log p(y)] = \log Z - a^\top q_1 - \sum_t e_t^\top q_t - \sum_t q_t^\top A q_{t+1} - b^\top q_T,

which is the objective of Norouzi et al. 2016 (arXiv 1609.00150, Eq. 6) in the time of one forward recursion. Its gradient is
the difference of two expectations of features, one under the model and one under q.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional

from tenfold.raml.hamming import HammingPayoff

REDUCTIONS = ("mean", "token_mean", "sum", "none")


def crf_raml_loss(
    emissions: Float[Tensor, "batch steps labels"],
    transitions: Float[Tensor, "labels labels"],
    targets: Int64[Tensor, "batch steps"],
    payoff: HammingPayoff,
    *,
    start: Float[Tensor, " labels"] | None = None,
    end: Float[Tensor, " labels"] | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""``E_q[-log p(y|x)]`` of a linear-chain CRF, in nats; at ``tau = 0`` its negative log-likelihood.

    ``KL(q || p)`` is this less ``payoff.entropy``.

    Args:
        emissions: ``e``, a score for each label at each position.
        transitions: ``A[i, j]``, of label j after label i.
        targets: The references ``y*``; ``ignore_index`` after their ends.
        payoff: A `HammingPayoff` over the CRF's labels. Positions that hold one of its excluded ids keep it.
        start: ``a``, of the first label; None: zeros.
        end: ``b``, of the last label; None: zeros.
        ignore_index: What padding is marked with.
        reduction: ``"mean"`` over sequences, ``"token_mean"`` over positions, ``"sum"``, or ``"none"``: one for each
            sequence. An empty sequence counts 0.

    Returns:
        The loss; differentiable twice in all scores.

    Raises:
        ValueError: An unknown reduction, a payoff of another number of labels, a target outside of the labels, or
            padding that is not at the end.

    >>> from tenfold.raml import HammingPayoff
    >>> emissions, targets = torch.zeros(1, 3, 4), torch.tensor([[0, 1, 3]])
    >>> loss = crf_raml_loss(emissions, torch.zeros(4, 4), targets, HammingPayoff(4, tau=0.5))
    >>> float(loss.exp())  # all of the 4 ** 3 labellings are equally likely
    64.0
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r} is not one of {', '.join(map(repr, REDUCTIONS))}")
    real = targets != ignore_index
    _check(emissions, targets, real, payoff)
    marginals = _marginals(targets, real, payoff, emissions.dtype)
    expected = (marginals * emissions).sum((1, 2))
    expected = expected + ((marginals[:, :-1] @ transitions) * marginals[:, 1:]).sum((1, 2))
    if start is not None:
        expected = expected + (marginals[:, :1] * start).sum((1, 2))
    if end is not None:
        following = functional.pad(real[:, 1:], (0, 1), value=False)
        last = real & ~following
        expected = expected + (marginals * last[..., None] * end).sum((1, 2))
    losses = crf_log_normalizer(emissions, transitions, real, start=start, end=end) - expected
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.sum() / (real.sum() if reduction == "token_mean" else real.any(1).sum()).clamp(min=1)


def crf_log_normalizer(
    emissions: Float[Tensor, "batch steps labels"],
    transitions: Float[Tensor, "labels labels"],
    real: Bool[Tensor, "batch steps"],
    *,
    start: Float[Tensor, " labels"] | None = None,
    end: Float[Tensor, " labels"] | None = None,
) -> Float[Tensor, " batch"]:
    """``log Z`` by the forward recursion; 0 for an empty sequence.

    Args:
        emissions: A score for each label at each position.
        transitions: ``A[i, j]``, of label j after label i.
        real: False in the padding, which is at the end.
        start: Of the first label; None: zeros.
        end: Of the last label; None: zeros.

    >>> round(float(crf_log_normalizer(torch.zeros(1, 3, 4), torch.zeros(4, 4), torch.ones(1, 3).bool())[0].exp()), 3)
    64.0
    """
    if emissions.shape[1] == 0:
        return emissions.sum((1, 2))
    alpha = emissions[:, 0] if start is None else emissions[:, 0] + start
    for step in range(1, emissions.shape[1]):
        following = torch.logsumexp(alpha[:, :, None] + transitions, 1) + emissions[:, step]
        alpha = torch.where(real[:, step, None], following, alpha)
    normalizer = torch.logsumexp(alpha if end is None else alpha + end, 1)
    return torch.where(real[:, 0], normalizer, 0.0)


def _marginals(
    targets: Tensor, real: Tensor, payoff: HammingPayoff, dtype: torch.dtype
) -> Float[Tensor, "batch steps labels"]:
    """``q_t``, zeros in the padding."""
    weight = payoff.weight
    free = torch.ones(payoff.vocab_size, dtype=dtype, device=targets.device)
    excluded = [token for token in payoff.exclude_ids if 0 <= token < payoff.vocab_size]
    free[excluded] = 0.0
    reference = functional.one_hot(targets.masked_fill(~real, 0), payoff.vocab_size).to(dtype)
    total = 1 + (float(free.sum()) - 1) * weight
    noised = (weight * free + (1 - weight) * reference) / total
    may_change = free[targets.masked_fill(~real, 0)] > 0
    return torch.where(may_change[..., None], noised, reference) * real[..., None]


def _check(emissions: Tensor, targets: Tensor, real: Tensor, payoff: HammingPayoff) -> None:
    if payoff.vocab_size != emissions.shape[-1]:
        raise ValueError(
            f"payoff has vocab_size={payoff.vocab_size}, but emissions are over {emissions.shape[-1]} labels"
        )
    if torch.compiler.is_compiling():
        return
    outside = real & ((targets < 0) | (targets >= emissions.shape[-1]))
    if bool(outside.any()):
        raise ValueError(f"targets has {int(targets[outside][0])}; labels are 0..{emissions.shape[-1] - 1}")
    if bool((real[:, 1:] & ~real[:, :-1]).any()):
        raise ValueError("targets has padding before a label; all padding must be at the end")
