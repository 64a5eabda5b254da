r"""Points at which the variance of a mixture's gradient estimators can be seen, gaps between the modes included.

Samples of the mixture itself hardly ever lie in the gap between two modes, where the pathwise gradient has its variance.
The points here are spread evenly along the lines between the means of each two components: probe ``i`` belongs to a
normal ``b_i`` around a point of such a line, with the covariance of the nearer component a little widened, and stands at
the ``i``-th point of a Kronecker sequence mapped to that normal. With the weights of deterministic mixture sampling
(Veach & Guibas 1995),

.. math:: w_i \propto p(y_i) \Big/ \tfrac1M \sum_j b_j(y_i), \qquad \sum_i w_i = 1,

``sum_i w_i h(y_i)`` estimates ``E h`` for any ``h``. No random number and no sample takes part in it.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from tenfold.mixture import quantile

PROBES = 64
WIDENING = 0.4


def place_probes(
    logits: Float[Tensor, "B K"], loc: Float[Tensor, "B K D"], scale: Float[Tensor, "..."], count: int = PROBES
) -> tuple[Float[Tensor, "M B D"], Float[Tensor, "M B"]]:
    """Probes of each batch element and their weights, which sum to one.

    Args:
        logits: Unnormalised log weights, K at least 2.
        loc: Means.
        scale: Standard deviations (B, K, D) or lower Cholesky factors (B, K, D, D).
        count: Number M of probes.

    >>> loc = torch.tensor([[[-1.0], [3.0]]], dtype=torch.float64)
    >>> y, w = place_probes(torch.zeros(1, 2, dtype=torch.float64), loc, torch.ones_like(loc))
    >>> (w * y.squeeze(-1)).sum().round(decimals=1)  # the mean of the mixture
    tensor(1., dtype=torch.float64)
    """
    components, dims = loc.shape[-2:]
    full = scale.dim() == loc.dim() + 1
    deviation = scale.diagonal(dim1=-2, dim2=-1) if full else scale
    start, end, share, gaps = _positions(components, count, loc)
    origin = loc.mean(-2, keepdim=True)
    ends = loc - origin
    center = (torch.lerp(ends[:, start], ends[:, end], share.unsqueeze(-1))).transpose(0, 1)  # (M, B, D)
    nearer = torch.where(share < 0.5, start, end)
    own = torch.arange(count, device=loc.device), slice(None), nearer
    white_center = _whiten(center, scale, full)[own]
    span = _whiten((ends[:, end] - ends[:, start]).transpose(0, 1), scale, full)[own].norm(dim=-1)
    widen = (1 + WIDENING / math.sqrt(dims)) * (span / gaps).clamp(min=1) ** (1 / dims)  # (M, B)
    noise = widen.unsqueeze(-1) * _normal_sequence(count, dims, loc).unsqueeze(1)
    spread = scale[:, nearer].transpose(0, 1)
    y = center + ((spread @ noise.unsqueeze(-1)).squeeze(-1) if full else spread * noise)

    white, log_volume = _whiten(y, scale, full), deviation.log().sum(-1)  # (M, B, K, D), (B, K)
    squares, center_squares = white.square().sum(-1), white_center.square().sum(-1)
    log_b = torch.full_like(squares[..., 0], -torch.inf)
    for k in range(components):  # |u - v|^2 = |u|^2 - 2 u v + |v|^2, products of matrices for all probes of component k
        i = (nearer == k).nonzero().squeeze(-1)
        if len(i) == 0:
            continue
        products = torch.einsum("mbd,ibd->bmi", white[:, :, k], white_center[i])
        distance = squares[:, :, k].T.unsqueeze(-1) - 2 * products + center_squares[i].T.unsqueeze(1)
        wide = widen[i].T.unsqueeze(1)
        log_parts = -0.5 * distance.clamp(min=0) / wide.square() - dims * wide.log() - log_volume[:, k, None, None]
        log_b = torch.logaddexp(log_b, torch.logsumexp(log_parts, -1).T)
    own_center = torch.diagonal(_whiten(ends.transpose(0, 1), scale, full), dim1=0, dim2=2).transpose(-1, -2)
    log_joint = torch.log_softmax(logits, -1) - 0.5 * (white - own_center).square().sum(-1) - log_volume
    return y + origin.transpose(0, 1), torch.softmax(torch.logsumexp(log_joint, -1) - log_b, 0)


def _positions(components: int, count: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """The two components of each probe, its place on the line between them from 0 to 1, and the steps of a line."""
    pairs = torch.triu_indices(components, components, 1, device=like.device)
    lines = min(pairs.shape[1], count // 2)
    i = torch.arange(count, device=like.device)
    start, end = pairs[:, i % lines * pairs.shape[1] // lines]
    gaps = -(-count // lines) - 1
    return start, end, (i // lines).to(like.dtype) / gaps, gaps


def _normal_sequence(count: int, dims: int, like: Tensor) -> Tensor:
    """``count`` points in ``dims`` dimensions, a Kronecker sequence by powers of the generalised golden ratio."""
    ratio = 2.0
    for _ in range(30):
        ratio = (1 + ratio) ** (1 / (dims + 1))
    i = torch.arange(1, count + 1, dtype=torch.float64).unsqueeze(1)
    steps = torch.tensor([ratio ** -(d + 1) for d in range(dims)], dtype=torch.float64)
    return torch.special.ndtri((i * steps + 0.5).frac().clamp(1e-6, 1 - 1e-6)).to(like)


def _whiten(x: Float[Tensor, "M B D"], scale: Tensor, full: bool) -> Float[Tensor, "M B K D"]:
    """``L_k^{-1} x`` for each component."""
    if full:
        return quantile.whiten(x, torch.zeros_like(scale[..., 0]), scale)
    return x.unsqueeze(-2) / scale
