"""Moments of channels and normalization by them in float64, a block of rows at a time; backward keeps only the input.

A whole tensor in float64 would take twice its memory, and autograd would keep several. Here each block of rows is
promoted, used and dropped, forward and backward. The moments of blocks merge as in Chan, Golub & LeVeque 1979, and

    d mean / d x_i = 1 / n,    d var / d x_i = 2 (x_i - mean) / n.

With s = 1 / sqrt(var + eps), y = (x - mean) s gamma + beta, A = sum(dy) and B = sum(dy (x - mean)) over a channel,

    dx = dy s gamma,  dmean = -A s gamma,  dvar = -B s^3 gamma / 2,  dgamma = B s,  dbeta = A.

Where further derivatives are asked for, the whole tensor is one block, so that autograd can follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tenfold.normalization.compiled import IDENTITY, batch_backward, batch_forward
from tenfold.normalization.layouts import served

BLOCK = 1 << 17  # values promoted at a time: 1 MiB in float64, which stays in a cache


def promoted(x: Tensor) -> Tensor:
    """The input in the precision in which sums of it are formed: float64 where the device has it.

    Raises:
        TypeError: The values are no real floating-point numbers: results in their type would lose all digits.
    """
    if not x.is_floating_point():
        raise TypeError(f"normalization takes floating-point values, not {x.dtype}; convert them, as with x.float()")
    return x.float() if x.device.type == "mps" else x.double()


def by_channel(values: Tensor, x: Tensor) -> Tensor:
    """One value a channel (C,), shaped so that it is combined with an input (N, C, ...)."""
    return values.view(1, -1, *(1 for _ in range(x.dim() - 2)))


def channel_axes(x: Tensor) -> list[int]:
    """The axes of an input (N, C, ...) that a channel's values lie on."""
    return [0, *range(2, x.dim())]


