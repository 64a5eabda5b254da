"""The activations that a normalization layer can apply at once, by name."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

Activation = Literal["relu", "silu", "gelu"]
ACTIVATIONS: tuple[str, ...] = ("relu", "silu", "gelu")


def check_activation(name: str | None) -> None:
    """Refuse an unknown activation.

    Raises:
        ValueError: Neither None nor one of ``ACTIVATIONS``.
    """
    if name is not None and name not in ACTIVATIONS:
        raise ValueError(f"activation={name!r} is not None or one of {', '.join(map(repr, ACTIVATIONS))}")


def activated(x: Float[Tensor, "*shape"], name: str | None) -> Float[Tensor, "*shape"]:
    """The activation of a name: max(x, 0), x sigmoid(x), or x Phi(x) with the normal distribution function.

    >>> activated(torch.tensor([-1.0, 2.0]), "relu")
    tensor([0., 2.])
    """
    check_activation(name)
    if name == "relu":
        return torch.relu(x)
    if name == "silu":
        return functional.silu(x)
    return functional.gelu(x) if name == "gelu" else x
