"""How tensors lie in memory, which of them the compiled kernels take, and where they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tenfold.normalization.kernels.entries import BFLOAT16, FLOAT32, FLOAT64
from tenfold.numerics import padded
from tenfold.runtime import parallel_rows, thread_count

Option = tuple[int, ...]  # the kernels' way to choose: by the length

KINDS: dict[torch.dtype, Option] = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float64: FLOAT64}
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
LINE = 64  # bytes of a line of the caches, to which torch aligns its tensors
LARGE = 4 << 20  # bytes of a result from which it is not expected to stay in the caches until it is read
ALONE = 1 << 21  # numbers up to which starting threads costs more than they bring
PART = 1 << 17  # numbers that a thread takes at a time


class Layout(NamedTuple):
    """How a tensor lies in memory: ``by_rows`` if the numbers of one position of all channels are contiguous."""

    by_rows: bool
    samples: int
    channels: int
    positions: int


def layout_of(x: Tensor) -> Layout | None:
    """The layout that the kernels take, or None."""
    shape = x.shape
    positions = math.prod(shape[2:])
    if x.is_contiguous():
        return Layout(positions == 1, shape[0], shape[1], positions)
    axes = len(shape)
    if axes in FORMATS and x.is_contiguous(memory_format=FORMATS[axes]):
        return Layout(True, shape[0], shape[1], positions)
    return None


def served(x: Tensor, add: Tensor | None) -> Layout | None:
    """The input's layout if the kernels can do it: on the CPU, a type and a layout that they know, some numbers."""
    if x.dtype not in KINDS or not x.is_cpu or not x.numel() or (add is not None and add.dtype != x.dtype):
        return None
    return None if is_transformed() else layout_of(x)


def is_transformed() -> bool:
    """Whether a functional transform (torch.func) is under way, which operators cannot take part in."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def is_watched() -> bool:
    """Whether somebody follows the operations: a compiler, a tracer, a dispatch mode."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    )


def like(values: Tensor, x: Tensor) -> Tensor:
    """Values in the layout of x; a copy unless they have it."""
    if values.shape != x.shape:
        raise ValueError(f"values of shape {tuple(values.shape)} do not belong to an input of shape {tuple(x.shape)}")
    if values.stride() == x.stride() and values.dtype == x.dtype:
        return values
    return torch.empty_like(x).copy_(values)


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers begin."""
    return None if tensor is None else tensor.data_ptr()


class Parameters(NamedTuple):
    """gamma and beta as the kernels take them; the tensors are kept alive here."""

    weight: Tensor
    bias: Tensor
    kind: Option

    @property
    def addresses(self) -> tuple[int, int]:
        """Of both."""
        return self.weight.data_ptr(), self.bias.data_ptr()


@lru_cache(maxsize=256)
def _constant(value: float, channels: int, dtype: torch.dtype) -> Tensor:
    return torch.full((channels,), value, dtype=dtype)


def parameter_dtype(weight: Tensor | None, bias: Tensor | None) -> torch.dtype:
    """float32 if both are, else float64."""
    narrow = all(values is None or values.dtype == torch.float32 for values in (weight, bias))
    return torch.float32 if narrow else torch.float64


def parameters(weight: Tensor | None, bias: Tensor | None, channels: int) -> Parameters:
    """One number a channel of each, in one type; 1 and 0 for None."""
    dtype = parameter_dtype(weight, bias)
    for name, values in (("weight", weight), ("bias", bias)):  # the kernels read as many numbers as there are channels
        if values is not None and values.numel() != channels:
            raise ValueError(f"{name} has shape {tuple(values.shape)}; the input has {channels} channels")
    found = []
    for values, otherwise in ((weight, 1.0), (bias, 0.0)):
        if values is None:
            values = _constant(otherwise, channels, dtype)
        elif values.numel() != channels:  # somebody's change of a layer; the kernels would read behind the end
            raise ValueError(f"gamma or beta has shape {tuple(values.shape)}; the input has {channels} channels")
        elif values.dtype != dtype or not values.is_contiguous():
            values = values.detach().to(dtype).contiguous()
        found.append(values)
    return Parameters(found[0], found[1], KINDS[dtype])


def around_caches(result: Tensor, run: int) -> Option:
    """The kernels' option ``large``: a number in it, if a result is too large for the caches and runs keep alignment."""
    if result.numel() * result.element_size() < LARGE:
        return ()
    lanes = torch.float64 if result.dtype == torch.float64 else torch.float32
    return (0,) if padded(run, str(lanes).removeprefix("torch.")) == run and result.data_ptr() % LINE == 0 else ()


def is_alone(numbers: int) -> bool:
    """Whether one thread does all the work."""
    return numbers <= ALONE or thread_count() == 1


def divided(work: Callable[[int, int], Any], parts: int, numbers: int) -> None:
    """Do all parts, in several threads where it pays."""
    if parts == 1 or is_alone(numbers):
        work(0, parts)
    else:
        parallel_rows(work, parts, block_cost=max(1.0, PART * parts / numbers), uses_blas=False)
