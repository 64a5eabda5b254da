"""Batch statistics of one step of a recurrent network: which rows count, and what becomes of the population statistics."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def check_positive(**sizes: int) -> None:
    """Refuse sizes below 1.

    Raises:
        ValueError: A size is below 1; the message names it.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}={size} must be 1 or more")


def valid_steps(
    mask: Bool[Tensor, "steps batch"] | None,
    lengths: Int[Tensor, " batch"] | None,
    steps: int,
    batch: int,
    device: torch.device,
) -> Bool[Tensor, "steps batch"] | None:
    """The valid steps of each sequence, from a mask or from lengths; None where all are valid.

    Raises:
        ValueError: Both are given, the shape does not fit, or a length lies outside 0..steps.
    """
    if mask is not None and lengths is not None:
        raise ValueError("mask and lengths say the same; give one of them")
    if mask is not None:
        if tuple(mask.shape) != (steps, batch):
            raise ValueError(f"mask marks {tuple(mask.shape)} (steps, batch); the input has {(steps, batch)}")
        return mask
    if lengths is None:
        return None
    if tuple(lengths.shape) != (batch,):
        raise ValueError(f"lengths has shape {tuple(lengths.shape)}; give one length for each of {batch} sequences")
    lengths = lengths.to(device)
    if batch and (int(lengths.min()) < 0 or int(lengths.max()) > steps):
        raise ValueError(f"lengths run from {int(lengths.min())} to {int(lengths.max())}; the input has {steps} steps")
    return torch.arange(steps, device=device).unsqueeze(1) < lengths


class StepNorm:
    """Normalize rows by the statistics of the valid ones, or by given population statistics, which it keeps up to date.

        (x - mu) / sqrt(var + eps)

    Args:
        eps: Added to the variance.
        momentum: Weight of the new batch, in (0, 1]; None for the cumulative average.
        on_single: ``"running"`` or ``"error"``: what to do in training with one valid row, which has no variance.

    Raises:
        ValueError: An argument is out of its range.
    """

    def __init__(self, *, eps: float, momentum: float | None, on_single: Literal["running", "error"]) -> None:
        if not eps > 0:
            raise ValueError(f"eps={eps} must be positive")
        if momentum is not None and not 0 < momentum <= 1:
            raise ValueError(f"momentum={momentum} is not in (0, 1]; None averages over all batches")
        if on_single not in ("running", "error"):
            raise ValueError(f"on_single={on_single!r} is not one of 'running', 'error'")
        self.eps = eps
        self.momentum = momentum
        self.on_single = on_single

    def __repr__(self) -> str:
        return f"eps={self.eps}, momentum={self.momentum}, on_single={self.on_single!r}"

    def __call__(
        self,
        x: Float[Tensor, "rows channels"],
        valid: Bool[Tensor, " rows"] | None,
        running_mean: Float[Tensor, " channels"],
        running_var: Float[Tensor, " channels"],
        updates: Int[Tensor, ""],
        *,
        training: bool,
    ) -> Float[Tensor, "rows channels"]:
        """Normalized rows; in training, running_mean, running_var and updates are changed in place.

        Raises:
            ValueError: One valid row in training with ``on_single="error"``.
        """
        if training:
            rows = x if valid is None else x[valid]
            count = rows.shape[0]
            if count == 1 and self.on_single == "error":
                raise ValueError(
                    "one valid row at a step in training has no variance; give a larger batch, or on_single='running' "
                    "to normalize such a step with the population statistics"
                )
            if count > 1:
                variance, mean = torch.var_mean(rows, dim=0, correction=0)
                self._update(mean.detach(), variance.detach(), count, running_mean, running_var, updates)
                return (x - mean) * torch.rsqrt(variance + self.eps)
        # The buffers change in place later in the same forward pass, where steps share a slot: autograd needs its own copy.
        mean, scale = running_mean.clone(), torch.rsqrt(running_var + self.eps)
        return (x - mean.to(x.dtype)) * scale.to(x.dtype)

    def _update(
        self, mean: Tensor, variance: Tensor, count: int, running_mean: Tensor, running_var: Tensor, updates: Tensor
    ) -> None:
        if not bool(torch.isfinite(mean).all() and torch.isfinite(variance).all()):
            return  # one bad batch must not end in the population statistics; the loss shows it anyway
        updates += 1
        weight = 1.0 / float(updates) if self.momentum is None else self.momentum
        running_mean.lerp_(mean.to(running_mean.dtype), weight)
        running_var.lerp_((variance * (count / (count - 1))).to(running_var.dtype), weight)  # unbiased, as in torch.nn
