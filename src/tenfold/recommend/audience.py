"""The users that a fitted model serves: those it was trained on, and new ones whose events are given later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int64, Shaped
from scipy import sparse

from tenfold.errors import InputError
from tenfold.recommend.als import ImplicitALS
from tenfold.recommend.identifiers import as_ids, find_ids
from tenfold.recommend.interactions import Interactions


class Audience:
    """Users by their original ids, with their vectors and what they had.

    Args:
        model: Fitted.
        user_ids: Id of each of its users, (users,).
        item_ids: Id of each of its items, (items,).
        events: What users had; of users that the model does not know, too. Items that it does not know are left out.
        refresh: Find the vectors of all users in ``events`` from these, not only those of new users.

    Attributes:
        everyone: All ids: the model's users, then new ones.
        unknown_items: How many items of ``events`` the model does not know.

    Raises:
        ValueError: Ids of events are strings where the model's are integers, or the other way round.
        InputError: The events have no item of the model.
    """

    def __init__(
        self,
        model: ImplicitALS,
        user_ids: Shaped[np.ndarray, " users"],
        item_ids: Shaped[np.ndarray, " items"],
        events: Interactions | None = None,
        *,
        refresh: bool = False,
    ) -> None:
        self.model, self.user_ids, self.refresh = model, user_ids, refresh
        self.event_users = user_ids[:0]
        self.matrix = sparse.csr_array((0, len(item_ids)), dtype=np.float32)
        self.everyone, self.unknown_items = user_ids, 0
        if events is not None:
            known = find_ids(item_ids, events.item_ids, "item ids") >= 0
            self.unknown_items = int((~known).sum())
            if not known.any():
                raise InputError(
                    f"no item of the events (such as {events.item_ids[0].item()!r}) is among the model's "
                    f"(such as {item_ids[0].item()!r})"
                )
            aligned = events.align(item_ids=item_ids, unknown="drop") if self.unknown_items else None
            self.matrix = (aligned or events.align(item_ids=item_ids)).matrix
            self.event_users = events.user_ids
            new = find_ids(user_ids, events.user_ids, "user ids") < 0
            self.everyone = np.concatenate([user_ids, events.user_ids[new]])

    def require(
        self, ids: Shaped[np.ndarray, " ids"], path: Path | None = None, lines: Sequence[int] | None = None
    ) -> None:
        """Refuses ids that are neither the model's nor in the events.

        Raises:
            InputError: Names the first one, and its line.
        """
        unknown = (find_ids(self.user_ids, ids, "user ids") < 0) & (find_ids(self.event_users, ids, "user ids") < 0)
        if unknown.any():
            place = int(np.argmax(unknown))
            raise InputError(
                f"user {as_ids(ids, 'user ids')[place].item()!r} is neither among the {len(self.user_ids)} of the model "
                "nor in the events given; give events of new users",
                path=path,
                line=None if lines is None else lines[place],
            )

    def vectors(self, ids: Shaped[np.ndarray, " ids"]) -> tuple[Float[np.ndarray, "ids k"], sparse.csr_array]:
        """Vectors of users and the items they had, (ids, items); the model's own vectors, or folded in."""
        known = find_ids(self.user_ids, ids, "user ids")
        row = find_ids(self.event_users, ids, "user ids")
        seen = sparse.csr_array((len(ids), self.matrix.shape[1]), dtype=np.float32)
        if (row >= 0).any():
            seen = self.matrix[np.maximum(row, 0)]
            if (row < 0).any():
                seen = sparse.csr_array(sparse.diags_array((row >= 0).astype(np.float32)) @ seen)
                seen.eliminate_zeros()
        factors = self.model.user_factors_[np.maximum(known, 0)]
        folded = (row >= 0) & ((known < 0) | self.refresh)
        if folded.any():
            factors[folded] = self.model.fold_in_users(seen[np.flatnonzero(folded)])
        factors[(known < 0) & (row < 0)] = 0
        return factors, seen

    def lists(
        self, ids: Shaped[np.ndarray, " ids"], number: int, *, exclude_seen: bool = True
    ) -> tuple[Int64[np.ndarray, "ids number"], Float[np.ndarray, "ids number"]]:
        """The best items of each user, -1 where there is none; users of whom nothing is known get none."""
        factors, seen = self.vectors(ids)
        items, scores = self.model.recommend_for_factors(factors, seen if exclude_seen else None, number)
        items[~factors.any(axis=1)] = -1
        return items, scores

    def explain(self, row: int, item: int) -> tuple[float, list[tuple[int, float]]]:
        """The score of an item for the user of a row of the events, and (item, contribution) of each of the user's items."""
        if not self.matrix[[row]].nnz:
            raise InputError(
                f"user {self.event_users[row].item()!r} has no item of the model: there is nothing to explain"
            )
        found = self.model.explain(0, item, self.matrix[[row]])
        return found.total, [(int(i), float(c)) for i, c in zip(found.items, found.contributions, strict=True)]
