"""Batch normalization by fixed statistics: an affine map that no call of ``train()`` thaws."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tenfold.normalization.activations import Activation, activated, check_activation
from tenfold.normalization.statistics import normalized


class FrozenBatchNorm(nn.Module):
    """Batch normalization whose statistics and scales are buffers: nothing in it is trained, and ``train()`` changes nothing.

        y = act((x - mu) / sqrt(var + eps) * gamma + beta + add)

    Args:
        num_features: Channels C of inputs (N, C, ...).
        eps: Added to the variance.
        activation: ``"relu"``, ``"silu"``, ``"gelu"`` or None.

    Attributes:
        weight, bias, running_mean, running_var: Buffers (C,), under the names that torch.nn's layers have; a checkpoint of
            these loads.

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
    ) -> Float[Tensor, "batch channels *positions"]:
        """Normalize by the fixed statistics, add, activate.

        Raises:
            ValueError: The input has another number of channels.
        """
        if x.dim() < 2 or x.shape[1] != self.num_features:
            raise ValueError(f"input has shape {tuple(x.shape)}; give (batch, {self.num_features}, ...)")
        y = normalized(x, self.running_mean, self.running_var, self.weight, self.bias, self.eps)
        return activated(y if add is None else y + add, self.activation)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *rest: object) -> None:
        state_dict.pop(
            f"{prefix}num_batches_tracked", None
        )  # torch.nn's layers count; a frozen one has nothing to count
        super()._load_from_state_dict(state_dict, prefix, *rest)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        """Arguments shown by ``print(module)``."""
        shown = f"{self.num_features}, eps={self.eps}"
        return shown if self.activation is None else f"{shown}, activation={self.activation!r}"
