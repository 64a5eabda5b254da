"""Measurements behind the claims of Wu & He 2018: how the number of samples that are normalized together matters.

The network is the study's: four convolutions on digits of 14 x 14, down to maps of one pixel, so that BN has as many
values a channel as it has samples. The optimizer's batch is 32 throughout, as the paper's learning rate follows it; what
changes is over how many of the 32 samples BN takes its statistics, as on so many devices. At scale smoke the digits are
the 8 x 8 ones and one pass is made, which tells nothing about a claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn

from tenfold.claims import Curve, Measurement, Plot
from tenfold.normalization.batch_normalization import batch_norm
from tenfold.normalization.data import Parts, dataset, split
from tenfold.normalization.group_normalization import GroupNorm
from tenfold.normalization.models import norm_layer, small_conv
from tenfold.normalization.training import Settings, train_classifier

BATCH = 32
SPLITS = (32, 16, 8, 4, 2)


class _PerDeviceBatchNorm(nn.BatchNorm2d):
    """BN over each part of the batch by itself, as on so many devices that do not share statistics.

    The parts are put side by side as channels of one batch of `part` samples. Evaluation has the running averages of the
    first device, as data-parallel training keeps them.
    """

    def __init__(self, channels: int, part: int) -> None:
        super().__init__(channels)
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        if not self.training:
            return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        devices = len(x) // self.part
        beside = x.unflatten(0, (devices, self.part)).transpose(0, 1).flatten(1, 2)
        mean, variance, gamma, beta = (
            values.repeat(devices) for values in (self.running_mean, self.running_var, self.weight, self.bias)
        )
        y = batch_norm(beside, mean, variance, gamma, beta, training=True, eps=self.eps)
        self.running_mean.copy_(mean.view(devices, -1)[0])
        self.running_var.copy_(variance.view(devices, -1)[0])
        return y.unflatten(1, (devices, -1)).transpose(0, 1).flatten(0, 1)


class _InParts(nn.Module):
    """Runs a network on parts of the batch in turn, as gradients are accumulated over them."""

    def __init__(self, network: nn.Module, part: int) -> None:
        super().__init__()
        self.network = network
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.network(x)
        return torch.cat([self.network(part) for part in x.split(self.part)])


class _SingleImageBatchNorm(nn.BatchNorm2d):
    """BN as a batch of one leaves it: the image's own statistics, and beta alone where a channel has one value."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.numel() == x.shape[1]:
            return (self.weight * 0 * x.flatten(1) + self.bias).view_as(x)
        return super().forward(x)


@cache
def _image_parts(seed: int, scale: str) -> Parts:
    """Digits of 14 x 14, split as by the study; at scale smoke those of 8 x 8."""
    return split(dataset("digits" if scale == "smoke" else "mnist_5k"), seed=seed)


def _few(parts: Parts, examples: int) -> Parts:
    return replace(parts, inputs=parts.inputs[:examples], labels=parts.labels[:examples])


def _epochs(scale: str) -> int:
    return {"smoke": 1, "quick": 4, "full": 16}[scale]


def _error(
    parts: Parts, norm: Callable[[int], nn.Module], settings: Settings, seed: int, in_parts: int | None = None
) -> float:
    """Test error (%) of the study's network with a normalization."""
    torch.manual_seed(seed)
    network: nn.Module = small_conv(tuple(parts.inputs.shape[1:]), 10, norm)
    if in_parts is not None:
        network = _InParts(network, in_parts)
    return 100 * train_classifier(network, parts, settings, seed=seed).errors[-1]


@cache  # several claims look at the same networks
def _batch_norm_error(samples: int, seed: int, scale: str) -> float:
    settings = Settings(epochs=_epochs(scale), batch_size=BATCH)
    return _error(_image_parts(seed, scale), lambda channels: _PerDeviceBatchNorm(channels, samples), settings, seed)


@cache
def _other_error(name: str, seed: int, scale: str) -> float:
    settings = Settings(epochs=_epochs(scale), batch_size=BATCH)
    return _error(_image_parts(seed, scale), lambda channels: norm_layer(name, channels), settings, seed)


def _errors_plot(batch: dict[int, float], group: float) -> Plot:
    sizes = sorted(batch)
    return Plot(
        "Error by samples that are normalized together",
        "samples",
        "error (%)",
        {
            "batch normalization": Curve(sizes, [batch[size] for size in sizes]),
            "group normalization": Curve(sizes, [group] * len(sizes)),
        },
        x_log=True,
        y_log=True,
        caption="The optimizer's batch is 32 throughout. Group normalization does not see the parts.",
    )


