"""One way for every matrix that users give: scipy's sparse formats and dense arrays become one canonical CSR array."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse


def canonical_matrix(matrix: Any, name: str, *, shape: tuple[int, int] | None = None) -> sparse.csr_array:
    """Float32 CSR with sorted columns, duplicates summed (in float64) and zeros dropped; the input is left as it was.

    Args:
        matrix: Any scipy sparse matrix or array, or a dense 2-D array; floats, integers or booleans.
        name: What it is called in errors.
        shape: The shape it must have, if that is known.

    Raises:
        ValueError: Another shape (both are named, and so is the transposed matrix), an entry that is no finite number.

    >>> canonical_matrix(sparse.coo_array(([1, 2, 0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2)), "X").toarray().tolist()
    [[0.0, 3.0], [0.0, 0.0]]
    """
    if not sparse.issparse(matrix):
        matrix = np.asarray(matrix)
        if matrix.ndim != 2:
            raise ValueError(f"{name} has shape {matrix.shape}; a matrix (users, items) is needed")
    if matrix.ndim != 2:
        raise ValueError(f"{name} has shape {matrix.shape}; a matrix (users, items) is needed")
    if matrix.dtype.kind not in "biuf":
        raise ValueError(f"{name} holds {matrix.dtype}; floats, integers or booleans are needed")
    if shape is not None and matrix.shape != shape:
        turned = "; this one is transposed" if matrix.shape == shape[::-1] else ""
        raise ValueError(f"{name} has shape {matrix.shape}, but (users, items) = {shape} is needed{turned}")
    if sparse.issparse(matrix) and matrix.format == "csr" and matrix.dtype == np.float32 and _is_canonical(matrix):
        return sparse.csr_array(matrix)  # the same three arrays
    wide = sparse.csr_array(matrix, dtype=np.float64, copy=True)
    _require_finite(wide.data, wide, name)
    wide.sum_duplicates()
    with np.errstate(over="ignore"):
        data = wide.data.astype(np.float32)
    _require_finite(data, wide, name)
    result = sparse.csr_array((data, wide.indices, wide.indptr), shape=wide.shape)
    result.eliminate_zeros()
    result.has_canonical_format = True
    return result


def _is_canonical(matrix: Any) -> bool:
    return bool(matrix.has_canonical_format and matrix.data.all() and np.isfinite(matrix.data).all())


def _require_finite(data: np.ndarray, matrix: sparse.csr_array, name: str) -> None:
    if not np.isfinite(data).all():
        entry = int(np.argmin(np.isfinite(data)))
        row = int(np.searchsorted(matrix.indptr, entry, side="right")) - 1
        raise ValueError(
            f"{name}[{row}, {matrix.indices[entry]}] = {matrix.data[entry]}; finite numbers within float32 are needed"
        )


def row_numbers(values: Any, count: int, what: str) -> np.ndarray:
    """Whole numbers from 0 to count - 1, int64.

    Raises:
        ValueError: Something else; names the first that is out of range.

    >>> row_numbers([2, 0], 3, "user")
    array([2, 0])
    """
    array = np.asarray(values)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ValueError(
            f"{what} ids must be whole numbers, not {array.dtype}; original ids are mapped by Interactions.{what}_index"
        )
    wrong = (array < 0) | (array >= count)
    if wrong.any():
        raise ValueError(f"{what} {array[wrong].flat[0]} is not one of the {count} {what}s 0 to {count - 1}")
    return array.astype(np.int64)


def rows_of_users(matrix: Any, users: np.ndarray, shape: tuple[int, int]) -> sparse.csr_array:
    """Canonical rows of the users asked for, out of all users' rows, or as given where there is one for each of them.

    Args:
        matrix: Counts, as for `canonical_matrix`.
        users: Row numbers, (requested,).
        shape: (users, items) of the model.

    Raises:
        ValueError: Another width or another number of rows; both shapes are named.
    """
    rows = canonical_matrix(np.atleast_2d(matrix) if isinstance(matrix, np.ndarray) else matrix, "X")
    if rows.shape[1] != shape[1]:
        turned = "; this one is transposed" if rows.shape == shape[::-1] else ""
        raise ValueError(f"X has shape {rows.shape}, but the model's (users, items) are {shape}{turned}")
    if rows.shape[0] == shape[0]:
        return rows[users]
    if rows.shape[0] != len(users):
        raise ValueError(
            f"X has {rows.shape[0]} rows; {len(users)} (one for each user asked for) or {shape[0]} (all users) are needed"
        )
    return rows
