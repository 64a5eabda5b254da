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


def _log_det(scale_tril: Float[Tensor, "*batch D D"]) -> Float[Tensor, "*batch"]:
    return 2 * scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _squared_distance(
    difference: Float[Tensor, "*batch D"], scale_tril: Float[Tensor, "*#batch D D"]
) -> Float[Tensor, "*batch"]:
    return torch.linalg.solve_triangular(scale_tril, difference.unsqueeze(-1), upper=False).square().sum((-2, -1))


def bhattacharyya_distance(
    loc: Float[Tensor, "*batch K D"], scale_tril: Float[Tensor, "*batch K D D"]
) -> Float[Tensor, "*batch K K"]:
    """``(mu_i - mu_j)^T S^-1 (mu_i - mu_j) / 8 + log(det S / sqrt(det S_i det S_j)) / 2`` with S the mean of both."""
    covariance = scale_tril @ scale_tril.mT
    middle = torch.linalg.cholesky((covariance.unsqueeze(-3) + covariance.unsqueeze(-4)) / 2)
    difference = loc.unsqueeze(-2) - loc.unsqueeze(-3)
    log_det = _log_det(scale_tril)
    return _squared_distance(difference, middle) / 8 + 0.5 * (
        _log_det(middle) - 0.5 * (log_det.unsqueeze(-1) + log_det.unsqueeze(-2))
    )


def kullback_leibler_divergence(
    loc: Float[Tensor, "*batch K D"], scale_tril: Float[Tensor, "*batch K D D"]
) -> Float[Tensor, "*batch K K"]:
    """``KL(N_i || N_j)`` for every pair of components."""
    first, second = scale_tril.unsqueeze(-3), scale_tril.unsqueeze(-4)
    difference = loc.unsqueeze(-2) - loc.unsqueeze(-3)
    ratio = torch.linalg.solve_triangular(second, first.expand(torch.broadcast_shapes(first.shape, second.shape)), upper=False)
    trace = ratio.square().sum((-2, -1))
    return 0.5 * (trace + _squared_distance(difference, second) - loc.shape[-1] + _log_det(second) - _log_det(first))


def pairwise_bound(
    logits: Float[Tensor, "*batch K"],
    loc: Float[Tensor, "*batch K D"],
    scale_tril: Float[Tensor, "*batch K D D"],
    distance: Callable[[Tensor, Tensor], Tensor],
) -> Float[Tensor, "*batch"]:
    """The bound of Eq. 10 in nats for the given pairwise distance."""
    log_pi = torch.log_softmax(logits, -1)
    component = 0.5 * (loc.shape[-1] * (1 + math.log(2 * math.pi)) + _log_det(scale_tril))
    spread = torch.logsumexp(log_pi.unsqueeze(-2) - distance(loc, scale_tril), -1)
    return (log_pi.exp() * (component - spread)).sum(-1)
