"""What users did with items, as the sparse matrix that collaborative filtering wants, without losing the original ids.

Rows are users, columns items, both in ascending order of their ids, so that the order of a file's lines changes nothing.
Events with time stamps are kept one by one: they can be weighted by age before a user's repeated events with one item are
summed. Hu, Koren and Volinsky 2008, section 3, call the values r_ui: how often, how long, how much.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

import numpy as np
from jaxtyping import Float, Int64, Shaped

from tenfold.recommend import splits
from tenfold.recommend.events import Events, event_times, event_values, moved, summed
from tenfold.recommend.identifiers import encode_ids, find_ids, require_ids
from tenfold.recommend.matrices import canonical_matrix


class Interactions:
    """Users by items, with the ids they came with.

    Args:
        users: One id an event, integers or strings, (events,).
        items: One id an event, integers or strings, (events,).
        values: How much each event counts, (events,); 1 if None. Negative values mean dislike. A user's values for one
            item are summed (in float64); sums of zero are no interaction, but their user and item keep row and column.
        timestamps: When each event happened, (events,): numbers in any unit, or datetime64 (kept as seconds since 1970).

    Raises:
        ValueError: No events, arrays of different lengths, ids that are neither integers nor strings, values or time
            stamps that are no finite numbers; the first at fault is named.

    >>> plays = Interactions(["ann", "bob", "ann", "ann"], [7, 7, 3, 7], [1, 2, 1, 4])
    >>> plays
    Interactions(2 users x 2 items, 3 entries)
    >>> plays.user_ids.tolist(), plays.item_ids.tolist(), plays.matrix.toarray().tolist()
    (['ann', 'bob'], [3, 7], [[1.0, 5.0], [0.0, 2.0]])
    """

    def __init__(self, users: Any, items: Any, values: Any = None, timestamps: Any = None) -> None:
        user_ids, user_codes = encode_ids(users, "users")
        item_ids, item_codes = encode_ids(items, "items")
        numbers = np.ones(len(user_codes), np.float32) if values is None else event_values(values)
        times = None if timestamps is None else event_times(timestamps)
        for name, column in (("items", item_codes), ("values", numbers), ("timestamps", times)):
            if column is not None and len(column) != len(user_codes):
                raise ValueError(
                    f"users has {len(user_codes)} entries, {name} {len(column)}; one for each event is needed"
                )
        if not len(user_codes):
            raise ValueError("there are no events; at least one interaction is needed")
        self._set(Events(user_codes, item_codes, numbers, times), user_ids, item_ids)

    def _set(
        self, events: Events, user_ids: Shaped[np.ndarray, " users"], item_ids: Shaped[np.ndarray, " items"]
    ) -> None:
        self.user_ids, self.item_ids = user_ids, item_ids
        self.matrix = summed(events, (len(user_ids), len(item_ids)))
        # Without time stamps the matrix says all, and holds it in half the memory.
        self._dated = events if events.timestamps is not None else None

    @classmethod
    def from_codes(
        cls, events: Events, user_ids: Shaped[np.ndarray, " users"], item_ids: Shaped[np.ndarray, " items"]
    ) -> Interactions:
        """Interactions whose rows and columns are known already; events need not name every one of them."""
        made = cls.__new__(cls)
        made._set(events, user_ids, item_ids)
        return made

    @classmethod
    def from_matrix(cls, matrix: Any, user_ids: Any = None, item_ids: Any = None) -> Interactions:
        """From users x items, sparse or dense; ids are the numbers of rows and columns unless given.

        Raises:
            ValueError: Not 2-D, not finite, ids that are not one for each row or column, or twice the same.
        """
        found = canonical_matrix(matrix, "matrix")
        ids = []
        for name, given, count in (("user_ids", user_ids, found.shape[0]), ("item_ids", item_ids, found.shape[1])):
            distinct, codes = encode_ids(np.arange(count) if given is None else given, name)
            if len(codes) != count or len(distinct) != count:
                raise ValueError(
                    f"{name} holds {len(codes)} ids, {len(distinct)} of them distinct, for a matrix of shape {found.shape}"
                )
            ids.append((distinct, codes))
        cells = found.tocoo()
        (row_ids, row_codes), (column_ids, column_codes) = ids
        return cls.from_codes(
            Events(row_codes[cells.row], column_codes[cells.col], cells.data, None), row_ids, column_ids
        )

    @classmethod
    def from_csv(
        cls,
        path: str | os.PathLike[str],
        *,
        user: str | None = None,
        item: str | None = None,
        value: str | None = None,
        timestamp: str | None = None,
    ) -> Interactions:
        """From a file, ``.csv``, ``.tsv`` (either also ``.gz``) or ``.parquet``; `tenfold.recommend.data` does the work.

        Args:
            path: The file.
            user: Name of the column of user ids; found among usual names if None, as are the others.
            item: Name of the column of item ids.
            value: Name of the column of values; every event counts 1 where there is none.
            timestamp: Name of the column of time stamps, numbers or ISO dates.

        Raises:
            InputError: Names the file and line of what cannot be read, or the columns there are.
        """
        return _reader("read_interactions")(path, user=user, item=item, value=value, timestamp=timestamp)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        user: str | None = None,
        item: str | None = None,
        value: str | None = None,
        timestamp: str | None = None,
    ) -> Interactions:
        """From a frame of polars (lazy or not) or pandas; columns as for `from_csv`.

        Raises:
            InputError: Names the row and column of what cannot be used, or the columns there are.
        """
        return _reader("frame_interactions")(frame, user=user, item=item, value=value, timestamp=timestamp)

    def __repr__(self) -> str:
        dated = ", dated" if self._dated is not None else ""
        return f"Interactions({self.shape[0]} users x {self.shape[1]} items, {self.matrix.nnz} entries{dated})"

    @property
    def shape(self) -> tuple[int, int]:
        """(users, items)."""
        return (len(self.user_ids), len(self.item_ids))

    @property
    def events(self) -> Events:
        """Every event, where they have time stamps; else one for each entry of the matrix."""
        if self._dated is not None:
            return self._dated
        cells = self.matrix.tocoo()
        return Events(cells.row, cells.col, cells.data, None)

    @property
    def last_times(self) -> Float[np.ndarray, " entries"] | None:
        """Time of the latest event of each entry of the matrix, in the order of ``matrix.data``; None without stamps."""
        if self._dated is None or self._dated.timestamps is None:
            return None
        keys = self._dated.users.astype(np.int64) * self.shape[1] + self._dated.items
        order = np.argsort(keys)
        keys = keys[order]
        start = np.flatnonzero(np.diff(keys, prepend=-1))
        if not len(start):
            return np.empty(0)
        latest = np.maximum.reduceat(self._dated.timestamps[order], start)
        if len(start) == self.matrix.nnz:
            return latest
        cells = self.matrix.tocoo()  # entries that sum to zero are gone
        return latest[np.isin(keys[start], cells.row.astype(np.int64) * self.shape[1] + cells.col)]

    def user_index(self, ids: Any) -> Int64[np.ndarray, " ids"] | int:
        """Rows of users, int64; of one user, an int.

        Raises:
            InputError: An id that was never seen, named; strings where ids are integers, or the other way round.

        >>> Interactions(["ann", "bob"], [1, 2]).user_index("bob")
        1
        """
        return _index(self.user_ids, ids, "user")

    def item_index(self, ids: Any) -> Int64[np.ndarray, " ids"] | int:
        """Columns of items, as `user_index`."""
        return _index(self.item_ids, ids, "item")

    def decay(self, half_life: float | timedelta, *, now: float | None = None) -> Interactions:
        r"""Values that halve with age: :math:`r\, 2^{-(\text{now} - t) / \text{half\_life}}`, event by event.

        Args:
            half_life: In the unit of the time stamps (seconds where dates were given), or a timedelta for seconds.
            now: The time that keeps its full value; that of the last event if None.

        Raises:
            ValueError: No time stamps, a half-life that is not positive, events later than ``now``.

        >>> visits = Interactions([1, 1, 1], [5, 5, 6], timestamps=[0.0, 10.0, 20.0])
        >>> visits.decay(half_life=10).matrix.toarray().tolist()  # 1/4 + 1/2, and 1
        [[0.75, 1.0]]
        """
        if self._dated is None or self._dated.timestamps is None:
            raise ValueError("decay needs time stamps; these interactions have none")
        length = half_life.total_seconds() if isinstance(half_life, timedelta) else float(half_life)
        if not (np.isfinite(length) and length > 0):
            raise ValueError(f"half_life={half_life!r} must be positive and finite")
        times = self._dated.timestamps
        end = float(times.max()) if now is None else float(now)
        if not end >= times.max():
            raise ValueError(f"now={now!r} lies before the last event at {times.max()!r}")
        weight = np.exp2((times - end) / length)
        values = (self._dated.values * weight).astype(np.float32)
        return Interactions.from_codes(self._dated._replace(values=values), self.user_ids, self.item_ids)

    def binarize(self, threshold: float | None = None) -> Interactions:
        """Entries of at least ``threshold`` (above zero if None) become 1, others none; time stamps: each entry's latest.

        >>> Interactions([1, 1], [5, 6], [3.5, 4.0]).binarize(4).matrix.toarray().tolist()
        [[0.0, 1.0]]
        """
        data = self.matrix.data
        kept = data > 0 if threshold is None else data >= threshold
        cells, times = self.matrix.tocoo(), self.last_times
        events = Events(
            cells.row[kept],
            cells.col[kept],
            np.ones(int(kept.sum()), np.float32),
            None if times is None else times[kept],
        )
        return Interactions.from_codes(events, self.user_ids, self.item_ids)

    def minimum_counts(self, *, user: int = 1, item: int = 1) -> Interactions:
        """Only users with at least ``user`` items and items with at least ``item`` users, both counted in what remains.

        Args:
            user: Least number of different items of a user.
            item: Least number of different users of an item.

        Raises:
            ValueError: Nothing remains, or a count that is negative.

        >>> Interactions([1, 1, 2, 2, 3], [5, 6, 5, 6, 7]).minimum_counts(user=2, item=2)
        Interactions(2 users x 2 items, 4 entries)
        """
        for name, count in (("user", user), ("item", item)):
            if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
                raise ValueError(f"{name}={count!r} must be a whole number, 0 or more")
        rows, columns = self.matrix.tocoo().row, self.matrix.tocoo().col
        users, items = np.ones(self.shape[0], bool), np.ones(self.shape[1], bool)
        while True:
            fewer_users = users & (np.bincount(rows, minlength=len(users)) >= user)
            fewer_items = items & (np.bincount(columns, minlength=len(items)) >= item)
            if (fewer_users == users).all() and (fewer_items == items).all():
                break
            users, items = fewer_users, fewer_items
            kept = users[rows] & items[columns]
            rows, columns = rows[kept], columns[kept]
        if not (len(rows) and users.any() and items.any()):
            raise ValueError(f"minimum counts of {user} items a user and {item} users an item leave nothing")
        return self._selected(users, items)

    def align(self, *, user_ids: Any = None, item_ids: Any = None, unknown: str = "error") -> Interactions:
        """The same events under other ids, such as those of a fitted model: its rows and columns in its order.

        Args:
            user_ids: Ids of the new rows; the own ones if None.
            item_ids: Ids of the new columns; the own ones if None.
            unknown: ``"error"``, or ``"drop"`` for events whose user or item is not among the new ids.

        Raises:
            InputError: An id that is not among the new ones, named.
            ValueError: The new ids are not distinct, or ``unknown`` is neither.

        >>> Interactions(["bob"], ["tea"]).align(item_ids=["rum", "tea"]).matrix.toarray().tolist()
        [[0.0, 1.0]]
        """
        if unknown not in ("error", "drop"):
            raise ValueError(f"unknown={unknown!r} is neither 'error' nor 'drop'")
        events = self.events
        places, ids = [], []
        for kind, own, given in (("user", self.user_ids, user_ids), ("item", self.item_ids, item_ids)):
            new = own if given is None else _distinct(given, f"{kind}_ids")
            places.append(require_ids(new, own, kind) if unknown == "error" else find_ids(new, own, f"{kind} ids"))
            ids.append(new)
        rows, columns = places[0][events.users], places[1][events.items]
        kept = (rows >= 0) & (columns >= 0)
        return Interactions.from_codes(moved(events, rows, columns, kept), ids[0], ids[1])

    def leave_one_out(
        self, *, latest: bool = False, random_state: int | np.random.Generator | None = None
    ) -> splits.Split:
        """One entry of each user with two or more is held out; see `tenfold.recommend.splits.leave_one_out`."""
        times = self.last_times if latest else None
        if latest and times is None:
            raise ValueError("latest=True needs time stamps; these interactions have none")
        return splits.leave_one_out(self.matrix, times=times, random_state=random_state)

    def hold_out(self, fraction: float = 0.2, *, random_state: int | np.random.Generator | None = None) -> splits.Split:
        """A random part of each user's entries is held out; see `tenfold.recommend.splits.hold_out`."""
        return splits.hold_out(self.matrix, fraction, random_state=random_state)

    def split_by_time(
        self, fraction: float | None = None, *, at: float | None = None, keep_repeats: bool = False
    ) -> splits.Split:
        """Events before and after one moment; see `tenfold.recommend.splits.split_by_time`."""
        if self._dated is None or self._dated.timestamps is None:
            raise ValueError("a split by time needs time stamps; these interactions have none")
        moment = splits.cut_time(self._dated.timestamps, fraction, at)
        late = self._dated.timestamps >= moment
        parts = [summed(moved(self._dated, *self._dated[:2], kept), self.shape) for kept in (~late, late)]
        return splits.split_by_time(parts[0], parts[1], keep_repeats=keep_repeats)

    def strong_generalization(
        self,
        held_out_users: int | float,
        fold_in: float = 0.8,
        random_state: int | np.random.Generator | None = None,
    ) -> splits.StrongSplit:
        """Users that training never sees; see `tenfold.recommend.splits.strong_generalization`."""
        return splits.strong_generalization(self.matrix, held_out_users, fold_in, random_state)

    def _selected(self, users: np.ndarray, items: np.ndarray) -> Interactions:
        """Only the rows and columns marked True."""
        events = self.events
        new_rows, new_columns = np.cumsum(users) - 1, np.cumsum(items) - 1
        kept = users[events.users] & items[events.items]
        chosen = moved(events, new_rows[events.users], new_columns[events.items], kept)
        return Interactions.from_codes(chosen, self.user_ids[users], self.item_ids[items])


def _reader(name: str) -> Callable[..., Interactions]:
    """A function of the module that reads files, looked up only when it is used: methods know nothing of files."""
    found: Callable[..., Interactions] = getattr(import_module("tenfold.recommend.data"), name)
    return found


def _index(ids: np.ndarray, wanted: Any, kind: str) -> Int64[np.ndarray, " ids"] | int:
    if isinstance(wanted, str | int | np.integer | np.str_):
        return int(require_ids(ids, [wanted], kind)[0])
    return require_ids(ids, wanted, kind)


def _distinct(given: Any, name: str) -> np.ndarray:
    distinct, codes = encode_ids(given, name)
    if len(distinct) != len(codes):
        repeated = distinct[np.bincount(codes).argmax()]
        raise ValueError(f"{name} holds {repeated.item()!r} more than once")
    ordered = np.empty_like(distinct)
    ordered[:] = distinct[codes]
    return ordered
