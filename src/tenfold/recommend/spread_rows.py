"""Rows whose entries lie in blocks on the nodes of a cluster, and not on the machine that drives the fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

LossSums = Callable[
    ["SpreadRows", Float[np.ndarray, "rows k"], Float[np.ndarray, "items k"]], list[tuple[float, float]]
]


@dataclass(frozen=True, eq=False)
class SpreadRows:
    """What the driver knows of such rows; it stands for `tenfold.recommend.solvers.Rows`.

    Args:
        edges: First row of each block, and the number of rows at the end.
        parts: A reference to each block: (indptr, indices, values, base, slope, offset).
        lengths: Entries of each row.
        checksum: Of all entries.
        sums: Has the blocks' nodes sum ``c (p - s)^2`` and ``s^2`` over their entries, given factors of rows and columns.
    """

    edges: Int[np.ndarray, " edges"]
    parts: list[Any]
    lengths: Int[np.ndarray, " rows"]
    checksum: int
    sums: LossSums

    def __len__(self) -> int:
        return len(self.lengths)
