"""Look at what enters and leaves normalization layers while a model runs in evaluation mode, and leave no trace.

A layer that keeps running statistics can be told with which moments to normalise a call: they are put into its buffers just
before. In evaluation mode every such layer computes (x - running mean) / sqrt(running variance + eps), so this serves layers
of any kind, and dropout is off as it is when the model is used.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tenfold.normalization.inventory import channels_of, set_statistics, statistics_buffers
from tenfold.normalization.moments import PooledMoments
from tenfold.normalization.statistics import validity

Before: TypeAlias = Callable[[str, int, Callable[[], PooledMoments]], PooledMoments | None]
After: TypeAlias = Callable[[str, int, Tensor], None]


class Observation:
    """A model under observation, inside ``with``; afterwards modes and statistics are what they were, also after an error.

    Args:
        model: Any module.
        layers: Layers to observe, by name.
        before: Called with the layer's name, the number of this call in the forward pass (0 for the first), and a function
            that measures the moments of its input; returns the moments to normalise with, or None for those it has.
        after: Called with name, number and output.
    """

    def __init__(self, model: nn.Module, layers: Mapping[str, nn.Module], before: Before, after: After | None = None):
        self.model = model
        self.layers = layers
        self.before = before
        self.after = after
        self.calls: Counter[str] = Counter()

    def __enter__(self) -> Observation:
        self._modes = [(module, module.training) for module in self.model.modules()]
        kept = [buffer for layer in self.layers.values() for buffer in statistics_buffers(layer).values()]
        self._kept = [(buffer, buffer.clone()) for buffer in kept]
        self._handles: list[Any] = []
        # Modes are set here and not by eval(), which users override to keep layers frozen, or to merge weights.
        for module, _ in self._modes:
            module.training = False
        for name, layer in self.layers.items():
            self._handles.append(layer.register_forward_pre_hook(self._entering(name, layer), with_kwargs=True))
            if self.after is not None:
                self._handles.append(layer.register_forward_hook(self._leaving(name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        for module, training in self._modes:
            module.training = training
        with torch.no_grad():
            for buffer, before in self._kept:
                buffer.copy_(before)

    def begin(self) -> None:
        """A new forward pass: calls are counted from 0."""
        self.calls.clear()

    def _entering(self, name: str, layer: nn.Module) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = entering_tensor(args, kwargs)
            given = dict(zip(inspect.signature(module.forward).parameters, args, strict=False)) | kwargs
            index = self.calls[name]
            self.calls[name] += 1
            if x.ndim < 2 or x.shape[1] != channels_of(layer):
                return  # the layer has its own words for this
            chosen = self.before(
                name, index, lambda: PooledMoments.of(x, validity(x, given.get("mask"), given.get("lengths")))
            )
            if chosen is not None:
                set_statistics(layer, chosen)

        return hook

    def _leaving(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if self.after is not None:
                self.after(name, self.calls[name] - 1, output)

        return hook


def entering_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Float[Tensor, "N C *rest"]:
    """The tensor that a layer is called with, by place or by name."""
    return args[0] if args else kwargs["x"] if "x" in kwargs else kwargs["input"]
