r"""Expectations under a mixture whose logits gradient combines the pathwise and the score estimator.

Moving mass from one mode to another by the quantile transform sweeps it through the gap between them, so the variance
of the pathwise logits gradient grows like the inverse density there; the score ``(f(x) - b)(r_k(x) - pi_k)`` does not
care for gaps but for the size of ``f``. Both are unbiased, hence so is ``lambda * pathwise + (1 - lambda) * score`` for
every lambda that does not depend on the samples it multiplies. The variance of one sample, summed over the logits,

.. math:: V(\lambda) = V_S + 2\lambda\,C(S, P - S) + \lambda^2\,V(P - S), \qquad \lambda^* = -C(S, P - S) / V(P - S),

is estimated on one half of the samples and used on the other, and the other way round. The baseline ``b`` of a score is
the mean of the other samples; where scores serve to choose a weight it is taken from their own half, so that no weight
depends on the samples that it multiplies.

Where modes are far apart ``V(P)`` rests on samples in the gap that a half rarely contains, so its estimate is too small
just when it matters. The weight is therefore capped by a measure of overlap that errs to the safe side. With the
Laplacian ``L = diag(E r) - E r r^T`` of the responsibilities and ``u_k = d pi / d a_k``, the sum of ``u_k^T L^+ u_k``
over ``k`` is the effective resistance of the gaps to the mass that the logits move, and

.. math:: \beta = \sum_k \pi_k (1 - \pi_k) \Big/ \sum_k u_k^T L^+ u_k

is 1 for equal components and ``E[r_1 r_2] / (pi_1 pi_2)`` for two. The weights ``pi`` in
it are exact, so that samples which miss the gap, or a whole mode, lower it. By quadrature for two modes of equal weight
2 to 10 deviations apart and f = x, cos x, sin x, a weight of ``CAP * beta`` or less never costs more than 10 % over the
better of the two estimators where the sampled variance cannot be trusted (6 deviations and more).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tenfold.mixture import quantile
from tenfold.mixture.pathwise import Estimator, first_derivative_only, move_with_parameters, torch_gradients

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
    if samples < 4:
        raise ValueError(f"sample_shape holds {samples} samples; at least 4 are needed, 2 for each half")
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
    with torch.no_grad():
        rows = batch.numel()
        flat = (
            logits.reshape(rows, *logits.shape[-1:]),
            loc.reshape(rows, *loc.shape[-2:]),
            scale.reshape(rows, *scale.shape[len(batch) :]),
        )
        pathwise, score, responsibility = logits_gradients(
            values.detach().reshape(samples, rows),
            slope.reshape(samples, rows, x.shape[-1]),
            x.reshape(samples, rows, x.shape[-1]),
            *flat,
        )
        pi = torch.softmax(flat[0], -1)
        gradient = _cross_fitted(values.reshape(samples, rows), pathwise, score, responsibility, pi).reshape(
            logits.shape
        )
    combined: Tensor = _AttachLogitsGradient.apply(mean, logits, gradient)
    return combined


def logits_gradients(
    values: Float[Tensor, "S B"],
    slope: Float[Tensor, "S B D"],
    x: Float[Tensor, "S B D"],
    logits: Float[Tensor, "B K"],
    loc: Float[Tensor, "B K D"],
    scale: Float[Tensor, "..."],
) -> tuple[Float[Tensor, "S B K"], Float[Tensor, "S B K"], Float[Tensor, "S B K"]]:
    """Each sample's pathwise gradient of ``E f`` in the logits, its score gradient, and its responsibilities.

    Args:
        values: ``f(x)``.
        slope: ``df/dx``.
        x: Samples.
        logits: Unnormalised log weights.
        loc: Means.
        scale: Standard deviations or Cholesky factors.
    """
    if scale.dim() == loc.dim() + 1:
        pathwise = torch_gradients(slope, x, logits, loc, scale, "quantile", True)[0]
    else:
        pathwise = torch.ops.tenfold.mixture_gradients(slope, x, logits, loc, scale, "quantile", True)[0]
    responsibility, _ = quantile.posterior(x, logits, loc, scale)
    return pathwise, score_gradients(values, responsibility, torch.softmax(logits, -1)), responsibility


def score_gradients(
    values: Float[Tensor, "S B"], responsibility: Float[Tensor, "S B K"], pi: Float[Tensor, "B K"]
) -> Float[Tensor, "S B K"]:
    """``(f(x) - b)(r_k(x) - pi_k)`` with the mean of the other samples as ``b``, independent of the sample at hand."""
    baseline = (values.sum(0) - values) / (values.shape[0] - 1)
    return (values - baseline).unsqueeze(-1) * (responsibility - pi)


def _cross_fitted(
    values: Float[Tensor, "S B"],
    pathwise: Float[Tensor, "S B K"],
    score: Float[Tensor, "S B K"],
    responsibility: Float[Tensor, "S B K"],
    pi: Float[Tensor, "B K"],
) -> Float[Tensor, "B K"]:
    """Mean of the combination, each half weighted by the lambda of the other half."""
    half = pathwise.shape[0] // 2
    parts = [slice(None, half), slice(half, None)]
    total = torch.zeros_like(pathwise[0])
    for part, other in (parts, parts[::-1]):
        own_score = score_gradients(values[other], responsibility[other], pi)
        weight = pathwise_weight(pathwise[other], own_score, responsibility[other], pi)
        total += (weight * pathwise[part] + (1 - weight) * score[part]).sum(0)
    return total / pathwise.shape[0]


def pathwise_weight(
    pathwise: Float[Tensor, "S B K"],
    score: Float[Tensor, "S B K"],
    responsibility: Float[Tensor, "S B K"],
    pi: Float[Tensor, "B K"],
) -> Float[Tensor, "B 1"]:
    """The lambda of least variance, between 0 and 1 and at most ``CAP`` times the overlap of the modes.

    0 where no sample has a pathwise gradient: ``f`` is detached, or a step function whose derivative misses its jumps.
    """
    difference = pathwise - score
    centred = difference - difference.mean(0)
    covariance = ((score - score.mean(0)) * centred).sum((0, -1))
    variance = centred.square().sum((0, -1))
    weight = torch.where(variance > 0, -covariance / variance, 0.5)
    weight = torch.where((pathwise != 0).any(0).any(-1), weight, 0.0)
    return torch.minimum(weight, CAP * overlap(responsibility, pi)).clamp(0.0, 1.0).unsqueeze(-1)


def overlap(responsibility: Float[Tensor, "S B K"], pi: Float[Tensor, "B K"]) -> Float[Tensor, "B"]:
    """``beta`` of the module: 1 where the components coincide, towards 0 where mass must cross empty gaps.

    The mass to be moved is that of the exact weights ``pi``: a mode that these samples miss altogether is far away.

    >>> coincide = torch.full((10, 1, 2), 0.5)
    >>> overlap(coincide, torch.full((1, 2), 0.5))
    tensor([1.])
    """
    precise = torch.float32 if responsibility.device.type == "mps" else torch.float64
    r, pi = responsibility.to(precise), pi.to(precise)
    laplacian = torch.diag_embed(r.mean(0)) - torch.einsum("sbk,sbj->bkj", r, r) / r.shape[0]
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
