"""The layers in torch alone: for other devices and layouts, for second derivatives, and what the kernels are held to."""

from __future__ import annotations

import torch
from torch import Tensor

from tenfold.normalization.activations import activated
from tenfold.normalization.high_precision import by_channel, promoted
from tenfold.normalization.statistics import masked_moments, normalized


def reference_group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: str | None,
    add: Tensor | None,
) -> Tensor:
    """Group normalization in float64; off the CPU by torch's own kernels, which are exact there."""
    if x.device.type != "cpu":
        y = torch.nn.functional.group_norm(x, groups, weight, bias, eps)
        return activated(y if add is None else y + add, activation)
    y = promoted(x)
    if x.numel():
        grouped = y.reshape(x.shape[0], groups, -1)
        variance, mean = torch.var_mean(grouped, -1, correction=0, keepdim=True)
        y = ((grouped - mean) * torch.rsqrt(variance + eps)).reshape(x.shape)
    if weight is not None:
        y = y * by_channel(promoted(weight), x)
    if bias is not None:
        y = y + by_channel(promoted(bias), x)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if x.dim() in formats and not x.is_contiguous() and x.is_contiguous(memory_format=formats[x.dim()]):
        y = y.contiguous(memory_format=formats[x.dim()])
    if add is None:
        return activated(y, activation).to(x.dtype)
    return activated(y + add, activation).to(torch.promote_types(x.dtype, add.dtype))


def reference_batch_norm(
    x: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: str | None,
    add: Tensor | None,
) -> Tensor:
    """Batch normalization by given statistics, or by the batch's."""
    if mean is None or variance is None:
        mean, variance, _ = masked_moments(x)
    y = normalized(x, mean, variance, weight, bias, eps)
    return activated(y if add is None else y + add, activation)
