"""Batch Normalization (Ioffe & Szegedy 2015), with a sum and the activation that follow it, masks, and named conventions.

In training each channel is normalized over batch and positions,

    y = act((x - mu_c) / sqrt(var_c + eps) * gamma_c + beta_c + add)

with the mean and the biased variance of the mini-batch (algorithm 1); in evaluation with those of the population, which
training has averaged (algorithm 2).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tenfold.normalization.activations import Activation, check_activation
from tenfold.normalization.any_rank import AnyRankBatchNorm, fused_batch_norm
from tenfold.normalization.statistics import refuse_single, update_running


def batch_norm(
    x: Float[Tensor, "batch channels *positions"],
    running_mean: Float[Tensor, " channels"] | None = None,
    running_var: Float[Tensor, " channels"] | None = None,
    weight: Float[Tensor, " channels"] | None = None,
    bias: Float[Tensor, " channels"] | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    activation: Activation | None = None,
    add: Float[Tensor, "batch channels *positions"] | None = None,
) -> Float[Tensor, "batch channels *positions"]:
    """Batch normalization, an optional sum, and an optional activation; arguments as ``torch.nn.functional.batch_norm``.

    Args:
        x: Input (N, C, ...), in any memory format; the output has the same.
        running_mean: Population means; moved in place in training, used in evaluation.
        running_var: Population variances, likewise; training adds the unbiased variance.
        weight: gamma, one a channel; None for 1.
        bias: beta, one a channel; None for 0.
        training: Normalize by the batch rather than by the population.
        momentum: Weight of the batch in the population statistics.
        eps: Added to the variance.
        activation: ``"relu"``, ``"silu"``, ``"gelu"`` or None.
        add: Added before the activation, as in a residual block.

    Raises:
        ValueError: A shape does not fit, statistics are missing, or a channel has one value in training.

    Ioffe & Szegedy 2015, Batch Normalization, algorithms 1 and 2.

    >>> batch_norm(torch.tensor([[1.0], [3.0]]), training=True, eps=0.0, activation="relu")
    tensor([[0.],
            [1.]])
    """
    check_activation(activation)
    _check_input(x, running_mean, running_var, weight, bias, add)
    layer = _Statistics(running_mean, running_var, momentum)
    if not training and running_mean is None:
        raise ValueError("evaluation needs running_mean and running_var; give them, or training=True")
    if training and x.numel() == x.shape[1]:
        refuse_single(layer, tuple(x.shape))
    statistics = (None, None) if training else (running_mean, running_var)
    y, mean, variance = fused_batch_norm(x, *statistics, weight, bias, eps, activation, add)
    if training:
        update_running(layer, mean, variance, x.numel() // max(x.shape[1], 1))
    return y


def _check_input(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    add: Tensor | None,
) -> None:
    if x.dim() < 2:
        raise ValueError(f"input has shape {tuple(x.shape)}; give (batch, channels, ...)")
    if (running_mean is None) != (running_var is None):
        raise ValueError("running_mean and running_var belong together; give both or neither")
    by_channel = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    for name, values in by_channel.items():
        if values is not None and tuple(values.shape) != (x.shape[1],):
            raise ValueError(f"{name} has shape {tuple(values.shape)}; the input has {x.shape[1]} channels")
    if add is not None and add.shape != x.shape:
        raise ValueError(f"add has shape {tuple(add.shape)}; the input has {tuple(x.shape)}")


class _Statistics(nn.Module):
    """The population statistics of the functional form, as a layer holds them."""

    def __init__(self, running_mean: Tensor | None, running_var: Tensor | None, momentum: float) -> None:
        super().__init__()
        self.running_mean = running_mean
        self.running_var = running_var
        self.momentum = momentum
        self.num_batches_tracked = torch.tensor(0)

    def _get_name(self) -> str:
        return "batch_norm"  # in messages


class BatchNorm1d(AnyRankBatchNorm, nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` with activation, sum and masks; its checkpoints load both ways.

        y = act((x - mu_c) / sqrt(var_c + eps) * gamma_c + beta_c + add)

    Args:
        num_features: Channels C of inputs (N, C) or (N, C, L).
        eps: Added to the variance.
        momentum: Weight of the batch in the population statistics; None for their cumulative average.
        affine: Learn gamma and beta.
        bias: Learn beta, too; False for gamma alone.
        track_running_stats: Keep population statistics; without, evaluation too normalizes by the batch.
        activation: ``"relu"``, ``"silu"``, ``"gelu"`` or None.
        on_single: What to do with one value a channel in training, which has no variance: ``"error"`` as torch.nn, or
            ``"running"`` to normalize it with the population statistics.
        running_variance: Which variance of the batch enters the population's: ``"unbiased"`` as torch.nn and the paper,
            or ``"biased"`` as Keras.

    Raises:
        ValueError: An argument is out of its range.

    Ioffe & Szegedy 2015, Batch Normalization, section 3.

    >>> BatchNorm1d(8, activation="relu")(torch.randn(4, 8, 5), lengths=torch.tensor([5, 2, 3, 1])).shape
    torch.Size([4, 8, 5])
    """

    def _check_input_dim(self, input: Tensor) -> None:
        nn.BatchNorm1d._check_input_dim(self, input)


class BatchNorm2d(AnyRankBatchNorm, nn.BatchNorm2d):
    """``torch.nn.BatchNorm2d`` with activation, sum and masks: inputs (N, C, H, W), arguments as :class:`BatchNorm1d`.

    >>> x = torch.randn(2, 8, 4, 4)
    >>> BatchNorm2d(8, activation="relu")(x, add=x).shape
    torch.Size([2, 8, 4, 4])
    """

    def _check_input_dim(self, input: Tensor) -> None:
        nn.BatchNorm2d._check_input_dim(self, input)


class BatchNorm3d(AnyRankBatchNorm, nn.BatchNorm3d):
    """``torch.nn.BatchNorm3d`` with activation, sum and masks: inputs (N, C, D, H, W), arguments as :class:`BatchNorm1d`.

    >>> BatchNorm3d(8)(torch.randn(2, 8, 3, 4, 4)).shape
    torch.Size([2, 8, 3, 4, 4])
    """

    def _check_input_dim(self, input: Tensor) -> None:
        nn.BatchNorm3d._check_input_dim(self, input)
