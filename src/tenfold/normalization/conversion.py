"""Put other normalization layers into a trained model, with its weights: Batch to Group Normalization and between kinds of Batch.

All kinds of Batch Normalization compute the same map in evaluation, so a conversion between them changes nothing there. Group,
Layer and Instance Normalization compute statistics from each sample instead of remembering them: the output changes. What can be
kept is each channel's mean and standard deviation over data. With (m, s) of the old layer's output and (m', s') of the new
layer's normalised values,

    gamma = sign(gamma_old) s / s',    beta = m - gamma m',

set for one layer after another, each behind those that are done. That is a start for fine-tuning, and no replacement for it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tenfold.normalization.batch_normalization import BatchNorm1d, BatchNorm2d, BatchNorm3d
from tenfold.normalization.batches import Feeding, Forward, batches_for, unwrapped
from tenfold.normalization.calibration import calibrated, entering_ranks
from tenfold.normalization.cross_process import CrossProcessBatchNorm
from tenfold.normalization.folding import replace_modules, rounding_allowance
from tenfold.normalization.frozen import FrozenBatchNorm
from tenfold.normalization.fusion import fuse_activations
from tenfold.normalization.ghost import GhostBatchNorm
from tenfold.normalization.group_normalization import GroupNorm
from tenfold.normalization.groups import CHANNELS_PER_GROUP, groups_for_any, recommend_groups
from tenfold.normalization.inventory import (
    BATCH_KINDS,
    affine_parameters,
    channels_of,
    eps_of,
    has_own_forward,
    kind_of,
    layers_of,
    running_statistics,
    statistics_buffers,
)
from tenfold.normalization.reestimation import reestimate
from tenfold.normalization.renorm import BatchRenorm

BY_SAMPLE = ("group", "layer", "instance")
BY_BATCH = ("batch", "cross_process", "fused", "ghost", "renorm", "frozen")
CARRIED = ("eps", "momentum", "track_running_stats", "activation", "on_single", "running_variance")
FINE_TUNE = (
    "the new layers take their statistics from each sample, which the weights were not trained for: fine-tune the model, "
    "a calibration alone does not bring its accuracy back"
)


@dataclass(frozen=True)
class LayerConversion:
    """One layer that was replaced.

    Args:
        name: Its name in the model.
        before: What it was.
        after: What it is.
        note: What else was done to it.
    """

    name: str
    before: str
    after: str
    note: str = ""


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion changed.

    Args:
        to: The kind of the new layers.
        layers: The layers that were replaced.
        output_change: Root mean square change of the model's output in evaluation, relative to its root mean square, on the
            calibration batches; None without.
        uncalibrated_change: The same before gamma and beta were fitted; None where they were not.
        needs_fine_tuning: Whether the new layers compute something else than the old ones in evaluation.
        notes: What else there is to know.
    """

    to: str
    layers: tuple[LayerConversion, ...]
    output_change: float | None
    uncalibrated_change: float | None
    needs_fine_tuning: bool
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        change = "not measured (no calibration data)" if self.output_change is None else f"{self.output_change:.3g}"
        if self.uncalibrated_change is not None:
            change += f" ({self.uncalibrated_change:.3g} without calibration)"
        lines = [f"{len(self.layers)} layers converted to {self.to}; relative change of the output: {change}"]
        lines += [
            f"  {layer.name}: {layer.before} -> {layer.after}" + (f" ({layer.note})" if layer.note else "")
            for layer in self.layers
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@dataclass(frozen=True)
class Conversion:
    """A converted copy of a model, and the report.

    Args:
        model: The copy.
        report: What was changed.
    """

    model: nn.Module
    report: ConversionReport


def convert(
    model: nn.Module,
    to: str,
    calibration: Iterable[Any] | None = None,
    *,
    groups: int | None = None,
    channels_per_group: int | None = None,
    forward: Forward | None = None,
    device: torch.device | str | None = None,
    max_samples: int | None = None,
    **options: Any,
) -> Conversion:
    """A copy of a model with its Batch Normalization replaced; gamma, beta, eps, statistics and modes are carried over.

    Args:
        model: Any module; it is not changed. A shared layer becomes one shared layer.
        to: "group", "layer" (over channels and positions, one group), "instance" (a group for each channel); "frozen",
            "cross_process", "ghost", "renorm", "batch"; or "fused": the layers of this library, with the activation that
            directly follows taken in. "batch" replaces group and instance layers as well, and needs calibration data for
            statistics.
        calibration: Batches as for ``reestimate``. For the first three they set gamma and beta so that each channel keeps
            its mean and deviation; for all they measure the change of the output. A few hundred samples are enough; they are
            read once for each layer.
        groups: For "group". By default 32 where that divides and leaves two channels in a group (16 for rows without
            positions); else the largest number below that does, which the report shows.
        channels_per_group: For "group", instead of ``groups``.
        forward: Runs the model on a batch, ``forward(model, batch)``.
        device: Where batches are moved.
        max_samples: Calibration rows read at most.
        **options: Further arguments of the new layers: ``virtual_batch_size`` ("ghost"), ``rmax``, ``dmax`` ("renorm"), ...

    Returns:
        The copy and a report; it says whether fine-tuning is needed.

    Raises:
        ValueError: An unknown kind, groups that do not divide a layer's channels (the layer is named), or a layer whose rank
            only calibration data could tell.
        ArithmeticError: Layers that compute the same gave something else on the calibration data.

    >>> net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64))
    >>> print(convert(net, to="group").report.layers[0].after)
    GroupNorm(32, 64)
    """
    if to not in BY_SAMPLE + BY_BATCH:
        raise ValueError(f"to={to!r} is not known; it is one of {', '.join(BY_SAMPLE + BY_BATCH)}")
    if to != "group" and (groups is not None or channels_per_group is not None):
        raise ValueError(f'groups and channels_per_group go with to="group", and to={to!r} was given')
    original = unwrapped(model)
    lazy = [name for name, layer in layers_of(original).items() if isinstance(layer.weight, nn.UninitializedParameter)]
    if lazy:
        raise ValueError(
            f"layer {lazy[0]} is lazy and has not seen data yet; run the model once before it is converted"
        )
    new_model = copy.deepcopy(original)
    layers = {
        name: layer for name, layer in layers_of(new_model, _replaced_kinds(to)).items() if not _is_already(layer, to)
    }
    feeding = None if calibration is None else Feeding.of(original, calibration, forward, device, max_samples)
    notes = []
    subclasses = [name for name, layer in layers.items() if has_own_forward(layer)]
    notes += [f"{name} is a subclass with a forward of its own and was left as it is" for name in subclasses]
    layers = {name: layer for name, layer in layers.items() if name not in subclasses}
    hooked = [name for name, layer in layers.items() if layer._forward_hooks or layer._forward_pre_hooks]
    notes += [f"{name} had hooks, which the new layer has not" for name in hooked]
    if to not in (*BY_SAMPLE, "batch", "fused"):
        stateless = [name for name, layer in layers.items() if running_statistics(layer) is None]
        notes += [f"{name} keeps no running statistics and was left as it is" for name in stateless]
        layers = {name: layer for name, layer in layers.items() if name not in stateless}
    ranks = entering_ranks(original, list(layers), feeding)
    replaced, changes = {}, []
    for name, layer in layers.items():
        rows = ranks.get(name, 2 if isinstance(layer, nn.BatchNorm1d) else None) == 2
        count = _groups(name, layer, to, groups, channels_per_group, CHANNELS_PER_GROUP if rows else 2)
        new = _carried(layer, _built(name, layer, to, count, ranks.get(name), calibration is not None, options))
        replaced[id(layer)] = new
        changes.append(LayerConversion(name, _label(layer), _label(new), _note(to, count, rows)))
    new_model = replace_modules(new_model, replaced)
    if to == "fused":
        new_model, fused = fuse_activations(new_model, feeding)
        changes = [replace(c, after=f"{c.after} {fused[c.name]}") if c.name in fused else c for c in changes]
    if not changes:
        notes.append(f"the model has no layer to convert to {to}")
    change = uncalibrated = None
    from_samples = to == "batch" and any(kind_of(layer) not in BATCH_KINDS for layer in layers.values())
    if feeding is not None and changes:
        if to in BY_SAMPLE:
            uncalibrated = _output_change(original, new_model, feeding)
            notes += calibrated(original, new_model, list(layers), feeding)
        elif from_samples:
            reestimate(new_model, feeding.loader, forward=forward, device=device, max_samples=max_samples)
        change = _output_change(original, new_model, feeding)
        if to in BY_BATCH and not from_samples:
            _check_same(original, change, feeding)
    elif from_samples:
        notes.append("the new layers have no statistics yet: give calibration data, or train")
    different = bool(changes) and (to in BY_SAMPLE or from_samples)
    if different:
        notes.append(
            FINE_TUNE if to in BY_SAMPLE else "statistics of the batch replace those of a sample: fine-tune the model"
        )
    return Conversion(new_model, ConversionReport(to, tuple(changes), change, uncalibrated, different, tuple(notes)))


def _replaced_kinds(to: str) -> tuple[str, ...]:
    return (
        (*BATCH_KINDS, "group", "instance")
        if to == "batch"
        else (*BATCH_KINDS, "group")
        if to == "fused"
        else BATCH_KINDS
    )


def _is_already(layer: nn.Module, to: str) -> bool:
    own = {
        "frozen": FrozenBatchNorm,
        "cross_process": CrossProcessBatchNorm,
        "ghost": GhostBatchNorm,
        "renorm": BatchRenorm,
    }
    if to == "fused":  # only layers with a twin here
        twins = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm)
        return not isinstance(layer, twins) or kind_of(layer) not in ("batch", "group")
    if to == "batch":
        return isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) and kind_of(layer) == "batch"
    return to in own and isinstance(layer, own[to])


