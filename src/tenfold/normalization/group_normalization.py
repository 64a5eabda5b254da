"""Group Normalization (Wu & He 2018), with the activation that follows it.

Each sample is normalized by itself, over the positions and the channels of a group:

    y = act((x - mu_ng) / sqrt(var_ng + eps) * gamma_c + beta_c)

with the mean and the biased variance over group g of sample n. One group is Layer Normalization over (C, H, W), a group a
channel is Instance Normalization: the two ends of one axis (section 3.1).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tenfold.normalization.activations import Activation, check_activation
from tenfold.normalization.compiled import CODES
from tenfold.normalization.eager import by_groups
from tenfold.normalization.layouts import served
from tenfold.normalization.reference import reference_group_norm


def group_norm(
    x: Float[Tensor, "batch channels *positions"],
    num_groups: int,
    weight: Float[Tensor, " channels"] | None = None,
    bias: Float[Tensor, " channels"] | None = None,
    eps: float = 1e-5,
    *,
    activation: Activation | None = None,
    add: Float[Tensor, "batch channels *positions"] | None = None,
) -> Float[Tensor, "batch channels *positions"]:
    """Group normalization, an optional sum, and an optional activation.

    Args:
        x: Input (N, C, ...), in any memory format; the output has the same.
        num_groups: Groups G, a divisor of C.
        weight: gamma, one a channel; None for 1.
        bias: beta, one a channel; None for 0.
        eps: Added to the variance.
        activation: ``"relu"``, ``"silu"``, ``"gelu"`` or None.
        add: Added before the activation, as in a residual block.

    Raises:
        ValueError: G does not divide C, a shape does not fit, or the activation is unknown.

    Wu & He 2018, Group Normalization, equations 1 to 7.

    >>> group_norm(torch.tensor([[1.0, 3.0, 5.0, 5.0]]), 2, eps=0.0, activation="relu")[:, :2]
    tensor([[0., 1.]])
    """
    check_group_input(x, num_groups, weight, bias, add)
    check_activation(activation)
    return _normalized(x, num_groups, weight, bias, eps, activation, add)


def _normalized(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: Activation | None,
    add: Tensor | None,
) -> Tensor:
    """`group_norm` of arguments that fit together: by a kernel on the CPU, else in torch."""
    layout = served(x, add)
    if layout is not None:
        return by_groups(x, weight, bias, add, layout, num_groups, eps, CODES[activation])
    return reference_group_norm(x, num_groups, weight, bias, eps, activation, add)


def check_group_input(
    x: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, add: Tensor | None
) -> None:
    """Refuse what cannot be normalized by groups.

    Raises:
        ValueError: G does not divide C, or a shape does not fit.
    """
    if x.dim() < 2:
        raise ValueError(f"input has shape {tuple(x.shape)}; give (batch, channels, ...)")
    channels = x.shape[1]
    if num_groups < 1 or channels % num_groups:
        raise ValueError(f"num_groups={num_groups} does not divide num_channels={channels}")
    for name, values in (("weight", weight), ("bias", bias)):
        if values is not None and tuple(values.shape) != (channels,):
            raise ValueError(f"{name} has shape {tuple(values.shape)}; the input has {channels} channels")
    if add is not None and add.shape != x.shape:
        raise ValueError(f"add has shape {tuple(add.shape)}; the input has {tuple(x.shape)}")


class GroupNorm(nn.GroupNorm):
    """``torch.nn.GroupNorm`` with the activation that follows; its checkpoints load both ways.

        y = act((x - mu_ng) / sqrt(var_ng + eps) * gamma_c + beta_c)

    Args:
        num_groups: Groups G, a divisor of the channels; 1 is Layer, C is Instance Normalization.
        num_channels: Channels C.
        eps: Added to the variance, which is the biased one.
        affine: Learn gamma and beta.
        bias: Learn beta, too; False for gamma alone.
        activation: ``"relu"``, ``"silu"``, ``"gelu"`` or None.

    Raises:
        ValueError: G does not divide C, or the activation is unknown.

    Wu & He 2018, Group Normalization, section 3.

    >>> GroupNorm(32, 64, activation="silu")(torch.randn(2, 64, 8, 8)).shape
    torch.Size([2, 64, 8, 8])
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        activation: Activation | None = None,
    ) -> None:
        if num_groups < 1 or num_channels < 1 or num_channels % num_groups:
            raise ValueError(f"num_groups={num_groups} does not divide num_channels={num_channels}")
        check_activation(activation)
        super().__init__(num_groups, num_channels, eps, affine, device=device, dtype=dtype)
        if not bias:
            self.register_parameter("bias", None)
        self.activation: Activation | None = activation

    def forward(
        self,
        x: Float[Tensor, "batch channels *positions"],
        add: Float[Tensor, "batch channels *positions"] | None = None,
    ) -> Float[Tensor, "batch channels *positions"]:
        """Normalize; ``add`` is added before the activation.

        Raises:
            ValueError: The input has another number of channels, or ``add`` another shape.
        """
        if x.dim() < 2 or x.shape[1] != self.num_channels:
            raise ValueError(f"input has shape {tuple(x.shape)}; give (batch, {self.num_channels}, ...)")
        if self.num_channels % self.num_groups:  # changed after the layer was made
            raise ValueError(f"num_groups={self.num_groups} does not divide num_channels={self.num_channels}")
        if add is not None and add.shape != x.shape:
            raise ValueError(f"add has shape {tuple(add.shape)}; the input has {tuple(x.shape)}")
        return _normalized(x, self.num_groups, self.weight, self.bias, self.eps, self.activation, add)

    def extra_repr(self) -> str:
        """Arguments shown by ``print(module)``."""
        shown = super().extra_repr()
        return shown if self.activation is None else f"{shown}, activation={self.activation!r}"
