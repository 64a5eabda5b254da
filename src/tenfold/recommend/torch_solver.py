"""The exact half step in torch, for accelerators: rows of like length in one batch, one batched Cholesky factorisation for each.

The same systems as `tenfold.recommend.solvers.half_step`, of which this is the twin (Hu, Koren & Volinsky 2008, Eq. 4).
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tenfold.recommend.solvers import Rows

GATHERED = 2**26  # numbers of one batch: its gathered factors and its systems


def half_step(
    fixed: Float[Tensor, "items k"],
    rows: Rows,
    regularization: Float[np.ndarray, " rows"],
    *,
    unobserved_weight: float = 1.0,
    gains: Float[np.ndarray, " rows"] | None = None,
) -> Float[Tensor, "rows k"]:
    """The factors of ``rows`` given the fixed ones, on their device and in their dtype.

    Args:
        fixed: Factors of the other side, float32 or float64.
        rows: Entries of the rows.
        regularization: Of each row.
        unobserved_weight: Weight of cells without an entry.
        gains: Written: by how much each row's factors lower its cost below that of zeros.

    Raises:
        torch.linalg.LinAlgError: A system is not positive definite: no regularization and fewer rows than factors.

    >>> rows = Rows(np.array([0, 1, 1]), np.array([1]), np.array([3.0]), 1.0)
    >>> half_step(torch.eye(2, dtype=torch.float64), rows, np.ones(2))
    tensor([[0.0000, 0.7500],
            [0.0000, 0.0000]], dtype=torch.float64)
    """
    device, dtype, k = fixed.device, fixed.dtype, fixed.shape[1]
    shared = unobserved_weight * (fixed.T @ fixed)
    identity = torch.eye(k, dtype=dtype, device=device)
    result = torch.zeros((len(rows), k), dtype=dtype, device=device)
    lengths = rows.lengths
    if gains is not None:
        gains[:] = 0
    order = np.argsort(lengths, kind="stable")
    order = order[np.searchsorted(lengths[order], 1) :]  # rows without entries stay zero
    first = 0
    while first < len(order):
        # rows within a power of two of each other, as many as the memory allows
        longest = 1 << int(lengths[order[first]] - 1).bit_length()
        last = int(np.searchsorted(lengths[order], longest, side="right"))
        last = min(last, first + max(1, GATHERED // (k * (longest + k))))
        batch = order[first:last]
        place = rows.indptr[batch][:, None] + np.arange(longest)
        present = np.arange(longest) < lengths[batch][:, None]
        place = np.where(present, place, 0)
        confidences = rows.confidences(rows.values[place].astype(np.float64))
        signed = torch.from_numpy(np.where(present, confidences, 0)).to(device, dtype)
        weights = torch.where(signed != 0, signed.abs() - rows.base, 0)
        gathered = fixed[torch.from_numpy(rows.indices[place].astype(np.int64)).to(device)]
        penalty = torch.from_numpy(regularization[batch]).to(device, dtype)
        systems = shared + penalty[:, None, None] * identity + (gathered * weights[..., None]).mT @ gathered
        right = (gathered * signed.clamp(min=0)[..., None]).sum(1, keepdim=True).mT
        solved = torch.cholesky_solve(right, torch.linalg.cholesky(systems))
        result[torch.from_numpy(batch).to(device)] = solved[..., 0]
        if gains is not None:
            gains[batch] = (right * solved).sum((1, 2), dtype=torch.float64).cpu().numpy()
        first = last
    return result
