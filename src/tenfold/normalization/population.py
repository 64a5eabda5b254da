"""Population statistics on the CPU, moved by one call of a kernel instead of twenty small operations of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tenfold.normalization.kernels.entries import FLOAT32, FLOAT64, move_population
from tenfold.normalization.layouts import is_watched

KINDS = {
    torch.float32: (FLOAT32, torch.finfo(torch.float32).max),
    torch.float64: (FLOAT64, torch.finfo(torch.float64).max),
}


def moved_by_kernel(layer: nn.Module, mean: Tensor, variance: Tensor, count: int) -> bool | None:
    """Move a layer's population statistics as `statistics.update_running` does; False if they are not finite.

    Returns:
        None, with nothing done, where that is not for the kernel: other devices and types, and while somebody follows.
    """
    own: dict[str, Any] = layer._buffers
    held = ("running_mean", "running_var", "num_batches_tracked")
    running_mean, running_var, tracked = (own[name] if name in own else getattr(layer, name) for name in held)
    for values in (running_mean, running_var, tracked, mean, variance):
        if values is None or not values.is_cpu or not values.is_contiguous():
            return None
    if running_mean.dtype not in KINDS or running_var.dtype != running_mean.dtype or tracked.dtype != torch.int64:
        return None
    if mean.dtype != torch.float64 or variance.dtype != torch.float64 or is_watched():
        return None
    if running_mean.numel() != mean.numel() or running_var.numel() != mean.numel():
        raise ValueError(
            f"running_mean has shape {tuple(running_mean.shape)}, running_var {tuple(running_var.shape)}; the input has "
            f"{mean.numel()} channels"
        )
    momentum: Any = layer.momentum
    biased = getattr(layer, "running_variance", "unbiased") == "biased"
    kind, largest = KINDS[running_mean.dtype]
    moved: bool = move_population(
        running_mean.data_ptr(), running_var.data_ptr(), tracked.data_ptr(), mean.data_ptr(), variance.data_ptr(),
        mean.numel(), count, -1.0 if momentum is None else float(momentum), biased, largest, kind,
    )  # fmt: skip
    if moved:
        torch.autograd.graph.increment_version(running_mean)
        torch.autograd.graph.increment_version(running_var)
    return moved
