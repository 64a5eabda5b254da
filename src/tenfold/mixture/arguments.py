"""Checks of a mixture's parameters: shapes that must agree, values that must be legal, and a sentence about those not."""

from __future__ import annotations

from functools import reduce
from operator import index
from typing import Any

import torch
from torch import Tensor


def broadcast_parameters(
    weights_name: str, weights: Tensor, loc: Tensor, spread_name: str, spread: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (.., K), means (.., K, D) and deviations in one dtype and with one batch shape.

    Raises:
        ValueError: Axes K or D that differ, or batch dimensions that do not broadcast; both shapes are named.
        TypeError: A parameter that is no floating-point tensor.
    """
    for name, value in ((weights_name, weights), ("loc", loc), (spread_name, spread)):
        if not isinstance(value, Tensor) or not value.is_floating_point():
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{name} must be a floating-point tensor, not {kind}")
    axes = ("K", "D") if spread_name == "scale" else ("K", "D", "D")
    for name, value, expected in (
        (weights_name, weights, ("K",)),
        ("loc", loc, ("K", "D")),
        (spread_name, spread, axes),
    ):
        if value.dim() < len(expected):
            raise ValueError(f"{name} has shape {tuple(value.shape)}, but needs the axes (.., {', '.join(expected)})")
    if weights.shape[-1] != loc.shape[-2]:
        raise ValueError(
            f"{weights_name} has shape {tuple(weights.shape)}, so K = {weights.shape[-1]} (last axis), but loc has "
            f"shape {tuple(loc.shape)}, so K = {loc.shape[-2]} (last axis but one)"
        )
    wanted = loc.shape[-2:] if spread_name == "scale" else (*loc.shape[-2:], loc.shape[-1])
    if tuple(spread.shape[-len(wanted) :]) != tuple(wanted):
        raise ValueError(
            f"{spread_name} has shape {tuple(spread.shape)} and loc {tuple(loc.shape)}: the last axes of {spread_name} "
            f"must be ({', '.join(axes)}) = {tuple(wanted)}"
        )
    if 0 in (loc.shape[-2], loc.shape[-1]):
        raise ValueError(f"loc has shape {tuple(loc.shape)}: at least one component and one dimension are needed")
    batches = (weights.shape[:-1], loc.shape[:-2], spread.shape[: -len(wanted)])
    try:
        batch = torch.broadcast_shapes(*batches)
    except RuntimeError:
        raise ValueError(
            f"the batch shapes {weights_name} {tuple(batches[0])}, loc {tuple(batches[1])} and {spread_name} "
            f"{tuple(batches[2])} do not broadcast"
        ) from None
    dtype = reduce(torch.promote_types, (weights.dtype, loc.dtype, spread.dtype))
    targets = ((*batch, loc.shape[-2]), (*batch, *loc.shape[-2:]), (*batch, *wanted))
    weights, loc, spread = (
        value.to(dtype)
        if value.shape == target
        else value.to(dtype).expand(target)  # the parameter itself where it fits
        for value, target in zip((weights, loc, spread), targets, strict=True)
    )
    return weights, loc, spread


def check_values(weights_name: str, weights: Tensor, loc: Tensor, spread_name: str, spread: Tensor) -> None:
    """Raise a ValueError that names the first entry which is not legal."""
    if weights_name == "logits":
        require(~weights.isnan() & (weights < torch.inf), weights, "logits", "must be finite, or -inf for weight zero")
        alive = (weights > -torch.inf).any(-1, keepdim=True)
        require(alive.expand_as(weights), weights, "logits", "lies in a row without a component of positive weight")
    else:
        require(weights >= 0, weights, "probs", "must be at least 0")
        total = weights.sum(-1)
        tolerance = 1e-6 + 4 * weights.shape[-1] * torch.finfo(weights.dtype).eps
        require((total - 1).abs() <= tolerance, total, "probs.sum(-1)", "must be 1")
    _require_finite(loc, "loc")
    _require_finite(spread, spread_name)
    if spread_name == "scale":
        if spread.numel() > 0 and not bool(spread.amin() > 0):
            require(spread > 0, spread, "scale", "must be positive")
    elif spread_name == "scale_tril":
        require(spread.triu(1) == 0, spread, "scale_tril", "must be 0 above the diagonal")
        diagonal = spread.diagonal(dim1=-2, dim2=-1)
        require(diagonal > 0, diagonal, "scale_tril diagonal", "must be positive")
    else:
        rounding = (1e-8 if spread.dtype == torch.float64 else 1e-4) * spread.abs().amax((-2, -1), keepdim=True)
        symmetric = (spread - spread.mT).abs() <= rounding
        require(symmetric, spread, "covariance_matrix", "must equal its mirror image: the matrix must be symmetric")
        order = torch.linalg.cholesky_ex(spread.detach()).info
        if bool((order > 0).any()):
            index, minor = _first(order > 0), int(order[order > 0][0])
            raise ValueError(
                f"covariance_matrix{_place(index)} must be positive definite; "
                f"its leading minor of order {minor} is not positive"
            )


def sample_size(sample_shape: Any) -> torch.Size:
    """``sample_shape`` as torch takes it: a sequence of sizes that are not negative.

    Raises:
        TypeError: A bare number, or a size that is no integer.
        ValueError: A negative size.

    >>> sample_size([3, 2])
    torch.Size([3, 2])
    """
    if isinstance(sample_shape, int) or (isinstance(sample_shape, Tensor) and sample_shape.dim() == 0):
        raise TypeError(f"sample_shape={sample_shape!r} must be a tuple of sizes, such as ({abs(int(sample_shape))},)")
    try:
        shape = torch.Size(sample_shape)
    except TypeError:
        raise TypeError(f"sample_shape={sample_shape!r} must be a tuple of integer sizes, such as (5,)") from None
    if any(size < 0 for size in shape):
        raise ValueError(f"sample_shape={tuple(shape)} holds a negative size; sizes are 0 or more")
    return shape


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise a TypeError where ``value`` is no integer, and a ValueError where it is below ``least``.

    >>> check_count("num_samples", 0)
    Traceback (most recent call last):
    ValueError: num_samples=0 must be at least 1
    """
    try:
        count = index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} must be an integer, at least {least}") from None
    if count < least:
        raise ValueError(f"{name}={count} must be at least {least}")


def require(legal: Tensor, value: Tensor, name: str, rule: str) -> None:
    """Raise a ValueError that names the first entry of ``value`` which is not ``legal``."""
    if not bool(legal.all()):
        index = _first(~legal)
        raise ValueError(f"{name}{_place(index)} = {value[index].item():.6g} {rule}")


def _require_finite(value: Tensor, name: str) -> None:
    # A sum is finite only if every entry is, and costs a tenth of looking at each; a sum that overflows is looked at.
    if not bool(value.sum().isfinite()):
        require(value.isfinite(), value, name, "must be finite")


def _first(found: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in found.nonzero()[0])


def _place(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""
