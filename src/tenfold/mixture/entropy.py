r"""Bounds on the entropy of a Gaussian mixture from distances between pairs of components.

Kolchinsky & Tracey 2017, *Estimating mixture entropy with pairwise distances* (arXiv 1706.02419), Eq. 10: with any
distance ``C`` between components,

.. math:: \hat H = \sum_i \pi_i H_i - \sum_i \pi_i \log \sum_j \pi_j e^{-C_{ij}},

which is a lower bound for the Bhattacharyya distance and an upper bound for the Kullback-Leibler divergence. Both are
exact when components are equal or lie in groups far apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def _log_det(spread: Float[Tensor, "..."], diagonal: bool) -> Float[Tensor, "..."]:
    return 2 * (spread if diagonal else spread.diagonal(dim1=-2, dim2=-1)).log().sum(-1)


def _squared_distance(
    difference: Float[Tensor, "*batch D"], spread: Float[Tensor, "..."], diagonal: bool
) -> Float[Tensor, "*batch"]:
    if diagonal:
        return (difference / spread).square().sum(-1)
    return torch.linalg.solve_triangular(spread, difference.unsqueeze(-1), upper=False).square().sum((-2, -1))


def bhattacharyya_distance(
    loc: Float[Tensor, "*batch K D"], spread: Float[Tensor, "..."]
) -> Float[Tensor, "*batch K K"]:
    """``(mu_i - mu_j)^T S^-1 (mu_i - mu_j) / 8 + log(det S / sqrt(det S_i det S_j)) / 2`` with S the mean of both."""
    diagonal = spread.dim() == loc.dim()
    if diagonal:
        middle = ((spread.unsqueeze(-2).square() + spread.unsqueeze(-3).square()) / 2).sqrt()
    else:
        covariance = spread @ spread.mT
        middle = torch.linalg.cholesky((covariance.unsqueeze(-3) + covariance.unsqueeze(-4)) / 2)
    difference = loc.unsqueeze(-2) - loc.unsqueeze(-3)
    log_det = _log_det(spread, diagonal)
    return _squared_distance(difference, middle, diagonal) / 8 + 0.5 * (
        _log_det(middle, diagonal) - 0.5 * (log_det.unsqueeze(-1) + log_det.unsqueeze(-2))
    )


def kullback_leibler_divergence(
    loc: Float[Tensor, "*batch K D"], spread: Float[Tensor, "..."]
) -> Float[Tensor, "*batch K K"]:
    """``KL(N_i || N_j)`` for every pair of components."""
    diagonal = spread.dim() == loc.dim()
    axis = -2 if diagonal else -3
    first, second = spread.unsqueeze(axis), spread.unsqueeze(axis - 1)
    difference = loc.unsqueeze(-2) - loc.unsqueeze(-3)
    if diagonal:
        trace = (first / second).square().sum(-1)
    else:
        pairs = torch.broadcast_shapes(first.shape, second.shape)
        trace = torch.linalg.solve_triangular(second, first.expand(pairs), upper=False).square().sum((-2, -1))
    log_det = _log_det(second, diagonal) - _log_det(first, diagonal)
    return 0.5 * (trace + _squared_distance(difference, second, diagonal) - loc.shape[-1] + log_det)


def pairwise_bound(
    logits: Float[Tensor, "*batch K"],
    loc: Float[Tensor, "*batch K D"],
    spread: Float[Tensor, "..."],
    distance: Callable[[Tensor, Tensor], Tensor],
) -> Float[Tensor, "*batch"]:
    """The bound of Eq. 10 in nats for the given pairwise distance.

    ``spread`` holds standard deviations (.., K, D) or lower Cholesky factors (.., K, D, D); here and above.
    """
    log_pi = torch.log_softmax(logits, -1)
    component = 0.5 * (loc.shape[-1] * (1 + math.log(2 * math.pi)) + _log_det(spread, spread.dim() == loc.dim()))
    spread = torch.logsumexp(log_pi.unsqueeze(-2) - distance(loc, spread), -1)
    return (log_pi.exp() * (component - spread)).sum(-1)
