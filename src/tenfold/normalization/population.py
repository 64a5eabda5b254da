"""Population statistics on the CPU, moved by one call of a kernel instead of twenty small operations of torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tenfold.normalization.kernels.entries import FLOAT32, FLOAT64, move_population
from tenfold.normalization.layouts import is_watched

KINDS = {torch.float32: FLOAT32, torch.float64: FLOAT64}


def moved_by_kernel(layer: nn.Module, mean: Tensor, variance: Tensor, count: int) -> bool | None:
    """Move a layer's population statistics as `statistics.update_running` does; False if they are not finite.

    Returns:
        None, with nothing done, where that is not for the kernel: other devices and types, and while somebody follows.
    """
    running_mean, running_var, tracked = layer.running_mean, layer.running_var, layer.num_batches_tracked
    given = (running_mean, running_var, mean, variance)
    if not all(isinstance(values, Tensor) and values.is_cpu and values.is_contiguous() for values in (*given, tracked)):
        return None
    if running_mean.dtype not in KINDS or running_var.dtype != running_mean.dtype or tracked.dtype != torch.int64:
        return None
    if mean.dtype != torch.float64 or variance.dtype != torch.float64 or is_watched():
        return None
    momentum, biased = layer.momentum, getattr(layer, "running_variance", "unbiased") == "biased"
    moved: bool = move_population(
        running_mean.data_ptr(), running_var.data_ptr(), tracked.data_ptr(), mean.data_ptr(), variance.data_ptr(),
        mean.numel(), count, -1.0 if momentum is None else float(momentum), biased, torch.finfo(running_mean.dtype).max,
        KINDS[running_mean.dtype],
    )  # fmt: skip
    if moved:
        for buffer in (running_mean, running_var, tracked):
            torch.autograd.graph.increment_version(buffer)
    return moved
