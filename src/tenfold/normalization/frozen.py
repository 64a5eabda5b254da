"""Batch normalization by fixed statistics: an affine map that no call of ``train()`` thaws."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tenfold.normalization.activations import Activation, check_activation
from tenfold.normalization.any_rank import finished, fused_batch_norm
from tenfold.normalization.statistics import normalized, validity


class FrozenBatchNorm(nn.Module):
    """Batch normalization whose statistics and scales are buffers: nothing in it is trained, and ``train()`` changes nothing.

        y = act((x - mu) / sqrt(var + eps) * gamma + beta + add)

    Args:
        num_features: Channels C of inputs (N, C, ...).
        eps: Added to the variance.
        activation: ``"relu"``, ``"silu"``, ``"gelu"`` or None.

    Attributes:
        weight, bias, running_mean, running_var: Buffers (C,), under the names that torch.nn's layers have; a checkpoint of
            these loads, and of :class:`~tenfold.normalization.BatchRenorm`, whose eps must be the one here.

    >>> frozen = FrozenBatchNorm.from_module(nn.BatchNorm2d(8)).train()
    >>> frozen.training, [name for name, _ in frozen.named_parameters()]
    (False, [])
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        *,
        activation: Activation | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_activation(activation)
        self.num_features = num_features
        self.eps = eps
        self.activation: Activation | None = activation
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((num_features,), value, device=device, dtype=dtype))
        self.training = False

    @classmethod
    def from_module(cls, layer: nn.Module, *, activation: Activation | None = None) -> FrozenBatchNorm:
        """A frozen copy of a batch-normalization layer of torch.nn or of this library.

        Args:
            layer: Has num_features, eps, running_mean and running_var (or running_std).
            activation: Instead of the layer's own.

        Raises:
            ValueError: The layer keeps no population statistics.
        """
        variance = getattr(layer, "running_var", None)
        if variance is None and isinstance(std := getattr(layer, "running_std", None), Tensor):
            variance = std.square() - float(layer.eps)  # type: ignore[arg-type]
        mean = getattr(layer, "running_mean", None)
        if not isinstance(mean, Tensor) or not isinstance(variance, Tensor):
            raise ValueError(
                f"{type(layer).__name__} keeps no population statistics (running_mean, running_var) to freeze"
            )
        frozen = cls(
            len(mean),
            float(layer.eps),  # type: ignore[arg-type]
            activation=activation or getattr(layer, "activation", None),
            device=mean.device,
            dtype=mean.dtype,
        )
        with torch.no_grad():
            frozen.running_mean.copy_(mean)
            frozen.running_var.copy_(variance)
            for name in ("weight", "bias"):
                if isinstance(value := getattr(layer, name, None), Tensor):
                    getattr(frozen, name).copy_(value)
        return frozen

    def train(self, mode: bool = True) -> FrozenBatchNorm:
        """Nothing: the layer stays in evaluation."""
        return self

    def forward(
        self,
        x: Float[Tensor, "batch channels *positions"],
        add: Float[Tensor, "batch channels *positions"] | None = None,
        *,
        mask: Bool[Tensor, "batch *valid"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch channels *positions"]:
        """Normalize by the fixed statistics, add, activate; padding, if there is any, becomes zero.

        Args:
            x: Input (N, C, ...).
            add: Added before the activation.
            mask: True at valid positions, as for :class:`~tenfold.normalization.BatchNorm1d`.
            lengths: Number of valid positions, instead of a mask.

        Raises:
            ValueError: A shape does not fit.
        """
        if x.dim() < 2 or x.shape[1] != self.num_features:
            raise ValueError(f"input has shape {tuple(x.shape)}; give (batch, {self.num_features}, ...)")
        if add is not None and add.shape != x.shape:
            raise ValueError(f"add has shape {tuple(add.shape)}; the input has {tuple(x.shape)}")
        valid = validity(x, mask, lengths)
        if valid is None:
            statistics = (self.running_mean, self.running_var)
            return fused_batch_norm(x, *statistics, self.weight, self.bias, self.eps, self.activation, add)[0]
        x = x.masked_fill(~valid.unsqueeze(1), 0.0)
        y = normalized(x, self.running_mean, self.running_var, self.weight, self.bias, self.eps)
        return finished(y, add, valid, self.activation)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *rest: object) -> None:
        # torch.nn's layers count batches and may have no scales or no beta; Batch Renormalization keeps the deviation.
        state_dict.pop(f"{prefix}num_batches_tracked", None)
        if (deviation := state_dict.pop(f"{prefix}running_std", None)) is not None:
            state_dict.setdefault(f"{prefix}running_var", deviation.square() - self.eps)
        if f"{prefix}running_var" in state_dict and f"{prefix}bias" not in state_dict:
            state_dict.setdefault(f"{prefix}weight", torch.ones_like(self.weight))
            state_dict[f"{prefix}bias"] = torch.zeros_like(self.bias)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        """Arguments shown by ``print(module)``."""
        shown = f"{self.num_features}, eps={self.eps}"
        return shown if self.activation is None else f"{shown}, activation={self.activation!r}"
