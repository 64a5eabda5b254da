"""Puts another normalization into the place of each one in a network, for training from the start."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

KINDS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)
AXES = {1: (nn.BatchNorm1d, nn.InstanceNorm1d), 3: (nn.BatchNorm3d, nn.InstanceNorm3d)}  # behind the channels; else 2


def replace_norms(network: nn.Module, norm: Callable[[int, int], nn.Module]) -> nn.Module:
    """The network with every batch, group and instance normalization in it replaced; gamma and beta are carried over.

    What follows in place is exact for training from first weights (a gamma of 0 stays 0). For a network that has been
    trained, :func:`tenfold.normalization.convert` replaces and calibrates.

    Args:
        network: Changed in place; a layer that is used in several places stays one layer.
        norm: Gives a layer for so many channels, and so many axes behind them.

    Returns:
        The network, or the new layer where the network is a normalization itself.

    Raises:
        ValueError: Nothing to replace.

    >>> net = replace_norms(nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)), lambda c, axes: nn.GroupNorm(2, c))
    >>> type(net[1]).__name__, net[1].num_groups
    ('GroupNorm', 2)
    """
    made: dict[nn.Module, nn.Module] = {}
    places = [
        (parent, name, child)
        for parent in network.modules()
        for name, child in parent._modules.items()  # named_children passes over a layer's second name
        if isinstance(child, KINDS)
    ]
    for parent, name, child in places:
        if child not in made:
            made[child] = _in_place_of(child, norm)
        setattr(parent, name, made[child])
    if isinstance(network, KINDS):
        return _in_place_of(network, norm)
    if not made:
        raise ValueError("the network holds no batch, group or instance normalization that could be replaced")
    return network


def _in_place_of(old: nn.Module, norm: Callable[[int, int], nn.Module]) -> nn.Module:
    channels = old.num_channels if isinstance(old, nn.GroupNorm) else old.num_features
    assert isinstance(channels, int)
    axes = next((axes for axes, kinds in AXES.items() if isinstance(old, kinds)), 2)
    new = norm(channels, axes)
    for name in ("weight", "bias"):
        before, after = getattr(old, name, None), getattr(new, name, None)
        if isinstance(before, Tensor) and isinstance(after, Tensor):
            with torch.no_grad():
                after.copy_(before)
    return new
