"""Fit gamma and beta of Group Normalization so that each channel keeps the mean and deviation that it had before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.normalization.batches import Feeding, Reached
from tenfold.normalization.inventory import affine_parameters, display_name, eps_of, layers_of, running_statistics
from tenfold.normalization.moments import PooledMoments
from tenfold.normalization.observation import Observation, entering_tensor

CONSTANT = 1e-3  # deviation of normalised values (1 for a channel like its group) below which a channel is constant


def calibrated(old: nn.Module, new: nn.Module, names: list[str], feeding: Feeding) -> list[str]:
    """Set gamma and beta of the layers of some names in the new model; returns notes."""
    wanted, calls = _outputs(old, feeding)
    notes = [
        f"{name} is never called on the calibration data and was left uncalibrated"
        for name in names
        if name not in wanted
    ]
    modules = {display_name(name): module for name, module in new.named_modules()}
    for name, (mean, deviation) in wanted.items():
        if name not in names:
            continue
        layer = modules[name]
        assert isinstance(layer, nn.GroupNorm)
        moments = _normalised(new, layer, feeding, stop=calls[name] == 1)
        weight, bias = affine_parameters(layer)
        assert weight is not None
        assert bias is not None
        sign = torch.where(weight < 0, -1.0, 1.0).to(moments.mean)
        spread = moments.variance().sqrt()
        scale = sign * deviation / spread
        constant = spread < CONSTANT
        scale = torch.where(constant, weight.to(scale), scale)
        with torch.no_grad():
            weight.copy_(scale)
            bias.copy_(mean - scale * moments.mean)
        if constant.any():
            notes.append(
                f"{name}: {int(constant.sum())} channels are constant behind the new layer; only their mean is kept"
            )
        if calls[name] > 1:
            notes.append(f"{name} is called {calls[name]} times in a forward pass and was calibrated for all together")
    return notes


def entering_ranks(model: nn.Module, names: list[str], feeding: Feeding | None) -> dict[str, int]:
    """Dimensions of the input of each layer on the first batch; empty without data."""
    ranks: dict[str, int] = {}
    if feeding is None:
        return ranks
    modules = {display_name(name): module for name, module in model.named_modules() if display_name(name) in names}

    def hook_of(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            ranks[name] = entering_tensor(args, kwargs).ndim

        return hook

    handles = [module.register_forward_pre_hook(hook_of(name), with_kwargs=True) for name, module in modules.items()]
    try:
        with Observation(model, {}, lambda name, index, measure: None):
            feeding.first().run(model)
    finally:
        for handle in handles:
            handle.remove()
    return ranks


def _outputs(model: nn.Module, feeding: Feeding) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, int]]:
    """Mean and standard deviation of what each layer gives in evaluation, before its activation, in the order of calls."""
    layers = layers_of(model)
    entering: dict[str, PooledMoments] = {}
    calls: dict[str, int] = {}

    def before(name: str, index: int, measure: Callable[[], PooledMoments]) -> None:
        moments = measure()
        entering[name] = entering[name].merged(moments) if name in entering else moments
        calls[name] = max(calls.get(name, 0), index + 1)

    with Observation(model, layers, before) as observation:
        feeding.run(model, observation.begin)
    wanted = {}
    for name, moments in entering.items():
        layer = layers[name]
        mean, variance = running_statistics(layer) or (moments.mean, moments.variance())
        weight, bias = affine_parameters(layer)
        scale = (variance + eps_of(layer)).rsqrt()
        scale = scale if weight is None else scale * weight.detach().double()
        shift = -mean * scale if bias is None else bias.detach().double() - mean * scale
        wanted[name] = (moments.mean * scale + shift, moments.variance().sqrt() * scale.abs())
    return wanted, calls


def _normalised(model: nn.Module, layer: nn.GroupNorm, feeding: Feeding, *, stop: bool) -> PooledMoments:
    """Moments of the values that a layer normalises, before gamma and beta."""
    found: list[PooledMoments] = []

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = entering_tensor(args, kwargs).detach()
        if x.device.type == "mps":  # float64 is not there
            x = x.cpu()
        moments = PooledMoments.of(nn.functional.group_norm(x.double(), layer.num_groups, eps=layer.eps))
        found[:] = [found[0].merged(moments) if found else moments]
        if stop:
            raise Reached

    handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        with Observation(model, {}, lambda name, index, measure: None):
            feeding.run(model)
    finally:
        handle.remove()
    return found[0]