def _groups(
    name: str, layer: nn.Module, to: str, groups: int | None, channels_per_group: int | None, least: int
) -> int:
    if to == "fused" and isinstance(layer, nn.GroupNorm):
        return layer.num_groups
    channels = channels_of(layer)
    if to != "group" or (groups is None and channels_per_group is None):
        return {"layer": 1, "instance": channels}.get(to) or groups_for_any(channels, least)
    try:
        return recommend_groups(channels, groups, channels_per_group=channels_per_group)
    except ValueError as error:
        raise ValueError(f"layer {name}: {error}") from error


def _built(
    name: str, layer: nn.Module, to: str, groups: int, rank: int | None, calibrates: bool, options: dict[str, Any]
) -> nn.Module:
    """A new layer of the kind, in the dtype, on the device and with the settings of the old one."""
    if to == "frozen":
        return FrozenBatchNorm.from_module(layer, **options)
    if to in BY_SAMPLE or (isinstance(layer, nn.GroupNorm) and to == "fused"):
        kind: type[nn.Module] = GroupNorm
    elif to in ("batch", "fused"):
        kind = _batch_norm_class(name, layer, rank)
    else:
        kind = {"cross_process": CrossProcessBatchNorm, "ghost": GhostBatchNorm, "renorm": BatchRenorm}[to]
    weight, beta = affine_parameters(layer)
    reference = next((t for t in (weight, *statistics_buffers(layer).values()) if t is not None), torch.empty(0))
    settings = {key: getattr(layer, key) for key in CARRIED if hasattr(layer, key)}
    if kind_of(layer) not in BATCH_KINDS:  # a group or instance layer kept no statistics; the new one shall
        settings.pop("track_running_stats", None)
    settings |= {"device": reference.device, "dtype": reference.dtype}
    settings["affine"] = weight is not None or (to in BY_SAMPLE and calibrates)
    settings["bias"] = beta is not None or weight is None or (to in BY_SAMPLE and calibrates)
    known = inspect.signature(kind.__init__).parameters
    settings = {key: value for key, value in settings.items() if key in known} | options
    if kind is GroupNorm:
        return kind(groups, channels_of(layer), **settings)
    return kind(channels_of(layer), **settings)


