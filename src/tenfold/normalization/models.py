"""Small networks for studies of normalization, for any size of input and any kind of normalization.

`small_conv` ends at maps of one pixel, so that few values a channel are normalized together, as in the last stages of a
large network with a small batch; `residual_net` follows He et al. 2016 with gamma = 0 in the last normalization of each
block (Wu & He 2018, section 4.1); `perceptron` is for the rows of a table. Each is built from a function that gives the
normalization of so many channels; nothing in it draws random numbers, so that networks of one seed start from the same
weights whatever normalizes them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tenfold.normalization.batch_normalization import BatchNorm1d, BatchNorm2d, BatchNorm3d
from tenfold.normalization.ghost import GhostBatchNorm
from tenfold.normalization.group_normalization import GroupNorm

Norm = Callable[[int], nn.Module]
Build = Callable[[tuple[int, ...], int, Norm], nn.Module]

NORMS = ("batch", "group", "layer", "instance", "none")
CHANNELS_A_GROUP = 8  # the networks here have 16 to 64 channels; the paper's have 64 to 2,048 and 32 groups


def norm_layer(
    name: str, num_channels: int, *, axes: int = 2, split: int | None = None, channels_per_group: int = CHANNELS_A_GROUP
) -> nn.Module:
    """The normalization of a name, for inputs (N, C) and as many further axes.

    Args:
        name: ``"batch"``; ``"group"``, ``"layer"`` (one group) and ``"instance"`` (a group a channel), which are one
            method (Wu & He 2018, section 3.1); or ``"none"``.
        num_channels: C.
        axes: Axes behind the channels, for batch normalization: 0 for rows, 1 for sequences, 2 for images, 3 for volumes.
        split: Samples over which batch normalization takes its statistics; None for the whole batch.
        channels_per_group: Of group normalization; where it does not divide C, its greatest divisor that does.

    Raises:
        ValueError: An unknown name.

    >>> norm_layer("group", 32).num_groups, norm_layer("layer", 32).num_groups, norm_layer("instance", 32).num_groups
    (4, 1, 32)
    """
    if name == "batch" and split is not None:
        return GhostBatchNorm(num_channels, virtual_batch_size=split)
    if name == "batch":
        return (BatchNorm1d, BatchNorm1d, BatchNorm2d, BatchNorm3d)[axes](num_channels)
    if name == "none":
        return nn.Identity()
    groups = {
        "group": num_channels // math.gcd(num_channels, channels_per_group),
        "layer": 1,
        "instance": num_channels,
    }
    if name not in groups:
        raise ValueError(f"normalization {name!r} is not one of {', '.join(NORMS)}")
    return GroupNorm(groups[name], num_channels)


class ResidualBlock(nn.Module):
    """Two convolutions of 3 x 3, each normalized, and a shortcut around them; it starts as the shortcut alone.

    Args:
        before: Channels that come in.
        channels: Channels that go out.
        stride: Of the first convolution and the shortcut.
        norm: Gives the normalization of so many channels.
    """

    def __init__(self, before: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.norm1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = norm(channels)
        changed = stride != 1 or before != channels
        self.shortcut = (
            nn.Sequential(nn.Conv2d(before, channels, 1, stride, bias=False), norm(channels)) if changed else None
        )
        scale = getattr(self.norm2, "weight", None)
        if isinstance(scale, Tensor):
            nn.init.zeros_(scale)  # gamma = 0, section 4.1

    def forward(self, x: Float[Tensor, "batch before height width"]) -> Float[Tensor, "batch channels height2 width2"]:
        """The block's output."""
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + (x if self.shortcut is None else self.shortcut(x)))


def small_conv(input_shape: tuple[int, ...], num_classes: int, norm: Norm) -> nn.Sequential:
    """Convolutions of 3 x 3 and stride 2 down to one pixel, each normalized before its ReLU, and a linear layer.

    Args:
        input_shape: (C, H, W) of the images.
        num_classes: Outputs.
        norm: Gives the normalization of so many channels.

    Raises:
        ValueError: Not the shape of an image.

    >>> net = small_conv((1, 14, 14), 10, nn.BatchNorm2d)
    >>> [layer.out_channels for layer in net if isinstance(layer, nn.Conv2d)]
    [16, 32, 64, 64]
    >>> net(torch.zeros(2, 1, 14, 14)).shape
    torch.Size([2, 10])
    """
    channels, height, width = _image_shape(input_shape, "small-conv")
    layers: list[nn.Module] = []
    for number in range(max(3, math.ceil(math.log2(max(height, width))))):
        wider = min(16 * 2**number, 64)
        layers += [nn.Conv2d(channels, wider, 3, 2, 1, bias=False), norm(wider), nn.ReLU()]
        channels = wider
    return _initialised(nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, num_classes)))


