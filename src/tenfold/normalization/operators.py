"""The compiled layers as operators of torch: eager, compiled, exported, with shapes known beforehand and with gradients.

    tenfold::group_norm, tenfold::batch_norm and their backward passes.

Kept for the backward pass are the input and two numbers a set; the activation is computed again from them. Where something
is added before the activation, it is kept too. Second derivatives go through the torch path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tenfold.normalization import compiled
from tenfold.normalization.layouts import is_watched, parameter_dtype
from tenfold.normalization.reference import reference_batch_norm, reference_group_norm

NAMES = {code: name for name, code in compiled.CODES.items()}


@torch.library.custom_op(
    "tenfold::group_norm",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor x, Tensor? weight, Tensor? bias, Tensor? add, int groups, float eps, int activation)"
    " -> (Tensor, Tensor)",
)
def group_norm_operator(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, add: Tensor | None, groups: int, eps: float, activation: int
) -> tuple[Tensor, Tensor]:
    """Output, and means and reciprocal deviations of Group Normalization."""
    return compiled.group_forward(x, weight, bias, add, groups, eps, activation)


@torch.library.custom_op(
    "tenfold::group_norm_backward",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor? add, Tensor statistics, int groups,"
    " int activation) -> (Tensor, Tensor, Tensor, Tensor)",
)
def group_norm_backward_operator(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    add: Tensor | None,
    statistics: Tensor,
    groups: int,
    activation: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dx, dadd (empty without a sum or an activation), dgamma and dbeta."""
    dx, dz, dgamma, dbeta = compiled.group_backward(dy, x, weight, bias, add, statistics, groups, activation)
    return dx, _own(dz, dx, add, activation), dgamma, dbeta


@torch.library.custom_op(
    "tenfold::batch_norm",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor x, Tensor? weight, Tensor? bias, Tensor? add, Tensor? mean, Tensor? variance, float eps,"
    " int activation) -> (Tensor, Tensor)",
)
def batch_norm_operator(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    add: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    eps: float,
    activation: int,
) -> tuple[Tensor, Tensor]:
    """Output, and means and variances of Batch Normalization, by given statistics or the batch's."""
    return compiled.batch_forward(x, weight, bias, add, mean, variance, eps, activation)


@torch.library.custom_op(
    "tenfold::batch_norm_backward",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor? add, Tensor statistics, float eps,"
    " int activation, bool measured) -> (Tensor, Tensor, Tensor, Tensor)",
)
def batch_norm_backward_operator(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    add: Tensor | None,
    statistics: Tensor,
    eps: float,
    activation: int,
    measured: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dx, dadd (empty without a sum or an activation), dgamma and dbeta."""
    dx, dz, dgamma, dbeta = compiled.batch_backward(dy, x, weight, bias, add, statistics, eps, activation, measured)
    return dx, _own(dz, dx, add, activation), dgamma, dbeta


def _own(dz: Tensor, dx: Tensor, add: Tensor | None, activation: int) -> Tensor:
    """An operator may not return one tensor twice."""
    return dx.new_empty(0) if add is None or activation == compiled.IDENTITY else dz


@group_norm_operator.register_fake
def _group_shapes(x: Tensor, weight: Any, bias: Any, add: Any, groups: int, eps: float, activation: int) -> Any:
    return torch.empty_like(x), x.new_empty((2, x.shape[0], groups), dtype=torch.float64)


@batch_norm_operator.register_fake
def _batch_shapes(
    x: Tensor, weight: Any, bias: Any, add: Any, mean: Any, variance: Any, eps: float, activation: int
) -> Any:
    return torch.empty_like(x), x.new_empty((2, x.shape[1]), dtype=torch.float64)


def _gradient_shapes(dy: Tensor, x: Tensor, weight: Any, bias: Any, add: Any, *rest: Any) -> Any:
    activation = rest[2]  # in both backward operators
    channels = x.new_empty((x.shape[1],), dtype=parameter_dtype(weight, bias))
    own = x.new_empty(0) if add is None or activation == compiled.IDENTITY else torch.empty_like(x)
    return torch.empty_like(x), own, channels, torch.empty_like(channels)


group_norm_backward_operator.register_fake(_gradient_shapes)
batch_norm_backward_operator.register_fake(_gradient_shapes)


def _keep_group(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.groups, ctx.eps, ctx.activation = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.mark_non_differentiable(output[1])


def _keep_batch(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, add, given, _, ctx.eps, ctx.activation = inputs
    ctx.measured = given is None
    ctx.save_for_backward(x, weight, bias, add, output[1])
    ctx.mark_non_differentiable(output[1])


def group_gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Of x, weight, bias and add, from what a forward pass kept."""
    x, weight, bias, add, statistics = ctx.saved_tensors
    tensors = (x, weight, bias, add)
    if torch.is_grad_enabled():
        name = NAMES[ctx.activation]
        return _again(lambda x, w, b, add: reference_group_norm(x, ctx.groups, w, b, ctx.eps, name, add), tensors, dy)
    backward = group_norm_backward_operator if is_watched() else compiled.group_backward
    return _gradients(backward(dy, *tensors, statistics, ctx.groups, ctx.activation), tensors, dy, ctx.activation)


def batch_gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Of x, weight, bias and add, from what a forward pass kept."""
    x, weight, bias, add, statistics = ctx.saved_tensors
    tensors = (x, weight, bias, add)
    if torch.is_grad_enabled():
        mean, variance = (None, None) if ctx.measured else statistics.unbind()
        name = NAMES[ctx.activation]
        return _again(
            lambda x, w, b, add: reference_batch_norm(x, mean, variance, w, b, ctx.eps, name, add), tensors, dy
        )
    backward = batch_norm_backward_operator if is_watched() else compiled.batch_backward
    results = backward(dy, *tensors, statistics, ctx.eps, ctx.activation, ctx.measured)
    return _gradients(results, tensors, dy, ctx.activation)


def _gradients(results: Sequence[Tensor], tensors: Sequence[Tensor | None], dy: Tensor, activation: int) -> Any:
    """Of x, weight, bias and add, from what a backward operator returned."""
    dx, dz, dgamma, dbeta = results
    _, weight, bias, add = tensors
    return (
        dx,
        None if weight is None else dgamma if dgamma.dtype == weight.dtype else dgamma.to(weight.dtype),
        None if bias is None else dbeta if dbeta.dtype == bias.dtype else dbeta.to(bias.dtype),
        None if add is None else dy if activation == compiled.IDENTITY else dz,
    )


def _again(function: Any, tensors: Sequence[Tensor | None], dy: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients by the torch path, differentiable once more."""
    wanted = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    with torch.enable_grad():
        y = function(*tensors)
        found = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
    return tuple(next(found) if tensor is not None and tensor.requires_grad else None for tensor in tensors)


group_norm_operator.register_autograd(
    lambda ctx, dy, *unused: (*group_gradients(ctx, dy), None, None, None), setup_context=_keep_group
)
batch_norm_operator.register_autograd(
    lambda ctx, dy, *unused: (*batch_gradients(ctx, dy), None, None, None, None), setup_context=_keep_batch
)
