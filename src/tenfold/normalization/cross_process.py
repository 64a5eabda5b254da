"""Batch normalization over the batches of all processes together: any back end, unequal parts, and parts that are empty.

Mean and variance are formed from those of the processes in two steps, each one sum over processes, in float64:

    mu = sum_p n_p mu_p / n,    var = sum_p n_p (var_p + (mu_p - mu)^2) / n,    n = sum_p n_p

The gradient of a sum over processes is the sum over processes of the gradients, so that x receives the gradient of the
sum of all processes' losses: what the whole batch in one process would give.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, distributed

from tenfold.normalization.activations import Activation
from tenfold.normalization.any_rank import AnyRankBatchNorm
from tenfold.normalization.statistics import Moments, OnSingle, RunningVariance, masked_moments, update_running


class _SumOverProcesses(torch.autograd.Function):
    """The sum of a tensor over a group; its gradient is the sum of the gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Any) -> Tensor:
        ctx.group = group
        total = values.clone()
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _SumOverProcesses.apply(gradients[0], ctx.group), None  # a function that has a derivative again


class CrossProcessBatchNorm(AnyRankBatchNorm):
    """Batch normalization whose batch is that of all processes of a group: on gloo and nccl, for CPU and GPU.

    Every process of the group has to call the layer in training, and to run its backward pass, also with no rows. Outputs,
    input gradients and running statistics are those of one process with all rows; the gradients of gamma and beta are each
    process's share, whose sum over processes is the whole batch's (DistributedDataParallel takes their mean). Without a
    process group the layer is ordinary batch normalization.

    Args:
        num_features: Channels C of inputs (N, C, ...).
        eps: Added to the variance.
        momentum: Weight of the batch in the population statistics; None for the cumulative average.
        affine: Learn gamma and beta.
        track_running_stats: Keep population statistics; without, evaluation normalizes by the process's own batch.
        bias: Learn beta, too.
        process_group: Processes that share statistics; None for all.
        activation: ``"relu"``, ``"silu"``, ``"gelu"`` or None.
        on_single: What to do with one value a channel in all processes: ``"error"`` or ``"running"``.
        running_variance: ``"unbiased"`` or ``"biased"``: the variance that enters the population's.

    Raises:
        ValueError: An argument is out of its range.

    >>> CrossProcessBatchNorm(1, eps=0.0)(torch.tensor([[1.0], [3.0]])).flatten().tolist()
    [-1.0, 1.0]
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        activation: Activation | None = None,
        on_single: OnSingle = "error",
        running_variance: RunningVariance = "unbiased",
    ) -> None:
        super().__init__(
            num_features,
            eps,
            momentum,
            affine,
            track_running_stats,
            device,
            dtype,
            bias=bias,
            activation=activation,
            on_single=on_single,
            running_variance=running_variance,
        )
        self.process_group = process_group

    def forward(
        self,
        x: Float[Tensor, "batch channels *positions"],
        add: Float[Tensor, "batch channels *positions"] | None = None,
        *,
        mask: Bool[Tensor, "batch *valid"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch channels *positions"]:
        """Normalize, add, activate; arguments as of :class:`~tenfold.normalization.BatchNorm1d`.

        Raises:
            ValueError: A shape does not fit, or a channel has one value in all processes together.
        """
        x, valid = self.checked(x, add, mask, lengths)
        if not self.training:
            return self.evaluated(x, add, valid)
        moments = self._moments_of_all(x, valid)
        mean, variance = self.training_statistics(x, moments)
        update_running(self, moments.mean, moments.variance, moments.count)
        return self.finished(self.affine_normalized(x, mean, variance), add, valid)

    def _moments_of_all(self, x: Tensor, valid: Tensor | None) -> Moments:
        own = masked_moments(x, valid)
        totals = self._summed(torch.cat([own.mean * own.count, own.mean.new_tensor([float(own.count)])]))
        count = round(float(totals[-1].detach()))
        mean = totals[:-1] / max(count, 1)
        variance = self._summed((own.variance + (own.mean - mean).square()) * own.count) / max(count, 1)
        return Moments(mean, variance, count)

    def __deepcopy__(self, memo: dict[int, Any]) -> CrossProcessBatchNorm:
        """A copy that shares the process group, which cannot be copied."""
        copied: CrossProcessBatchNorm = self.__new__(type(self))
        memo[id(self)] = copied
        memo[id(self.process_group)] = self.process_group
        copied.__dict__ = {name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()}
        return copied

    def _summed(self, values: Tensor) -> Tensor:
        if not (distributed.is_available() and distributed.is_initialized()):
            return values
        if distributed.get_world_size(self.process_group) == 1:
            return values
        total: Tensor = _SumOverProcesses.apply(values, self.process_group)
        return total
