"""What remains of a normalization layer that had an activation when it has been folded away."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn


class Activation(nn.Module):
    """What remains of a folded layer that had an activation: ``activation(x + add)``.

    Args:
        name: "relu", "silu" or "gelu"; None for none.
    """

    def __init__(self, name: str | None) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Float[Tensor, "..."], add: Float[Tensor, "..."] | None = None) -> Float[Tensor, "..."]:
        """Apply it.

        Args:
            x: Any shape.
            add: Added before, of the same shape.
        """
        x = x if add is None else x + add
        return x if self.name is None else getattr(nn.functional, self.name)(x)

    def extra_repr(self) -> str:
        """For print."""
        return str(self.name)
