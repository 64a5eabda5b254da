"""How batches of a user's loader reach a user's model: what is the input, on which device, and how many samples."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Forward: TypeAlias = Callable[[nn.Module, Any], Any]


class Reached(BaseException):
    """No error: the layer to measure was reached, and the rest of the model need not run on this batch."""


@dataclass
class Feeding:
    """Batches of a loader and the way they are fed to a model, again and again.

    Args:
        loader: The batches.
        forward: Runs a model on a batch.
        device: Where batches are moved; None leaves them.
        max_samples: Rows that are read at most.
        samples: Rows that the last pass read.
        batches: Batches that the last pass read.
        passes: How often the loader was read.
    """

    loader: Iterable[Any]
    forward: Forward
    device: torch.device | None
    max_samples: int | None
    samples: int = 0
    batches: int = 0
    passes: int = 0

    @classmethod
    def of(
        cls,
        model: nn.Module,
        loader: Iterable[Any],
        forward: Forward | None,
        device: torch.device | str | None,
        max_samples: int | None,
    ) -> Feeding:
        """With the model's device and the usual meaning of batches, where nothing else is given."""
        place = device_of(model) if device is None else torch.device(device)
        return cls(repeatable(loader), forward or feed, place, max_samples)

    def first(self) -> Feeding:
        """The same with the first batch alone."""
        batch = next(iter(self.loader), None)
        if batch is None:
            raise ValueError("the loader gave no batches")
        return Feeding([batch], self.forward, self.device, self.max_samples)

    def run(self, model: nn.Module, begin: Callable[[], None] | None = None) -> None:
        """The model on every batch, without gradients; ``begin()`` before each."""
        samples = batches = 0
        for batch, rows in batches_for(self.loader, self.device, self.max_samples):
            if begin is not None:
                begin()
            with contextlib.suppress(Reached), torch.no_grad():
                self.forward(model, batch)
            samples += rows or 0
            batches += 1
        self.samples, self.batches = samples, batches
        self.passes += 1


def repeatable(loader: Iterable[Any]) -> Iterable[Any]:
    """A loader that can be read again: one that is used up by reading (an iterator) is held in memory; a tensor is one batch."""
    if isinstance(loader, Tensor):
        return [loader]
    return list(loader) if isinstance(loader, Iterator) else loader


def batches_for(
    loader: Iterable[Any], device: torch.device | str | None, max_samples: int | None
) -> Iterator[tuple[Any, int | None]]:
    """Each batch on the device with its number of samples; the last is cut so that no more than ``max_samples`` are read."""
    if max_samples is not None and max_samples < 1:
        raise ValueError(f"max_samples={max_samples} leaves nothing to read; it must be at least 1, or None for all")
    left = max_samples
    for batch in loader:
        samples = sample_count(batch)
        if left is not None:
            if samples is None:
                raise ValueError(
                    "max_samples counts rows of tensors, and the loader's batches hold no tensor; leave it out"
                )
            if samples > left:
                rows, samples = samples, left
                batch = _first_rows(batch, rows, left)
            left -= samples
        yield batch if device is None else moved(batch, device), samples
        if left == 0:
            return


def moved(batch: Any, device: torch.device | str) -> Any:
    """Every tensor of a nested batch on the device; what is no tensor, but has a ``to``, likewise."""
    if not isinstance(batch, Tensor | Mapping | list | tuple) and hasattr(batch, "to"):
        return batch.to(device)  # batches of graphs, of tokenizers
    return _map_tensors(batch, lambda t: t.to(device, non_blocking=True))


def sample_count(batch: Any) -> int | None:
    """Rows of the first tensor in a batch that has rows; None if there is none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else None
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((count for part in parts if (count := sample_count(part)) is not None), None)


def feed(model: nn.Module, batch: Any) -> Any:
    """Call the model on a batch of a loader.

    A tensor is the input; of a tuple or list the first is (the labels follow it); of a dictionary those entries are that the
    model's ``forward`` has arguments for, or else the only one that holds floating-point numbers.

    Raises:
        ValueError: A dictionary of which no entry can be told to be the input.
    """
    if isinstance(batch, Mapping):
        parameters = inspect.signature(model.forward).parameters.values()
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return model(**batch)
        names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        named = {key: value for key, value in batch.items() if key in names}
        if named:
            return model(**named)
        floating = [v for v in batch.values() if isinstance(v, Tensor) and v.is_floating_point()]
        if len(floating) != 1:
            raise ValueError(
                f"the batch is a dictionary of {', '.join(map(repr, batch))}, none of which is an argument of the model's "
                "forward; give forward=, a function of the model and the batch"
            )
        return model(floating[0])
    if isinstance(batch, list | tuple):
        if not batch:
            raise ValueError(
                "the loader gave an empty tuple; a batch is a tensor, a tuple that begins with the input, or a dict"
            )
        return model(batch[0])
    return model(batch)


def device_of(model: nn.Module) -> torch.device | None:
    """Where the model's first parameter or buffer lies; None for a model without any."""
    return next((tensor.device for tensors in (model.parameters(), model.buffers()) for tensor in tensors), None)


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's module inside DistributedDataParallel, DataParallel or torch.compile.

    The first exchanges buffers at every forward pass, and would wait for ever for a process with fewer batches.
    """
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def _first_rows(batch: Any, rows: int, wanted: int) -> Any:
    return _map_tensors(batch, lambda t: t[:wanted] if len(t) == rows else t)


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value) if value.ndim else value
    if isinstance(value, Mapping):
        return {key: _map_tensors(part, change) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map_tensors(part, change) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(_map_tensors(part, change) for part in value)
    return value
