r"""Expectations under a mixture whose logits gradient combines the pathwise and the score estimator.

Moving mass from one mode to another by the quantile transform sweeps it through the gap between them, so the variance
of the pathwise logits gradient grows like the inverse density there; the score ``(f(x) - b)(r_k(x) - pi_k)`` does not
care for gaps but for the size of ``f``. Both are unbiased, hence so is ``lambda * pathwise + (1 - lambda) * score`` for
every lambda that does not depend on the samples it multiplies. The variance of one sample, summed over the logits,

.. math:: V(\lambda) = V_S + 2\lambda\,C(S, P - S) + \lambda^2\,V(P - S), \qquad \lambda^* = -C(S, P - S) / V(P - S),

rests on points in the gap that a few samples rarely contain, so a variance estimated from them is too small just when it
matters. It is therefore taken at 64 further points that are placed on purpose, gaps and rare modes included, and weighted
by the density (module ``probes``); ``f`` is evaluated there once more. No sample takes part in lambda. The baseline ``b``
of a score is the mean of the other samples, which adds ``(C(f, r)^2 + V(f) V(r)) / (n - 1)`` to ``V_S``.

The probes lie on straight lines, but in D > 2 dimensions the quantile transform moves mass one dimension after the other,
off these lines. There the weight is also capped by a measure of overlap. With the Laplacian ``L = diag(E r) - E r r^T``
of the responsibilities and ``u_k = d pi / d a_k``, the sum of ``u_k^T L^+ u_k`` over ``k`` is the effective resistance of
the gaps to the mass that the logits move, and

.. math:: \beta = \sum_k \pi_k (1 - \pi_k) \Big/ \sum_k u_k^T L^+ u_k

is 1 for equal components and ``E[r_1 r_2] / (pi_1 pi_2)`` for two; lambda is at most ``CAP * beta``.

Ratio of the combined variance to that of the better part, in one dimension, by quadrature: two modes 0.5 to 10 deviations
apart, weights 0.5 to 0.99, f = x, cos x, x^2, x^3, sigmoid 5x, sin 3x, and a bump in the gap: at most 1.01 in all of 252
settings for 16, 64 and 1000 samples, 0.7 in the geometric mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tenfold.mixture import quantile
from tenfold.mixture.pathwise import Estimator, first_derivative_only, move_with_parameters, torch_gradients
from tenfold.mixture.probes import place_probes

CAP = 6.0


def combined_expectation(
    f: Callable[[Tensor], Tensor],
    x: Float[Tensor, "*sample_and_batch D"],
    logits: Float[Tensor, "*batch K"],
    loc: Float[Tensor, "*batch K D"],
    scale: Float[Tensor, "*batch K *D_or_DD"],
    estimator: Estimator = "responsibility",
) -> Float[Tensor, "*batch"]:
    """Mean of ``f`` over the samples ``x``, with the combined gradient for the logits (``GaussianMixture.expectation``)."""
    batch = logits.shape[:-1]
    samples = x.shape[: x.dim() - 1 - len(batch)].numel()
    if samples < 2:
        raise ValueError(f"sample_shape holds {samples} samples; at least 2 are needed, for the baseline of the score")
    moved = move_with_parameters(x.detach(), logits.detach(), loc, scale, estimator)
    wanted = torch.is_grad_enabled() and logits.requires_grad
    if wanted and not moved.requires_grad:
        moved.requires_grad_()  # f's derivative is needed even where loc and scale are constants
    values = f(moved)
    if values.shape != x.shape[:-1]:
        raise ValueError(
            f"f returned the shape {tuple(values.shape)} for samples {tuple(x.shape)}; one value a sample is needed"
        )
    if not values.is_floating_point():  # an indicator, a count
        values = values.to(x.dtype)
    mean = values.reshape(samples, *batch).mean(0)
    if not wanted:
        return mean
    slope = torch.zeros_like(x)
    if values.requires_grad:
        (gradient,) = torch.autograd.grad(values.sum(), moved, retain_graph=True, allow_unused=True)
        slope = slope if gradient is None else gradient
    rows = batch.numel()
    with torch.no_grad():
        flat = (
            logits.reshape(rows, *logits.shape[-1:]),
            loc.reshape(rows, *loc.shape[-2:]),
            scale.reshape(rows, *scale.shape[len(batch) :]),
        )
        x = x.reshape(samples, rows, x.shape[-1])
        pathwise = pathwise_gradients(slope.reshape(x.shape), x, *flat)
        responsibility, _ = quantile.posterior(x, *flat)
        score = score_gradients(values.detach().reshape(samples, rows), responsibility, torch.softmax(flat[0], -1))
    weight = pathwise_weight(f, batch, *flat, samples)
    gradient = (weight * pathwise + (1 - weight) * score).mean(0).reshape(logits.shape)
    combined: Tensor = _AttachLogitsGradient.apply(mean, logits, gradient)
    return combined


def pathwise_gradients(
    slope: Float[Tensor, "S B D"],
    x: Float[Tensor, "S B D"],
    logits: Float[Tensor, "B K"],
    loc: Float[Tensor, "B K D"],
    scale: Float[Tensor, "..."],
) -> Float[Tensor, "S B K"]:
    """``df/dx dx/dlogits`` of each sample by the quantile transform, with ``df/dx`` the slope."""
    full = scale.dim() == loc.dim() + 1
    gradients = torch_gradients if full else torch.ops.tenfold.mixture_gradients
    pathwise: Tensor = gradients(slope, x, logits, loc, scale, "quantile", True)[0]
    return pathwise


def score_gradients(
    values: Float[Tensor, "S B"], responsibility: Float[Tensor, "S B K"], pi: Float[Tensor, "B K"]
) -> Float[Tensor, "S B K"]:
    """``(f(x) - b)(r_k(x) - pi_k)`` with the mean of the other samples as ``b``, independent of the sample at hand."""
    baseline = (values.sum(0) - values) / (values.shape[0] - 1)
    return (values - baseline).unsqueeze(-1) * (responsibility - pi)


def pathwise_weight(
    f: Callable[[Tensor], Tensor],
    batch: torch.Size,
    logits: Float[Tensor, "B K"],
    loc: Float[Tensor, "B K D"],
    scale: Float[Tensor, "..."],
    samples: int,
) -> Float[Tensor, "B 1"]:
    """The lambda of least variance between 0 and 1 for ``samples`` samples, from the probes alone.

    0 where no probe has a pathwise gradient: ``f`` is detached, or a step function whose derivative misses its jumps.
    """
    given, (_, components, dims) = loc.dtype, loc.shape
    if components == 1 or loc.numel() == 0:
        return torch.zeros_like(logits[:, :1])
    working = torch.promote_types(given, torch.float32)
    theta = (logits.detach().to(working), loc.detach().to(working), scale.detach().to(working))
    y, w, responsibility = place_probes(*theta)
    with torch.enable_grad():
        points = y.to(given).reshape(len(y), *batch, dims).requires_grad_()
        values = f(points)
        slope = torch.zeros_like(points)
        if values.requires_grad:
            (found,) = torch.autograd.grad(values.sum(), points, allow_unused=True)
            slope = slope if found is None else found
    value, slope = values.detach().to(working).reshape(w.shape), slope.to(working).reshape(y.shape)
    # f may be infinite, or no number, where the mixture has hardly any density
    known = value.isfinite() & slope.isfinite().all(-1)
    value, slope = torch.where(known, value, 0.0), torch.where(known.unsqueeze(-1), slope, 0.0)
    w = torch.where(known, w, 0.0)
    w = w / w.sum(0).clamp(min=torch.finfo(working).tiny)
    pi = torch.softmax(theta[0], -1)
    pathwise = pathwise_gradients(slope, y, *theta)
    deviation, excess = value - (w * value).sum(0), responsibility - pi
    score, w = deviation.unsqueeze(-1) * excess, w.unsqueeze(-1)
    mean = (w * score).sum(0)
    spread = (w * deviation.unsqueeze(-1).square()).sum((0, -1)) * (w * excess.square()).sum((0, -1))
    of_baseline = (mean.square().sum(-1) + spread) / (samples - 1)
    difference = score - pathwise
    centred = difference - (w * difference).sum(0)
    covariance = (w * (score - mean) * centred).sum((0, -1)) + of_baseline
    weight = covariance / ((w * centred.square()).sum((0, -1)) + of_baseline)
    if dims > 2:
        weight = torch.minimum(weight, CAP * overlap(responsibility, pi, w))
    usable = (pathwise != 0).any(0).any(-1) & weight.isfinite()
    return torch.where(usable, weight, 0.0).clamp(0.0, 1.0).unsqueeze(-1).to(given)


def overlap(
    responsibility: Float[Tensor, "S B K"], pi: Float[Tensor, "B K"], weight: Float[Tensor, "S B 1"]
) -> Float[Tensor, "B"]:
    """``beta`` of the module: 1 where the components coincide, towards 0 where mass must cross empty gaps.

    The points have the weights ``weight``, which sum to one; the mass to be moved is that of the exact ``pi``.

    >>> coincide = torch.full((10, 1, 2), 0.5)
    >>> overlap(coincide, torch.full((1, 2), 0.5), torch.full((10, 1, 1), 0.1))
    tensor([1.])
    """
    precise = torch.float32 if responsibility.device.type == "mps" else torch.float64
    r, pi, weighted = responsibility.to(precise), pi.to(precise), (weight * responsibility).to(precise)
    laplacian = torch.diag_embed(weighted.sum(0)) - torch.einsum("sbk,sbj->bkj", weighted, r)
    moved = torch.diag_embed(pi) - pi.unsqueeze(-1) * pi.unsqueeze(-2)  # row k: u_k; symmetric, its rows sum to zero
    # The constant vector spans the null space of L for connected components; the ridge keeps empty gaps finite.
    eps = torch.finfo(r.dtype).eps
    grounded = laplacian + 1.0 / r.shape[-1] + eps * torch.eye(r.shape[-1], dtype=r.dtype, device=r.device)
    resistance = (moved * torch.linalg.solve(grounded, moved)).sum((-2, -1))
    variance = (pi * (1 - pi)).sum(-1)
    return torch.where(resistance > 0, variance / resistance, 1.0).clamp(0.0, 1.0).to(responsibility.dtype)


class _AttachLogitsGradient(torch.autograd.Function):
    """The value, plus a given gradient for the logits; its own derivative is not known and refused."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, logits: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(logits, gradient)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        logits, gradient = ctx.saved_tensors
        g = first_derivative_only(g, logits, "expectation has no second derivative; f(mixture.rsample(..)) has")
        return g, g.unsqueeze(-1) * gradient, None
