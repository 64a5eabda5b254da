"""How tensors lie in memory, which of them the compiled kernels take, and their memory as arrays of NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tenfold.numerics import padded
from tenfold.runtime import parallel_rows, thread_count

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
LINE = 64  # bytes of a line of the caches, to which torch aligns its tensors
LARGE = 8 << 20  # bytes of a result from which it is not expected to stay in the caches until it is read
ALONE = 1 << 19  # numbers up to which starting threads costs more than they bring
PART = 1 << 17  # numbers that a thread takes at a time

Array = np.ndarray[Any, np.dtype[Any]]


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
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if x.dim() in formats and x.is_contiguous(memory_format=formats[x.dim()]):
        return Layout(True, shape[0], shape[1], positions)
    return None


def served(x: Tensor, add: Tensor | None) -> bool:
    """Whether the kernels can do it: on the CPU, a floating type they know, a layout they know, some numbers."""
    return (
        x.device.type == "cpu"
        and x.dtype in DTYPES
        and x.numel() > 0
        and layout_of(x) is not None
        and (add is None or add.dtype == x.dtype)
    )


def like(values: Tensor, x: Tensor) -> Tensor:
    """Values in the layout of x; a copy unless they have it."""
    if values.stride() == x.stride() and values.dtype == x.dtype:
        return values
    return torch.empty_like(x).copy_(values)


def memory(tensor: Tensor) -> Array:
    """The numbers of a dense tensor in the order of memory; bfloat16 as uint16."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else flat.numpy()


def precision(x: Tensor) -> Any:
    """The type of arithmetic on a tensor's numbers."""
    return np.float64 if x.dtype == torch.float64 else np.float32


def parameter(values: Tensor | None, otherwise: float, channels: int) -> Array:
    """One number a channel in float64."""
    if values is None:
        return np.full(channels, otherwise)
    numbers: Array = values.detach().double().contiguous().numpy()
    return numbers


def around_caches(result: Tensor, run: int) -> tuple[int, ...]:
    """The kernels' option ``large``: a number in it, if a result is too large for the caches and runs keep alignment."""
    size = result.numel() * result.element_size()
    fits = padded(run, precision(result)) == run and result.data_ptr() % LINE == 0
    return (0,) if size >= LARGE and fits else ()


def divided(work: Callable[[int, int], Any], parts: int, numbers: int) -> None:
    """Do all parts, in several threads where it pays."""
    if numbers <= ALONE or thread_count() == 1:
        work(0, parts)
    else:
        parallel_rows(work, parts, block_cost=max(1.0, PART * parts / numbers), uses_blas=False)
