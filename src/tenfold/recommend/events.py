"""Single events, as they are before a user's repeated events with one item are summed, and what they weigh."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from tenfold.recommend.identifiers import index_type


class Events(NamedTuple):
    """Single events, one a row.

    Args:
        users: Row of the matrix, (events,).
        items: Column of the matrix, (events,).
        values: float32, (events,).
        timestamps: float64, (events,), in seconds where dates were given; None where there are none.
    """

    users: Int[np.ndarray, " events"]
    items: Int[np.ndarray, " events"]
    values: Float[np.ndarray, " events"]
    timestamps: Float[np.ndarray, " events"] | None


def momentum_weights(positions: Any, a: float = 2.0, b: float = 6.0) -> Float[np.ndarray, "..."]:
    r"""Weight of the t-th show watched after the channel was last changed: :math:`e^{-(a t - b)} / (1 + e^{-(a t - b)})`.

    Hu, Koren and Volinsky 2008, section 6.1: a set left on one channel tells less about its owner's taste with each
    show. Multiply the watching time of the event by it, before `Interactions` sums.

    Args:
        positions: t, 0 or more, any shape: how many shows were on since the channel was chosen.
        a: How fast the weight falls.
        b: b / a is where it is one half; the paper has a = 2, b = 6, so that the third show counts half.

    Raises:
        ValueError: A position below zero, or no number.

    >>> momentum_weights([0, 3, 6]).round(4).tolist()
    [0.9975, 0.5, 0.0025]
    """
    t = np.asarray(positions, dtype=np.float64)
    if not (t >= 0).all():
        raise ValueError(f"positions must be 0 or more; given {float(t[~(t >= 0)].flat[0])}")
    return np.asarray(1 / (1 + np.exp(np.minimum(a * t - b, 700.0))))


def summed(events: Events, shape: tuple[int, int]) -> sparse.csr_array:
    """Users x items, float32, canonical; sums taken in float64."""
    index = index_type(max(*shape, len(events.users)))
    rows, columns = events.users.astype(index, copy=False), events.items.astype(index, copy=False)
    matrix = sparse.coo_array((events.values.astype(np.float64), (rows, columns)), shape=shape).tocsr()
    matrix.sum_duplicates()
    with np.errstate(over="ignore"):
        data = matrix.data.astype(np.float32)
    if not np.isfinite(data).all():
        raise ValueError(f"values of one user and item sum to {matrix.data[~np.isfinite(data)][0]}, beyond float32")
    result = sparse.csr_array((data, matrix.indices, matrix.indptr), shape=shape)
    result.eliminate_zeros()
    result.has_canonical_format = True
    return result


def moved(events: Events, rows: np.ndarray, columns: np.ndarray, kept: np.ndarray) -> Events:
    """Only the events marked in ``kept``, at other rows and columns."""
    times = None if events.timestamps is None else events.timestamps[kept]
    return Events(rows[kept], columns[kept], events.values[kept], times)


def event_values(given: Any) -> Float[np.ndarray, " events"]:
    """Values as float32, every one finite."""
    array = np.asarray(given)
    if array.ndim != 1:
        raise ValueError(f"values has shape {array.shape}; one number for each event, shape (events,), is needed")
    if array.size and array.dtype.kind not in "biuf":
        raise ValueError(f"values[0] = {array[0]!r} ({array.dtype}); finite numbers are needed")
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32)
    if not np.isfinite(numbers).all():
        first = int(np.argmin(np.isfinite(numbers)))
        raise ValueError(f"values[{first}] = {array[first]}; finite numbers within float32 are needed")
    return numbers


def event_times(given: Any) -> Float[np.ndarray, " events"]:
    """Time stamps as float64, dates in seconds since 1970."""
    array = np.asarray(given)
    if array.dtype.kind == "M":
        if np.isnat(array).any():
            raise ValueError(
                f"timestamps[{int(np.argmax(np.isnat(array)))}] is missing; every event needs one, or none"
            )
        return array.astype("datetime64[us]").astype(np.int64) / 1e6
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iuf"):
        raise ValueError(
            f"timestamps: shape {array.shape} of {array.dtype}; (events,) of numbers or datetime64 is needed"
        )
    times = array.astype(np.float64)
    if not np.isfinite(times).all():
        first = int(np.argmin(np.isfinite(times)))
        raise ValueError(f"timestamps[{first}] = {array[first]}; finite numbers are needed")
    return times
