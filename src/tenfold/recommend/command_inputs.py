"""From what a command was given to events, a model, and places in it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np

from tenfold.errors import InputError
from tenfold.recommend.als import ImplicitALS
from tenfold.recommend.data import PARQUET
from tenfold.recommend.identifiers import require_ids
from tenfold.recommend.interactions import Interactions


def read_events(
    data: Path, user: str | None, item: str | None, value: str | None, time: str | None, *, undated: bool = False
) -> Interactions:
    """The events; without their time stamps, and so in less memory, where nobody asks for these."""
    events = Interactions.from_csv(data, user=user, item=item, value=value, timestamp=time)
    return Interactions.from_matrix(events.matrix, events.user_ids, events.item_ids) if undated else events


def is_parquet(data: Path) -> bool:
    """Whether it is a Parquet file by its name, or a folder (of such files)."""
    return data.name.lower().endswith(PARQUET) or data.is_dir()


def prepared(events: Interactions, min_user: int, min_item: int, half_life: float | None) -> Interactions:
    """Events weighted by age, without rare users and items."""
    if half_life is not None:
        events = events.decay(timedelta(days=half_life))
    return events.minimum_counts(user=min_user, item=min_item) if min_user > 1 or min_item > 1 else events


def load_model(model: Path) -> tuple[ImplicitALS, np.ndarray, np.ndarray]:
    """The model and the ids of its users and items, in the order of its factors."""
    fitted = ImplicitALS.from_pretrained(model)
    users = fitted.user_ids_ if getattr(fitted, "user_ids_", None) is not None else np.arange(len(fitted.user_factors_))
    items = fitted.item_ids_ if getattr(fitted, "item_ids_", None) is not None else np.arange(len(fitted.item_factors_))
    return fitted, users, items


def place_of(ids: np.ndarray, wanted: str, kind: str) -> int:
    """The place of an id that was written as text.

    Raises:
        InputError: It is not there, or no integer where ids are integers.
    """
    if ids.dtype.kind == "i":
        if not wanted.lstrip("-").isdecimal():
            raise InputError(f"{kind} {wanted!r} is no integer, as the {kind} ids are (such as {ids[0].item()})")
        return int(require_ids(ids, [int(wanted)], kind)[0])
    return int(require_ids(ids, [wanted], kind)[0])