def independence(seed: int, scale: str) -> Measurement:
    """GN on a batch, whole and in parts: numbers of the outputs and input gradients that differ in any bit."""
    generator = torch.Generator().manual_seed(seed)
    rounds = {"smoke": 1, "quick": 5, "full": 50}[scale]
    differing = 0
    spread = math.inf
    shapes = ((32, 32, 7, 7), (32, 64, 1, 1), (32, 16, 14, 14))
    for shape in shapes * rounds:
        for form in (torch.contiguous_format, torch.channels_last):
            x = (3 + torch.randn(shape, generator=generator)).contiguous(memory_format=form)
            g = torch.randn(shape, generator=generator).contiguous(memory_format=form)
            for size in SPLITS[1:]:
                layer = GroupNorm(8, shape[1], activation="silu")
                y, dx = _output_and_gradient(layer, x, g, len(x))
                parts = _output_and_gradient(layer, x, g, size)
                differing += int((y != parts[0]).sum()) + int((dx != parts[1]).sum())
            batch = norm_layer("batch", shape[1])
            whole, in_parts = (_output_and_gradient(batch, x, g, size)[0] for size in (32, 16))
            spread = min(spread, float((whole - in_parts).abs().max()))
    return Measurement({"differing_numbers": differing, "difference_of_batch_norm": spread})


def _output_and_gradient(layer: nn.Module, x: Tensor, g: Tensor, part: int) -> tuple[Tensor, Tensor]:
    given = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = torch.cat([layer(piece) for piece in given.split(part)])
    (dx,) = torch.autograd.grad(y, given, g)
    return y.detach(), dx


def small_batches(seed: int, scale: str) -> Measurement:
    """BN with statistics over 32, 8, 4 and 2 samples; GN with the batch whole, and in parts of 2."""
    batch = {size: _batch_norm_error(size, seed, scale) for size in (32, 8, 4, 2)}
    group = _other_error("group", seed, scale)
    few = _few(_image_parts(seed, scale), {"smoke": 200, "quick": 1000, "full": 4000}[scale])
    settings = Settings(epochs=_epochs(scale) // 4 or 1, batch_size=BATCH)
    in_parts = {
        part: _error(few, lambda channels: norm_layer("group", channels), settings, seed, part) for part in (BATCH, 2)
    }
    return Measurement(
        {
            "rise_from_8_to_4": batch[4] - batch[8],
            "rise_from_32_to_2": batch[2] - batch[32],
            "change_of_group": abs(in_parts[2] - in_parts[BATCH]),
            **{f"error_batch_{size}": value for size, value in batch.items()},
            "error_group": group,
        },
        {"errors": _errors_plot(batch, group)},
    )


def batch_beats_group(seed: int, scale: str) -> Measurement:
    """Errors of GN and BN with statistics over 32 samples."""
    batch, group = _batch_norm_error(BATCH, seed, scale), _other_error("group", seed, scale)
    return Measurement({"difference": group - batch, "error_batch": batch, "error_group": group})


def layer_behind_group(seed: int, scale: str) -> Measurement:
    """Errors of LN, which is one group, and GN."""
    layer, group = _other_error("layer", seed, scale), _other_error("group", seed, scale)
    return Measurement({"difference": layer - group, "error_layer": layer, "error_group": group})


def instance_behind_group(seed: int, scale: str) -> Measurement:
    """Errors of IN, which is a group a channel, and GN."""
    instance, group = _other_error("instance", seed, scale), _other_error("group", seed, scale)
    return Measurement({"difference": instance - group, "error_instance": instance, "error_group": group})


def crossover(seed: int, scale: str) -> Measurement:
    """The number of samples at which the errors of BN and GN are equal."""
    batch = {size: _batch_norm_error(size, seed, scale) for size in SPLITS}
    group = _other_error("group", seed, scale)
    return Measurement(
        {
            "samples": crossing(batch, group),
            "error_batch_16": batch[16],
            "error_batch_4": batch[4],
            "error_group": group,
        },
        {"errors": _errors_plot(batch, group)},
    )


def crossing(errors: dict[int, float], level: float) -> float:
    """The largest size below which the errors rise above a level, by interpolation along the sizes' logarithm.

    Where they are above it at the largest size, that size; where they are below it everywhere, the smallest.

    >>> crossing({32: 1.0, 8: 2.0, 2: 4.0}, 3.0)  # half way from 8 to 2
    4.0
    >>> crossing({32: 1.0, 8: 2.0}, 0.5), crossing({32: 1.0, 8: 2.0}, 3.0)
    (32.0, 8.0)
    """
    sizes = sorted(errors, reverse=True)
    if errors[sizes[0]] >= level:
        return float(sizes[0])
    for larger, smaller in pairwise(sizes):
        if errors[smaller] > level:
            share = (level - errors[larger]) / (errors[smaller] - errors[larger])
            return float(2 ** (math.log2(larger) + share * (math.log2(smaller) - math.log2(larger))))
    return float(sizes[-1])


def batch_of_one(seed: int, scale: str) -> Measurement:
    """Training with one image a step: BN's last layer has one value a channel, from which nothing but beta comes out."""
    few = _few(_image_parts(seed, scale), {"smoke": 50, "quick": 1500, "full": 4000}[scale])
    settings = Settings(epochs=1, batch_size=1, learning_rate=0.003)
    errors = {
        "batch": _error(few, _SingleImageBatchNorm, settings, seed),
        "group": _error(few, lambda channels: norm_layer("group", channels), settings, seed),
    }
    plot = Plot(
        "Error after training one image at a time",
        "",
        "error (%)",
        {"error": Curve((0, 1), [errors["batch"], errors["group"]])},
        kind="bar",
        ticks=("BN", "GN"),
    )
    return Measurement({"error_batch": errors["batch"], "error_group": errors["group"]}, {"errors": plot})
