"""Which normalization layers a model holds, of which kind, and what each computes in evaluation mode."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from tenfold.normalization.cross_process import CrossProcessBatchNorm
from tenfold.normalization.frozen import FrozenBatchNorm
from tenfold.normalization.ghost import GhostBatchNorm
from tenfold.normalization.moments import PooledMoments
from tenfold.normalization.renorm import BatchRenorm

KINDS: Mapping[str, tuple[type[nn.Module], ...]] = {
    "frozen": (FrozenBatchNorm,),
    "renorm": (BatchRenorm,),
    "ghost": (GhostBatchNorm,),
    "cross_process": (CrossProcessBatchNorm, nn.SyncBatchNorm),
    "batch": (_BatchNorm,),  # after those above, which may inherit from it
    "instance": (_InstanceNorm,),
    "group": (nn.GroupNorm,),
    "layer": (nn.LayerNorm,),
}
BATCH_KINDS = ("batch", "cross_process", "ghost", "renorm", "frozen")


def kind_of(module: nn.Module) -> str | None:
    """A name of ``KINDS``, or None for a module that is no normalization layer."""
    return next((kind for kind, classes in KINDS.items() if isinstance(module, classes)), None)


def layers_of(model: nn.Module, kinds: tuple[str, ...] = BATCH_KINDS) -> dict[str, nn.Module]:
    """The model's layers of some kinds by name, in the order of registration; a shared layer once, by its first name.

    >>> list(layers_of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.GroupNorm(1, 3))))
    ['1']
    """
    return {display_name(name): module for name, module in model.named_modules() if kind_of(module) in kinds}


def has_own_forward(layer: nn.Module) -> bool:
    """Whether a layer is a user's subclass that computes something else than its kind does (an activation, a scale)."""
    return not type(layer).forward.__module__.startswith(("torch.nn.", "tenfold.normalization."))


def display_name(name: str) -> str:
    """A module's name; the model itself has an empty one."""
    return name or "(the model itself)"


def statistics_buffers(layer: nn.Module) -> dict[str, Tensor]:
    """The buffers of running statistics that a layer has: mean, and variance or standard deviation."""
    named = {name: getattr(layer, name, None) for name in ("running_mean", "running_var", "running_std")}
    return {name: buffer for name, buffer in named.items() if isinstance(buffer, Tensor)}


def running_statistics(layer: nn.Module) -> tuple[Float[Tensor, " C"], Float[Tensor, " C"]] | None:
    """A layer's running mean and variance in float64; None if it keeps none."""
    buffers = statistics_buffers(layer)
    if "running_mean" not in buffers or len(buffers) < 2:
        return None
    buffers = {name: buffer.detach().to(torch.float64, copy=True) for name, buffer in buffers.items()}
    mean = buffers["running_mean"]
    if "running_var" in buffers:
        return mean, buffers["running_var"]
    # Batch Renormalization averages sqrt(variance + eps).
    return mean, buffers["running_std"].square() - eps_of(layer)


def set_statistics(layer: nn.Module, moments: PooledMoments, *, unbiased: bool = False) -> None:
    """Write mean and variance of some moments into a layer's buffers, in place."""
    buffers = statistics_buffers(layer)
    variance = moments.variance(unbiased=unbiased)
    with torch.no_grad():
        if "running_mean" in buffers:
            buffers["running_mean"].copy_(moments.mean)
        if "running_var" in buffers:
            buffers["running_var"].copy_(variance)
        if "running_std" in buffers:
            buffers["running_std"].copy_((variance + eps_of(layer)).sqrt())


def inference_affine(layer: nn.Module) -> tuple[Float[Tensor, " C"], Float[Tensor, " C"]]:
    """Scale and shift of each channel that a layer applies in evaluation mode, in float64.

    y = gamma / sqrt(Var + eps) x + (beta - gamma E / sqrt(Var + eps))  (Ioffe & Szegedy 2015, algorithm 2)
    """
    statistics = running_statistics(layer)
    if statistics is None:
        raise ValueError(
            f"{type(layer).__name__} keeps no running statistics, so it is no fixed map in evaluation mode"
        )
    mean, variance = statistics
    scale = (variance + eps_of(layer)).rsqrt()
    weight, bias = affine_parameters(layer)
    if weight is not None:
        scale = scale * weight.detach().double()
    shift = -mean * scale
    return scale, shift if bias is None else shift + bias.detach().double()


def affine_parameters(layer: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """Gamma and beta of a layer, where it has them."""
    return getattr(layer, "weight", None), getattr(layer, "bias", None)


def eps_of(layer: nn.Module) -> float:
    """The number that a layer adds to its variance."""
    return float(layer.eps)  # type: ignore[arg-type]  # every layer of KINDS has one


def channels_of(layer: nn.Module) -> int:
    """Channels of a layer of any kind but "layer"."""
    return int(layer.num_channels if isinstance(layer, nn.GroupNorm) else layer.num_features)  # type: ignore[arg-type]
