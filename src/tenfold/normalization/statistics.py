"""Means and variances of the channels of a batch, and what becomes of the population's: one place for all layers.

Batch normalization (Ioffe & Szegedy 2015, algorithm 1) divides by the biased variance of the batch; the population
variance that evaluation uses is estimated without bias, with a factor m / (m - 1) (algorithm 2). Both conventions are in
use for the second, and both are here by name. Moments are accumulated in float64, so that a mean far above the deviation,
or values whose squares leave the range of float32, lose no digits.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tenfold.normalization.high_precision import ChannelMoments, Normalized, promoted
from tenfold.normalization.population import moved_by_kernel

RunningVariance = Literal["unbiased", "biased"]
OnSingle = Literal["error", "running"]


class Moments(NamedTuple):
    """Mean, biased variance and number of values of each channel; the first two in the precision of accumulation."""

    mean: Float[Tensor, " channels"]
    variance: Float[Tensor, " channels"]
    count: int  # type: ignore[assignment]  # the number, not the method of a tuple


def mask_from_lengths(lengths: Int[Tensor, " batch"], max_length: int) -> Bool[Tensor, "batch max_length"]:
    """True at the first ``lengths[n]`` positions of row n.

    Args:
        lengths: Number of valid positions of each row, in 0..max_length.
        max_length: Number of positions.

    Raises:
        ValueError: A length lies outside 0..max_length.

    >>> mask_from_lengths(torch.tensor([2, 0, 3]), 3).int().tolist()
    [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    """
    if len(lengths) and (int(lengths.min()) < 0 or int(lengths.max()) > max_length):
        raise ValueError(
            f"lengths run from {int(lengths.min())} to {int(lengths.max())}; the input has {max_length} positions"
        )
    return torch.arange(max_length, device=lengths.device) < lengths.unsqueeze(1)


def validity(
    x: Float[Tensor, "batch channels *positions"],
    mask: Bool[Tensor, "batch *valid"] | None,
    lengths: Int[Tensor, " batch"] | None,
) -> Bool[Tensor, "batch *positions"] | None:
    """Which values count, as a mask of the input's shape without its channels; None where all do.

    Raises:
        ValueError: Mask and lengths are both given, or do not fit the input.
    """
    if mask is not None and lengths is not None:
        raise ValueError("mask and lengths say the same; give one of them")
    wanted = (x.shape[0], *x.shape[2:])
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ValueError(f"mask has dtype {mask.dtype}; give torch.bool, True at valid positions")
        if tuple(mask.shape) != wanted and not (x.dim() > 3 and tuple(mask.shape) == wanted[:2]):
            raise ValueError(f"mask has shape {tuple(mask.shape)}; the input without its channels has {wanted}")
        while mask.dim() < len(wanted):  # (N, L) for (N, C, L, ...)
            mask = mask.unsqueeze(-1)
        return mask.expand(wanted)
    if lengths is None:
        return None
    if x.dim() < 3:
        raise ValueError(f"lengths are for inputs (N, C, L, ...); this one has shape {tuple(x.shape)}, give mask (N,)")
    if tuple(lengths.shape) != wanted[:1]:
        raise ValueError(f"lengths has shape {tuple(lengths.shape)}; the input has {x.shape[0]} rows")
    mask = mask_from_lengths(lengths.to(x.device), x.shape[2])
    while mask.dim() < len(wanted):
        mask = mask.unsqueeze(-1)
    return mask.expand(wanted)


def masked_moments(
    x: Float[Tensor, "batch channels *positions"], mask: Bool[Tensor, "batch *positions"] | None = None
) -> Moments:
    """Moments of each channel over the valid values.

    Args:
        x: Values; what stands where the mask is False has no influence, NaN included.
        mask: True at valid positions; None for all.

    Returns:
        Mean and biased variance, differentiable, and the number of values a channel. Without any value both are 0.

    >>> masked_moments(torch.tensor([[1.0], [3.0], [777.0]]), torch.tensor([True, True, False]))
    Moments(mean=tensor([2.], dtype=torch.float64), variance=tensor([1.], dtype=torch.float64), count=2)
    """
    count = x.numel() // max(x.shape[1], 1) if mask is None else int(mask.sum())
    mean, variance = ChannelMoments.apply(x, mask, count)
    return Moments(mean, variance, count)


def normalized(
    x: Float[Tensor, "batch channels *positions"],
    mean: Float[Tensor, " channels"],
    variance: Float[Tensor, " channels"],
    weight: Float[Tensor, " channels"] | None,
    bias: Float[Tensor, " channels"] | None,
    eps: float,
) -> Float[Tensor, "batch channels *positions"]:
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, formed in high precision and returned in the input's."""
    y: Tensor = Normalized.apply(x, mean, variance, weight, bias, eps)
    return y


def check_settings(eps: float, momentum: float | None, on_single: str, running_variance: str) -> None:
    """Refuse settings out of their range, and warn of a momentum that looks like another library's.

    Raises:
        ValueError: A setting is out of its range.
    """
    if not eps >= 0:
        raise ValueError(f"eps={eps} is negative; give 0 or more")
    if momentum is not None and not 0 <= momentum <= 1:
        raise ValueError(f"momentum={momentum} is not in 0..1; None averages over all batches")
    if momentum is not None and 0.5 < momentum < 1:
        warnings.warn(
            f"momentum={momentum} is the weight of the new batch here, as in torch.nn; Keras's momentum={momentum} is "
            f"{1 - momentum:.3g} here (see from_keras)",
            stacklevel=3,
        )
    if on_single not in ("error", "running"):
        raise ValueError(f"on_single={on_single!r} is not one of 'error', 'running'")
    if running_variance not in ("unbiased", "biased"):
        raise ValueError(f"running_variance={running_variance!r} is not one of 'unbiased', 'biased'")


def refuse_single(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """Raise the error for one value a channel in training.

    Raises:
        ValueError: Always; it names the layer, with its place in the model.
    """
    raise ValueError(
        f"{place_of(layer)} needs more than 1 value a channel in training, got input of shape {shape}; give larger batches, "
        "drop the last one (drop_last=True), or set on_single='running' to normalize such a batch with the population statistics"
    )


def place_of(layer: nn.Module) -> str:
    """A layer's name in its model and its class, for messages.

    The name is the one that :func:`name_layers` has given. Otherwise the calls that led here are searched for modules
    that hold the layer, and it is the name in the outermost.
    """
    name = getattr(layer, "layer_name", None)
    frame = None if name else inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, nn.Module) and caller is not layer:
            name = next((name for name, module in caller.named_modules() if module is layer), name)
        frame = frame.f_back
    return f"{name} ({layer._get_name()})" if name else layer._get_name()


def name_layers(model: nn.Module) -> nn.Module:
    """Tell each module of a model its name in it, for errors of this library's layers.

    Errors find the name by themselves while the model is being called; this is for names of one's own choice, and for
    layers whose calls cannot be seen (in compiled models).

    >>> model = name_layers(nn.Sequential(nn.Linear(2, 2)))
    >>> model[0].layer_name
    '0'
    """
    for name, module in model.named_modules():
        if name:
            module.layer_name = name
    return model


@torch.no_grad()
def update_running(layer: nn.Module, mean: Tensor, variance: Tensor, count: int) -> bool:
    """Move a layer's population statistics towards those of a batch.

        running = (1 - momentum) * running + momentum * batch

    The variance gets the factor m / (m - 1) unless ``layer.running_variance`` is ``"biased"``; with one value that is
    undefined (or 0), and only the mean moves. ``momentum=None`` averages over all batches. Statistics that are not finite are
    left out: ``layer.skipped_updates`` counts these batches, and the first one gives a warning.

    Args:
        layer: Has running_mean, running_var, num_batches_tracked and momentum, as torch.nn's.
        mean: Of the batch, (channels,).
        variance: Of the batch, biased, (channels,).
        count: Values a channel.

    Returns:
        Whether the statistics moved.
    """
    if layer.running_mean is None or count == 0:
        return False
    if mean.is_meta or torch.compiler.is_compiling():
        _update_in_graph(layer, mean, variance, count)
        return True
    moved = moved_by_kernel(layer, mean, variance, count)
    if moved is not None:
        return moved or left_out(layer)
    if not usable(layer, mean, variance):
        return False
    weight = next_weight(layer)
    move(layer.running_mean, mean, weight)  # type: ignore[arg-type]
    if count > 1:
        biased = getattr(layer, "running_variance", "unbiased") == "biased"
        move(layer.running_var, variance * (1.0 if biased else count / (count - 1)), weight)  # type: ignore[arg-type]
    return True


def _update_in_graph(layer: nn.Module, mean: Tensor, variance: Tensor, count: int) -> None:
    """The same without a look at any number, which would break a compiled graph; what is left out is not counted."""
    finite = torch.isfinite(mean).all() & torch.isfinite(variance).all()
    tracked: Tensor = layer.num_batches_tracked  # type: ignore[assignment]
    tracked.add_(finite)
    momentum: float | None = layer.momentum  # type: ignore[assignment]
    weight = 1.0 / tracked.clamp(min=1).to(mean.dtype) if momentum is None else momentum
    biased = getattr(layer, "running_variance", "unbiased") == "biased"
    values = {"running_mean": mean}
    if count > 1:
        values["running_var"] = variance * (1.0 if biased else count / (count - 1))
    for name, value in values.items():
        buffer: Tensor = getattr(layer, name)
        old = promoted(buffer)
        moved = (old + weight * (promoted(value) - old)).clamp(max=torch.finfo(buffer.dtype).max)
        buffer.copy_(torch.where(finite, moved.to(buffer.dtype), buffer))


def usable(layer: nn.Module, *statistics: Tensor) -> bool:
    """Whether a batch's statistics are finite; ``layer.skipped_updates`` counts those that are not, the first one warns."""
    return bool(torch.stack([torch.isfinite(values).all() for values in statistics]).all()) or left_out(layer)


def left_out(layer: nn.Module) -> Literal[False]:
    """Count a batch whose statistics are not finite; the first one warns."""
    skipped = int(getattr(layer, "skipped_updates", 0)) + 1
    layer.skipped_updates = skipped  # type: ignore[assignment]  # a plain attribute
    if skipped == 1:
        warnings.warn(
            f"{place_of(layer)}: the statistics of a batch are not finite; the population statistics stay as they are "
            "(counted in skipped_updates)",
            stacklevel=5,
        )
    return False


def next_weight(layer: nn.Module) -> float:
    """Count a batch, and give its weight in the population statistics."""
    tracked: Tensor = layer.num_batches_tracked  # type: ignore[assignment]
    tracked.add_(1)
    return 1.0 / float(tracked) if layer.momentum is None else float(layer.momentum)  # type: ignore[arg-type]


@torch.no_grad()
def move(buffer: Tensor, value: Tensor, weight: float) -> None:
    """Move a buffer in place, in high precision; what would leave the buffer's range stays at its edge."""
    moved = promoted(buffer).lerp(promoted(value), weight)
    buffer.copy_(moved.clamp(max=torch.finfo(buffer.dtype).max))
