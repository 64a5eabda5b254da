"""The compiled layers called directly where nothing but autograd watches: an operator's bookkeeping outlasts small layers' work.

Under torch.compile, export, dispatch modes and the like, the operators of `tenfold.normalization.operators` are called
instead. Both keep the same for the backward pass, and both go on in torch where a second derivative is wanted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tenfold.normalization import compiled
from tenfold.normalization.layouts import Layout, is_watched
from tenfold.normalization.operators import (
    batch_gradients,
    batch_norm_operator,
    group_gradients,
    group_norm_operator,
)

PLAIN = (Tensor, nn.Parameter)


def by_groups(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    add: Tensor | None,
    layout: Layout,
    groups: int,
    eps: float,
    activation: int,
) -> Tensor:
    """``act(normalized x + add)`` by the groups of each sample."""
    if type(x) not in PLAIN or is_watched():
        y: Tensor = group_norm_operator(x, weight, bias, add, groups, eps, activation)[0]
        return y
    if torch.is_grad_enabled() and _wanted(x, weight, bias, add):
        normalized: Tensor = _ByGroups.apply(x, weight, bias, add, layout, groups, eps, activation)
        return normalized
    return compiled.group_forward(x, weight, bias, add, groups, eps, activation, layout)[0]


def by_batch(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    add: Tensor | None,
    layout: Layout,
    mean: Tensor | None,
    variance: Tensor | None,
    eps: float,
    activation: int,
) -> tuple[Tensor, Tensor]:
    """``act(normalized x + add)`` by given statistics or those of the batch, and these: (2, C), means and variances."""
    if type(x) not in PLAIN or is_watched():
        y, found = batch_norm_operator(x, weight, bias, add, mean, variance, eps, activation)
        return y, found
    if torch.is_grad_enabled() and _wanted(x, weight, bias, add):
        statistics: list[Tensor] = []
        y = _ByBatch.apply(x, weight, bias, add, layout, mean, variance, eps, activation, statistics)
        return y, statistics[0]
    return compiled.batch_forward(x, weight, bias, add, mean, variance, eps, activation, layout)


def _wanted(x: Tensor, weight: Tensor | None, bias: Tensor | None, add: Tensor | None) -> bool:
    return (
        x.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
        or (add is not None and add.requires_grad)
    )


class _ByGroups(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        add: Tensor | None,
        layout: Layout,
        groups: int,
        eps: float,
        activation: int,
    ) -> Tensor:
        y, statistics = compiled.group_forward(x, weight, bias, add, groups, eps, activation, layout)
        ctx.save_for_backward(x, weight, bias, add, statistics)
        ctx.groups, ctx.eps, ctx.activation = groups, eps, activation
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        dx, by_weight, by_bias, by_added = group_gradients(ctx, gradients[0])
        return dx, by_weight, by_bias, by_added, None, None, None, None


class _ByBatch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        add: Tensor | None,
        layout: Layout,
        mean: Tensor | None,
        variance: Tensor | None,
        eps: float,
        activation: int,
        statistics: list[Tensor],
    ) -> Tensor:
        ctx.measured = mean is None
        y, found = compiled.batch_forward(x, weight, bias, add, mean, variance, eps, activation, layout)
        statistics.append(found)
        ctx.save_for_backward(x, weight, bias, add, found)
        ctx.eps, ctx.activation = eps, activation
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        dx, by_weight, by_bias, by_added = batch_gradients(ctx, gradients[0])
        return dx, by_weight, by_bias, by_added, None, None, None, None, None, None