def _batch_norm_class(name: str, layer: nn.Module, rank: int | None) -> type[nn.Module]:
    classes = {nn.BatchNorm1d: BatchNorm1d, nn.BatchNorm2d: BatchNorm2d, nn.BatchNorm3d: BatchNorm3d}
    for old, new in classes.items():
        if isinstance(layer, old):
            return new
    by_rank = {2: BatchNorm1d, 3: BatchNorm1d, 4: BatchNorm2d, 5: BatchNorm3d}
    if rank not in by_rank:
        raise ValueError(
            f"layer {name} ({type(layer).__name__}) takes inputs of any rank, and Batch Normalization is made for one; "
            "give calibration data, so that the rank is seen"
        )
    return by_rank[rank]


def _carried(old: nn.Module, new: nn.Module) -> nn.Module:
    """Copy parameters, statistics, modes and whether parameters train from the old layer."""
    with torch.no_grad():
        for before, after in zip(affine_parameters(old), affine_parameters(new), strict=True):
            if before is not None and after is not None:
                after.copy_(before)
                if isinstance(after, nn.Parameter) and isinstance(before, nn.Parameter):
                    after.requires_grad_(before.requires_grad)
        statistics = running_statistics(old)
        if statistics is not None:
            mean, variance = statistics
            values = {"running_mean": mean, "running_var": variance, "running_std": (variance + eps_of(new)).sqrt()}
            for name, buffer in statistics_buffers(new).items():
                buffer.copy_(values[name])
        seen, counter = (getattr(layer, "num_batches_tracked", None) for layer in (old, new))
        if isinstance(seen, Tensor) and isinstance(counter, Tensor):
            counter.copy_(seen)
    new.train(old.training)
    return new