def residual_net(input_shape: tuple[int, ...], num_classes: int, norm: Norm) -> nn.Sequential:
    """A first convolution, residual blocks of 16, 32 and 64 channels, the mean over the image, and a linear layer.

    Args:
        input_shape: (C, H, W) of the images.
        num_classes: Outputs.
        norm: Gives the normalization of so many channels.

    Raises:
        ValueError: Not the shape of an image.

    >>> residual_net((3, 32, 32), 10, nn.BatchNorm2d)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    channels, _, _ = _image_shape(input_shape, "resnet")
    net = nn.Sequential(
        nn.Conv2d(channels, 16, 3, 1, 1, bias=False),
        norm(16),
        nn.ReLU(),
        ResidualBlock(16, 16, 1, norm),
        ResidualBlock(16, 32, 2, norm),
        ResidualBlock(32, 64, 2, norm),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, num_classes),
    )
    return _initialised(net)


def perceptron(input_shape: tuple[int, ...], num_classes: int, norm: Norm) -> nn.Sequential:
    """Three hidden layers of 64, each normalized before its ReLU.

    Args:
        input_shape: Of one example; it is flattened.
        num_classes: Outputs.
        norm: Gives the normalization of so many channels.

    >>> perceptron((4,), 3, nn.BatchNorm1d)(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """
    before = math.prod(input_shape)
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(3):
        layers += [nn.Linear(before, 64), norm(64), nn.ReLU()]
        before = 64
    return _initialised(nn.Sequential(*layers, nn.Linear(before, num_classes)))


MODELS: dict[str, Build] = {"small-conv": small_conv, "resnet": residual_net, "mlp": perceptron}


def offered_arguments(build: Callable[..., Any], offers: dict[str, Any]) -> dict[str, Any]:
    """Those of the offered arguments that a function takes by name.

    Args:
        build: A function that builds a network.
        offers: Name to value.

    Raises:
        ValueError: It needs an argument that is not offered.

    >>> offered_arguments(lambda num_classes, width=8: None, {"num_classes": 10, "norm": None})
    {'num_classes': 10}
    """
    parameters = inspect.signature(build).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(offers)
    for parameter in parameters:
        by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        needed = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        if needed and not (by_name and parameter.name in offers):
            raise ValueError(f"needs the argument {parameter.name!r}; it is offered {', '.join(offers)}")
    return {parameter.name: offers[parameter.name] for parameter in parameters if parameter.name in offers}


def without_input(model: nn.Module, example: Float[Tensor, "batch ..."]) -> tuple[str, ...]:
    """Names of the group normalizations of which each set is one value, so that beta is all that comes out of them.

    Args:
        model: Any network; it is run once on the example without gradients.
        example: A batch of inputs.

    >>> without_input(small_conv((1, 8, 8), 10, lambda c: norm_layer("instance", c)), torch.zeros(2, 1, 8, 8))
    ('7',)
    """
    found: dict[str, None] = {}
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, nn.GroupNorm):

            def look(module: nn.Module, inputs: Sequence[Tensor], name: str = name) -> None:
                if inputs[0].numel() == len(inputs[0]) * int(module.num_groups):  # type: ignore[arg-type]
                    found[name] = None

            hooks.append(module.register_forward_pre_hook(look))
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(example)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return tuple(found)


def _image_shape(shape: tuple[int, ...], model: str) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ValueError(f"model {model!r} is for images (channels, height, width); the inputs have shape {shape}")
    return shape


def _initialised(net: nn.Sequential) -> nn.Sequential:
    """He et al. 2015, for layers before a ReLU; the last layer keeps torch's own."""
    weighted = [module for module in net.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for module in weighted[:-1]:
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return net
