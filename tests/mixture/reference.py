"""Slow, independent references for the mixture tests: numerical inversion and high-precision arithmetic."""

from __future__ import annotations

import mpmath
import torch
from torch import Tensor


def conditional_cdf(x: Tensor, logits: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """``F(x_d | x_<d)`` for every d, straight from the definition."""
    z = (x.unsqueeze(-2) - loc) / scale
    log_n = torch.distributions.Normal(loc, scale).log_prob(x.unsqueeze(-2))
    before = torch.cat([torch.zeros_like(log_n[..., :1]), log_n.cumsum(-1)[..., :-1]], -1)
    w = torch.softmax(torch.log_softmax(logits, -1).unsqueeze(-1) + before, -2)
    return (w * torch.special.ndtr(z)).sum(-2)


def conditional_cdf_full(x: Tensor, logits: Tensor, loc: Tensor, scale_tril: Tensor) -> Tensor:
    """The same for full covariances, from the marginal and conditional normals of each component."""
    covariance = scale_tril @ scale_tril.mT
    dims = x.shape[-1]
    columns = []
    log_joint = torch.log_softmax(logits, -1)
    for d in range(dims):
        mean, variance = loc[..., d], covariance[..., d, d]
        if d:
            block = torch.linalg.solve(covariance[..., :d, :d], covariance[..., :d, d])
            mean = mean + (block * (x[..., None, :d] - loc[..., :d])).sum(-1)
            variance = variance - (block * covariance[..., :d, d]).sum(-1)
        normal = torch.distributions.Normal(mean, variance.sqrt())
        columns.append((torch.softmax(log_joint, -1) * normal.cdf(x[..., d].unsqueeze(-1))).sum(-1))
        log_joint = log_joint + normal.log_prob(x[..., d].unsqueeze(-1))
    return torch.stack(columns, -1)


def invert(u: Tensor, cdf, *parameters: Tensor, half_width: float = 30.0) -> Tensor:
    """The point whose conditional distribution functions are ``u``, dimension by dimension, by bisection."""
    with torch.no_grad():
        x = torch.zeros_like(u)
        for d in range(u.shape[-1]):
            low, high = torch.full_like(u[..., d], -half_width), torch.full_like(u[..., d], half_width)
            for _ in range(62):
                middle = (low + high) / 2
                x[..., d] = middle
                below = cdf(x, *parameters)[..., d] < u[..., d]
                low, high = torch.where(below, middle, low), torch.where(below, high, middle)
            x[..., d] = (low + high) / 2
        return x


def exact_scalar_gradients(
    x: float, logits: list[float], loc: list[float], scale: list[float]
) -> tuple[list, list, list]:
    """``dx`` in logits, means and deviations in one dimension with 600 digits: ``-(dF/dtheta) / f``."""
    with mpmath.workdps(600):
        top = [mpmath.exp(mpmath.mpf(a)) for a in logits]
        pi = [t / mpmath.fsum(top) for t in top]
        z = [(mpmath.mpf(x) - m) / mpmath.mpf(s) for m, s in zip(loc, scale, strict=True)]
        density = [mpmath.npdf(v) / mpmath.mpf(s) for v, s in zip(z, scale, strict=True)]
        f = mpmath.fsum(p * n for p, n in zip(pi, density, strict=True))
        upper = [mpmath.erfc(v / mpmath.sqrt(2)) / 2 for v in z]
        total = mpmath.fsum(p * q for p, q in zip(pi, upper, strict=True))
        grad_logits = [p * (q - total) / f for p, q in zip(pi, upper, strict=True)]
        grad_loc = [p * n / f for p, n in zip(pi, density, strict=True)]
        grad_scale = [r * v for r, v in zip(grad_loc, z, strict=True)]
        return tuple([float(v) for v in values] for values in (grad_logits, grad_loc, grad_scale))
