"""Batch normalization of inputs of any rank, channels second: what the variants of it share."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tenfold.normalization.activations import Activation, activated, check_activation
from tenfold.normalization.compiled import CODES
from tenfold.normalization.eager import by_batch
from tenfold.normalization.layouts import served
from tenfold.normalization.population import moved_by_kernel
from tenfold.normalization.statistics import (
    Moments,
    OnSingle,
    RunningVariance,
    check_settings,
    masked_moments,
    normalized,
    refuse_single,
    update_running,
    validity,
)

Layer = TypeVar("Layer", bound="AnyRankBatchNorm")


def finished(y: Tensor, add: Tensor | None, valid: Tensor | None, activation: Activation | None) -> Tensor:
    """Sum and activation behind a normalization, and zeros at padding, whatever stands there in the summand."""
    if valid is None:
        return activated(y if add is None else y + add, activation)
    padding = ~valid.unsqueeze(1)
    return activated(y if add is None else y + add.masked_fill(padding, 0.0), activation).masked_fill(padding, 0.0)


def fused_batch_norm(
    x: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: Activation | None,
    add: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``act(normalized x + add)`` with the statistics it was normalized by: the given ones, or else the batch's.

    By a kernel on the CPU, else in torch; the statistics carry no gradient.
    """
    layout = served(x, add)
    if layout is not None:
        y, statistics = by_batch(x, weight, bias, add, layout, mean, variance, eps, CODES[activation])
        return y, statistics[0], statistics[1]
    if mean is None or variance is None:
        mean, variance, _ = masked_moments(x)
    else:  # a later batch may change them in place, before a backward pass
        mean, variance = mean.clone(), variance.clone()
    y = normalized(x, mean, variance, weight, bias, eps)
    return activated(y if add is None else y + add, activation), mean.detach(), variance.detach()


class AnyRankBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Parameters and buffers of ``torch.nn.BatchNorm*d`` under the same names, for inputs (N, C) and (N, C, ...)."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        activation: Activation | None = None,
        on_single: OnSingle = "error",
        running_variance: RunningVariance = "unbiased",
    ) -> None:
        if num_features < 1:
            raise ValueError(f"num_features={num_features} must be 1 or more")
        check_settings(eps, momentum, on_single, running_variance)
        check_activation(activation)
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        if not bias:
            self.register_parameter("bias", None)
        self.activation: Activation | None = activation
        self.on_single: OnSingle = on_single
        self.running_variance: RunningVariance = running_variance
        self.skipped_updates = 0  # batches whose statistics were not finite

    @classmethod
    def from_keras(
        cls: type[Layer], num_features: int, *, momentum: float = 0.99, epsilon: float = 1e-3, **options: Any
    ) -> Layer:
        """The layer with Keras's conventions: its momentum is the weight of the old statistics, its variance biased.

        Args:
            num_features: Channels.
            momentum: Keras's; 0.99 there is 0.01 here.
            epsilon: Added to the variance.
            **options: Further arguments of the layer.
        """
        return cls(num_features, epsilon, 1.0 - momentum, **{"running_variance": "biased", **options})

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"input has shape {tuple(input.shape)}; give (batch, channels, ...)")

    def forward(
        self,
        x: Float[Tensor, "batch channels *positions"],
        add: Float[Tensor, "batch channels *positions"] | None = None,
        *,
        mask: Bool[Tensor, "batch *valid"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch channels *positions"]:
        """Normalize, add, activate.

        Args:
            x: Input (N, C, ...).
            add: Added before the activation, as in a residual block.
            mask: True at valid positions, (N, ...) without channels, or (N, L). Padding enters no statistic, whatever it
                holds; the output and the gradient are zero there.
            lengths: Number of valid positions along the first axis after the channels, instead of a mask.

        Raises:
            ValueError: A shape does not fit, or a channel has one value in training (``on_single="error"``).
        """
        x, valid = self.checked(x, add, mask, lengths)
        count = x.numel() // self.num_features
        if valid is None and not (self.training and count <= 1):
            return self._by_kernel(x, add, count)
        if not self.training:
            return self.evaluated(x, add, valid)
        moments = masked_moments(x, valid)
        mean, variance = self.training_statistics(x, moments)
        update_running(self, moments.mean, moments.variance, moments.count)
        return self.finished(self.affine_normalized(x, mean, variance), add, valid)

    def _by_kernel(self, x: Tensor, add: Tensor | None, count: int) -> Tensor:
        """All values count: statistics, affine map, sum and activation at once."""
        kept = not self.training and self.running_mean is not None and self.running_var is not None
        known = (self.running_mean, self.running_var) if kept else (None, None)
        y, mean, variance = fused_batch_norm(x, *known, self.weight, self.bias, self.eps, self.activation, add)
        if self.training and not (self.running_mean is not None and moved_by_kernel(self, mean, variance, count)):
            update_running(self, mean, variance, count)
        return y

    def checked(
        self, x: Tensor, add: Tensor | None, mask: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The input with zeros at padding, and its mask.

        Raises:
            ValueError: A shape does not fit.
        """
        self._check_input_dim(x)
        if x.shape[1] != self.num_features:
            raise ValueError(f"input has shape {tuple(x.shape)}; the layer has {self.num_features} channels")
        if add is not None and add.shape != x.shape:
            raise ValueError(f"add has shape {tuple(add.shape)}; the input has {tuple(x.shape)}")
        valid = validity(x, mask, lengths)
        return (x if valid is None else x.masked_fill(~valid.unsqueeze(1), 0.0)), valid

    def training_statistics(self, x: Tensor, moments: Moments) -> tuple[Tensor, Tensor]:
        """The statistics of a batch, or the population's where it has one value a channel and the layer may use them.

        Raises:
            ValueError: One value a channel with ``on_single="error"``.
        """
        if moments.count != 1:
            return moments.mean, moments.variance
        if self.on_single == "error" or self.running_mean is None or self.running_var is None:
            refuse_single(self, tuple(x.shape))
        return self.population()

    def population(self) -> tuple[Tensor, Tensor]:
        """Copies of the population's mean and variance: a later batch changes them in place, before a backward pass."""
        assert self.running_mean is not None  # for the type checker; callers have looked
        assert self.running_var is not None
        return self.running_mean.clone(), self.running_var.clone()

    def evaluated(self, x: Tensor, add: Tensor | None, valid: Tensor | None) -> Tensor:
        """Evaluation: by the population, or by the batch where none is kept."""
        if valid is None:
            return self._by_kernel(x, add, x.numel() // self.num_features)
        if self.running_mean is not None and self.running_var is not None:
            return self.finished(self.affine_normalized(x, *self.population()), add, valid)
        moments = masked_moments(x, valid)
        return self.finished(self.affine_normalized(x, moments.mean, moments.variance), add, valid)

    def affine_normalized(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """The input normalized by given statistics, times gamma, plus beta."""
        return normalized(x, mean, variance, self.weight, self.bias, self.eps)

    def finished(self, y: Tensor, add: Tensor | None, valid: Tensor | None) -> Tensor:
        """Sum and activation, and zeros at padding."""
        return finished(y, add, valid, self.activation)

    def extra_repr(self) -> str:
        """Arguments shown by ``print(module)``."""
        shown = super().extra_repr()
        return shown if self.activation is None else f"{shown}, activation={self.activation!r}"
