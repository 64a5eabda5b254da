"""Original ids, integers or strings, and the rows and columns that stand for them: sorted ids, found by bisection."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int, Int64, Shaped

from tenfold.errors import InputError

LARGEST_TABLE = 2**31  # bytes that the table of distinct string ids may take; one endless id widens all of them


def encode_ids(values: Any, name: str) -> tuple[Shaped[np.ndarray, " ids"], Int[np.ndarray, " events"]]:
    """Distinct ids in ascending order, and for each value the position of its id.

    Args:
        values: One id an event: integers or strings, in an array, list or series.
        name: What the values are called in errors.

    Raises:
        ValueError: Ids that are neither integers nor strings, missing or empty ones; the first is named.

    >>> encode_ids(["bob", "ann", "bob"], "users")
    (array(['ann', 'bob'], dtype='<U3'), array([1, 0, 1], dtype=int32))
    """
    ids = as_ids(values, name)
    if ids.dtype.kind == "U":
        distinct, codes = np.unique(ids, return_inverse=True)
    else:
        distinct, codes = _distinct_integers(ids)
    return distinct, codes.astype(index_type(len(distinct)), copy=False)


def as_ids(values: Any, name: str) -> Shaped[np.ndarray, " events"]:
    """The ids as int64 or as numpy strings, (events,), every one checked."""
    if isinstance(values, list | tuple):  # numpy would turn [1, "a"] into strings
        array = np.empty(len(values), dtype=object)
        array[:] = values
    else:
        array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}; one id for each event, shape (events,), is needed")
    if array.dtype.kind == "T":
        array = array.astype(object)
    if array.dtype.kind == "O":
        array = _from_objects(array, name)
    if array.dtype.kind in "iu":
        if array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
            raise ValueError(f"{name} holds {array.max()}; integer ids must be below 2**63")
        return array.astype(np.int64, copy=False)
    if array.dtype.kind == "U":
        if array.size and not (lengths := np.strings.str_len(array)).all():
            raise ValueError(f"{name}[{int(np.argmin(lengths))}] is an empty string; every event needs an id")
        return array
    shown = f"; {name}[0] is {array[0]!r}" if array.size else ""
    raise ValueError(f"{name} holds {array.dtype}{shown}; ids are integers or strings")


def find_ids(ids: Shaped[np.ndarray, " ids"], wanted: Any, name: str) -> Int64[np.ndarray, " wanted"]:
    """Position of each wanted id in `ids` (in any order, no two alike); -1 where it is not there.

    Raises:
        ValueError: Strings looked up among integers, or the other way round.
    """
    values = as_ids(wanted, name)
    if not values.size:
        return np.empty(0, dtype=np.int64)
    if values.dtype.kind != ids.dtype.kind and ids.size:
        kinds = {"U": "strings", "i": "integers"}
        raise ValueError(
            f"{name} are {kinds[values.dtype.kind]} (such as {values[0].item()!r}), but the known ids are "
            f"{kinds[ids.dtype.kind]} (such as {ids[0].item()!r})"
        )
    if not ids.size:
        return np.full(values.size, -1, dtype=np.int64)
    order = None if bool((ids[:-1] < ids[1:]).all()) else np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids, values, sorter=order), len(ids) - 1)
    found = place if order is None else order[place]
    return np.where(ids[found] == values, found, -1).astype(np.int64)


def require_ids(ids: Shaped[np.ndarray, " ids"], wanted: Any, kind: str) -> Int64[np.ndarray, " wanted"]:
    """Position of each wanted id; every one must be there.

    Raises:
        InputError: Names the first id that is unknown and how many are.
    """
    found = find_ids(ids, wanted, f"{kind} ids")
    if (found < 0).any():
        missing = np.flatnonzero(found < 0)
        first = as_ids(wanted, kind)[missing[0]].item()
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(f"{kind} {first!r}{more} is not among the {len(ids)} known {kind}s")
    return found


def index_type(count: int) -> np.dtype[Any]:
    """The narrower of int32 and int64 that counts so far."""
    return np.dtype(np.int32 if count < 2**31 else np.int64)


def string_table(names: list[str], name: str) -> Shaped[np.ndarray, " names"]:
    """A numpy array of strings, refused where one of them would make it huge."""
    longest = max(names, key=len, default="")
    if 4 * len(longest) * len(names) > LARGEST_TABLE:
        raise ValueError(
            f"{name} holds an id of {len(longest)} characters ({longest[:30]!r}...) among {len(names)}; use shorter ids"
        )
    return np.array(names, dtype=np.str_)


def _from_objects(array: np.ndarray, name: str) -> np.ndarray:
    values = array.tolist()
    if all(isinstance(value, str) for value in values):
        for position, value in enumerate(values):
            if value.endswith("\0"):  # numpy cuts it off, and two ids would become one
                raise ValueError(f"{name}[{position}] = {value!r} ends in a NUL character")
        return string_table(values, name)
    integer = isinstance(values[0], int | np.integer) and not isinstance(values[0], bool | np.bool_)
    kind = (int, np.integer) if integer else (str,)
    for position, value in enumerate(values):
        if not isinstance(value, kind) or isinstance(value, bool | np.bool_):
            others = f", the first is {values[0]!r}" if position else ""
            raise ValueError(f"{name}[{position}] = {value!r}{others}; ids are all integers or all strings")
    if not all(-(2**63) <= value < 2**63 for value in values):
        raise ValueError(f"{name} holds an integer beyond 64 bits; give such ids as strings")
    return np.array(values, dtype=np.int64)


def _distinct_integers(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """np.unique with the inverse; by marking what is present where the range is no wider than a few times the events."""
    if not values.size:
        return values, values
    low, span = int(values.min()), int(values.max()) - int(values.min()) + 1
    if span > 4 * values.size + 1024:
        distinct, codes = np.unique(values, return_inverse=True)
        return distinct, codes
    present = np.zeros(span, dtype=np.bool_)
    shifted = values - low
    present[shifted] = True
    codes = np.cumsum(present, dtype=index_type(span)) - 1
    return np.flatnonzero(present) + low, codes[shifted]