def row_blocks(x: Tensor) -> Iterator[slice]:
    """Slices of rows that hold about ``BLOCK`` values each; one of all rows on an accelerator, where starting work costs."""
    if x.device.type != "cpu":
        yield slice(0, x.shape[0])
        return
    rows = max(1, BLOCK * max(x.shape[0], 1) // max(x.numel(), 1))
    for start in range(0, x.shape[0], rows):
        yield slice(start, start + rows)


class ChannelMoments(torch.autograd.Function):
    """Mean and biased variance of each channel in float64: ``apply(x, mask, count)``, with 0 for no values.

    The mask is (N, ...) without channels, or None; count is the number of valid values a channel.
    """

    @staticmethod
    def forward(x: Tensor, mask: Tensor | None, count: int) -> tuple[Tensor, Tensor]:  # noqa: D102
        axes = channel_axes(x)
        mean = promoted(x.new_zeros(x.shape[1]))
        deviations, total = torch.zeros_like(mean), mean.new_zeros(())
        for rows in row_blocks(x) if x.numel() else ():
            values = promoted(x[rows])
            if mask is None:
                number = total.new_tensor(float(values.numel() // values.shape[1]))
                variance, center = torch.var_mean(values, axes, correction=0)
                squares = variance * number
            else:
                padding = ~mask[rows].unsqueeze(1)
                number = mask[rows].sum().to(total.dtype)
                center = values.masked_fill(padding, 0.0).sum(axes) / number.clamp(min=1)
                squares = (values - by_channel(center, values)).masked_fill(padding, 0.0).square().sum(axes)
            share = number / (total + number).clamp(min=1)
            step = center - mean
            deviations += squares + step.square() * (total * share)
            mean += step * share
            total += number
        return mean, deviations / max(count, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:  # noqa: D102
        x, mask, ctx.count = inputs
        ctx.save_for_backward(x, mask, output[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: D102
        by_mean, by_variance = (gradient / max(ctx.count, 1) for gradient in gradients)
        x, mask, mean = ctx.saved_tensors
        if torch.is_grad_enabled():  # the mean stands here as the output that autograd knows
            return _moments_gradient(x, mask, mean, by_mean, by_variance), None, None
        slope = 2.0 * by_variance
        if mask is None and served(x, None) and _fits(slope, x):  # an affine map of x, as normalization is
            return batch_forward(x, slope, by_mean, None, mean, torch.ones_like(mean), 0.0, IDENTITY)[0], None, None
        dx = torch.empty_like(x)
        for rows in row_blocks(x):
            dx[rows] = _moments_gradient(x[rows], None if mask is None else mask[rows], mean, by_mean, by_variance)
        return dx, None, None


def _fits(values: Tensor, x: Tensor) -> bool:
    """Whether the values can be numbers of the kernels' arithmetic, float32 for narrow inputs, and keep their digits."""
    size = values.abs()
    return x.dtype == torch.float64 or bool(((size == 0) | ((size > 1e-30) & (size < 1e30))).all())


def _moments_gradient(x: Tensor, mask: Tensor | None, mean: Tensor, by_mean: Tensor, by_variance: Tensor) -> Tensor:
    dx = by_channel(by_mean, x) + by_channel(2.0 * by_variance, x) * (promoted(x) - by_channel(mean, x))
    return (dx if mask is None else dx.masked_fill(~mask.unsqueeze(1), 0.0)).to(x.dtype)


def plainly_normalized(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` in float64, in the dtype of the input."""
    y = (promoted(x) - by_channel(promoted(mean), x)) * by_channel(_scale(variance, weight, eps), x)
    return (y if bias is None else y + by_channel(promoted(bias), x)).to(x.dtype)


def _scale(variance: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    scale = torch.rsqrt(promoted(variance) + eps)
    return scale if weight is None else scale * promoted(weight)


class Normalized(torch.autograd.Function):
    """``plainly_normalized``, in blocks: ``apply(x, mean, variance, weight, bias, eps)``."""

    @staticmethod
    def forward(  # noqa: D102
        x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        if served(x, None):
            return batch_forward(x, weight, bias, None, mean, variance, eps, IDENTITY)[0]
        y = torch.empty_like(x)
        for rows in row_blocks(x):
            y[rows] = plainly_normalized(x[rows], mean, variance, weight, bias, eps)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: D102
        *tensors, ctx.eps = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: D102
        dy = gradients[0]
        x, mean, variance, weight, bias = ctx.saved_tensors
        scale = _scale(variance, weight, ctx.eps)
        if torch.is_grad_enabled():  # autograd differentiates what is done here: nothing in place
            dx, of_dy, of_products = _normalized_gradient(x, dy, mean, scale)
        elif served(x, None) and dy.dtype == x.dtype:
            exact = (promoted(mean), promoted(variance))
            known = torch.stack(exact)
            dx, _, by_weight, of_dy = batch_backward(dy, x, weight, bias, None, known, ctx.eps, IDENTITY, False)
            of_products = by_weight * torch.sqrt(exact[1] + ctx.eps)
        else:
            dx, of_dy, of_products = torch.empty_like(x), torch.zeros_like(scale), torch.zeros_like(scale)
            for rows in row_blocks(x):
                dx[rows], *sums = _normalized_gradient(x[rows], dy[rows], mean, scale)
                of_dy += sums[0]
                of_products += sums[1]
        deviation = torch.rsqrt(promoted(variance) + ctx.eps)
        by_mean, by_variance = -of_dy * scale, -0.5 * of_products * scale * deviation.square()
        return (
            dx,
            by_mean.to(mean.dtype),
            by_variance.to(variance.dtype),
            None if weight is None else (of_products * deviation).to(weight.dtype),
            None if bias is None else of_dy.to(bias.dtype),
            None,
        )


def _normalized_gradient(x: Tensor, dy: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the input, and A and B."""
    steep, axes = promoted(dy), channel_axes(x)
    products = steep * (promoted(x) - by_channel(promoted(mean), x))
    return (steep * by_channel(scale, x)).to(x.dtype), steep.sum(axes), products.sum(axes)