def _note(to: str, groups: int, rows: bool) -> str:
    if to == "instance" and rows:
        return "for rows without positions a channel is one value, and the output is beta whatever the input"
    if to == "group" and groups == 1:
        return "one group: Layer Normalization"
    return ""


def _label(layer: nn.Module) -> str:
    if isinstance(layer, nn.GroupNorm):
        return f"{type(layer).__name__}({layer.num_groups}, {layer.num_channels})"
    return f"{type(layer).__name__}({channels_of(layer)})"


def _output_change(before: nn.Module, after: nn.Module, feeding: Feeding) -> float:
    """Root mean square change of all outputs in evaluation, relative to their root mean square."""
    old, new = copy.deepcopy(before), copy.deepcopy(after)
    for module in (*old.modules(), *new.modules()):
        module.training = False
    square = difference = 0.0
    # Both on each batch, for a loader may shuffle or augment anew in every pass.
    for batch, _ in batches_for(feeding.loader, feeding.device, feeding.max_samples):
        with torch.no_grad():
            outputs = [_floating(feeding.forward(model, batch)) for model in (old, new)]
        square += sum(float(y.square().sum()) for y in outputs[0])
        difference += sum(float((z - y).square().sum()) for y, z in zip(*outputs, strict=True))
    return (difference / square) ** 0.5 if square else difference**0.5


def _check_same(original: nn.Module, change: float, feeding: Feeding) -> None:
    """Layers that compute the same must give the same, but where the model draws random numbers in evaluation."""
    allowed = rounding_allowance([p.dtype for p in original.parameters() if p.is_floating_point()])
    if not change <= allowed and _output_change(original, original, feeding) <= allowed:
        raise ArithmeticError(
            f"the converted model's output differs by {change:.2g}, where rounding allows {allowed:.1g}; a layer of it is "
            "used in a way that the conversion does not see"
        )


def _floating(output: Any) -> list[Float[Tensor, "..."]]:
    return [leaf.double() for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
