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
from jaxtyping import Float, Int
from torch import Tensor

PROBES = 64
WIDENING = 0.4


def place_probes(
    logits: Float[Tensor, "B K"], loc: Float[Tensor, "B K D"], scale: Float[Tensor, "..."], count: int = PROBES
) -> tuple[Float[Tensor, "M B D"], Float[Tensor, "M B"], Float[Tensor, "M B K"]]:
    """Probes of each batch element, their weights, which sum to one, and the responsibilities of the components for them.

    Args:
        logits: Unnormalised log weights, K at least 2.
        loc: Means.
        scale: Standard deviations (B, K, D) or lower Cholesky factors (B, K, D, D).
        count: Number M of probes.

    >>> loc = torch.tensor([[[-1.0], [3.0]]], dtype=torch.float64)
    >>> y, w, r = place_probes(torch.zeros(1, 2, dtype=torch.float64), loc, torch.ones_like(loc))
    >>> (w * y.squeeze(-1)).sum().round(decimals=1)  # the mean of the mixture
    tensor(1., dtype=torch.float64)
    >>> (w.unsqueeze(-1) * r).sum(0).round(decimals=1)  # its weights
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    components, dims = loc.shape[-2:]
    full = scale.dim() == loc.dim() + 1
    start, end, share, gaps = _positions(components, count, loc)
    origin = loc.mean(-2, keepdim=True)
    means = loc - origin
    center = torch.lerp(means[:, start], means[:, end], share.unsqueeze(-1))  # (B, M, D)
    nearer = torch.where(share < 0.5, start, end)
    spread, line = scale[:, nearer], (means[:, end] - means[:, start]).unsqueeze(-1)
    white = torch.linalg.solve_triangular(spread, line, upper=False) if full else line / spread.unsqueeze(-1)
    widen = (1 + WIDENING / math.sqrt(dims)) * (white.squeeze(-1).norm(dim=-1) / gaps).clamp(min=1) ** (1 / dims)
    noise = widen.unsqueeze(-1) * _normal_sequence(count, dims, loc)
    y = center + ((spread @ noise.unsqueeze(-1)).squeeze(-1) if full else spread * noise)

    log_b = torch.logsumexp(log_normals(y, center, widen, nearer, scale), -1)
    every, ones = torch.arange(components, device=loc.device), torch.ones_like(loc[..., 0])
    log_joint = torch.log_softmax(logits, -1).unsqueeze(-2) + log_normals(y, means, ones, every, scale)
    weight = torch.softmax(torch.logsumexp(log_joint, -1) - log_b, -1)
    return (y + origin).transpose(0, 1), weight.T, torch.softmax(log_joint, -1).transpose(0, 1)


def log_normals(
    y: Float[Tensor, "B M D"],
    center: Float[Tensor, "B I D"],
    width: Float[Tensor, "B I"],
    component: Int[Tensor, "I"],
    scale: Float[Tensor, "..."],
) -> Float[Tensor, "B M I"]:
    """Log densities, without ``log(2 pi) D / 2``, of normals with the covariance of a component each, times ``width^2``.

    Products of matrices, ``|u - v|^2 = |u|^2 - 2 u v + |v|^2``, take a fifth of the time of all differences. They are in
    double precision, since the squares cancel where components are narrow beside the distance of their means.

    >>> y, center = torch.tensor([[[0.0], [1.0]]]), torch.tensor([[[3.0]]])
    >>> log_normals(y, center, torch.ones(1, 1), torch.tensor([0]), torch.ones(1, 1, 1))
    tensor([[[-4.5000],
             [-2.0000]]])
    """
    precise = torch.float32 if y.device.type == "mps" else torch.float64
    points, center_, width_, scale_ = (tensor.to(precise) for tensor in (y, center, width, scale))
    full = scale.dim() > y.dim()
    volume = (scale_.diagonal(dim1=-2, dim2=-1) if full else scale_).log().sum(-1)[:, component]
    constant = (-y.shape[-1] * width_.log() - volume).unsqueeze(-2)
    if full:
        log_density = torch.empty(*y.shape[:-1], len(component), dtype=precise, device=y.device)
        for k in component.unique():
            i = (component == k).nonzero().squeeze(-1)
            u, v = (torch.linalg.solve_triangular(scale_[:, k], p.mT, upper=False) for p in (points, center_[:, i]))
            distance = u.square().sum(-2).unsqueeze(-1) + v.square().sum(-2).unsqueeze(-2) - 2 * u.mT @ v
            log_density[..., i] = constant[..., i] - 0.5 * distance / width_[:, i].square().unsqueeze(-2)
    else:  # one product: (y^2, y, 1) with (-1/2, c, -c^2/2) / (s w)^2
        precision = (scale_[:, component] * width_.unsqueeze(-1)).square().reciprocal()
        pull = center_ * precision
        constant = constant - 0.5 * (center_ * pull).sum(-1).unsqueeze(-2)
        features = torch.cat([points.square(), points, torch.ones_like(points[..., :1])], -1)
        log_density = features @ torch.cat([-0.5 * precision.mT, pull.mT, constant], -2)
    return log_density.to(y.dtype)


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
