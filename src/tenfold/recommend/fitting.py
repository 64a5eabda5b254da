"""A fit from its start to its end: begun anew or resumed, stopped by Ctrl-C, and kept iteration by iteration where that is asked.

A checkpoint holds the factors of both sides as a full iteration left them. What follows depends on these alone, so that a
run that was killed and resumed has the bits of one that was not.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from sklearn.utils import check_random_state

from tenfold.errors import InputError
from tenfold.recommend.engines import chosen_engine
from tenfold.recommend.objective import Side
from tenfold.recommend.solvers import Rows
from tenfold.recommend.spread_rows import SpreadRows
from tenfold.recommend.training import alternate
from tenfold.training import Interrupted
from tenfold.training.checkpoints import (
    checkpoint_path,
    last_checkpoint,
    list_checkpoints,
    read_checkpoint,
    write_checkpoint,
)

DESCRIBED = (
    "factors", "regularization", "alpha", "confidence", "epsilon", "unobserved_weight", "frequency_exponent", "target",
    "solver", "dtype",
)  # fmt: skip  # the parameters that a resumed run must share with the one that was stopped


START_DEVIATION = 1.0  # of the first item factors, divided by sqrt(factors)


class State(NamedTuple):
    """Where a fit is.

    Args:
        users: Their factors; None before the first half step.
        items: Their factors.
        losses: After each full iteration.
    """

    users: Float[np.ndarray, "users k"] | None
    items: Float[np.ndarray, "items k"]
    losses: list[float]


class FitCheckpoints:
    """The last full iteration of a fit, as a file in a folder.

    Args:
        folder: Made when it is needed.
        parameters: Those of the model.
        rows: The users' rows, by whose checksum other data are told.
    """

    def __init__(self, folder: Path, parameters: Mapping[str, Any], rows: Rows | SpreadRows) -> None:
        self.folder = folder
        self.described = {name: parameters[name] for name in DESCRIBED} | {"data": fingerprint(rows)}

    def write(self, state: State) -> None:
        """Writes the state, then deletes older ones."""
        path = checkpoint_path(self.folder, len(state.losses))
        older = list_checkpoints(self.folder)
        write_checkpoint(path, {"described": self.described, **state._asdict()})
        for one in older:
            if one != path:
                one.unlink(missing_ok=True)

    def read(self, resume: bool) -> State | None:
        """The state to go on from; None to start at the beginning.

        Raises:
            InputError: There is one though none was asked for, or it is of other data or parameters; they are named.
        """
        path = last_checkpoint(self.folder)
        if path is None:
            return None
        if not resume:
            raise InputError(
                "this folder holds checkpoints of an earlier run: resume it, or give another folder", path=self.folder
            )
        found = read_checkpoint(path)
        described = found.get("described", {})
        for name, value in self.described.items():
            if described.get(name) != value:
                what = (
                    "of other events"
                    if name == "data"
                    else f"with {name}={described.get(name)!r}, now {name}={value!r}"
                )
                raise InputError(f"this checkpoint was made {what}; a resumed run must be the same run", path=path)
        return State(*(found[name] for name in State._fields))


def start_factors(
    shape: tuple[int, int], given: Any = None, random_state: Any = None, dtype: str = "float32"
) -> Float[np.ndarray, "items k"]:
    """The first item factors: drawn, or those given, checked.

    Raises:
        ValueError: Given factors of another shape, or not finite.

    >>> start_factors((4, 2), random_state=0).std().round(1)
    np.float32(0.7)
    """
    if given is None:
        draw = check_random_state(random_state).standard_normal(shape)
        return (draw * (START_DEVIATION / math.sqrt(shape[1]))).astype(dtype)
    start = np.asarray(given)
    if start.shape != shape:
        raise ValueError(f"item_factors has shape {start.shape}, but (items, factors) = {shape} is needed")
    if not np.isfinite(start).all():
        raise ValueError("item_factors must be finite")
    return start.astype(dtype)


def fingerprint(rows: Rows | SpreadRows) -> int:
    """A checksum of all entries.

    >>> one, other = (Rows(np.array([0, 1]), np.array([3]), np.array([c]), 1.0) for c in (2.0, 3.0))
    >>> fingerprint(one) == fingerprint(other)
    False
    """
    if isinstance(rows, SpreadRows):
        return rows.checksum
    total = 0
    for array in (rows.indptr, rows.indices.astype(np.int64, copy=False), rows.values):
        total = zlib.crc32(np.ascontiguousarray(array).data, total)
    return total


def is_converged(losses: list[float], tol: float | None) -> bool:
    """Whether the last iteration lowered the loss by less than this share.

    >>> is_converged([10.0, 5.0], 0.1), is_converged([5.0, 4.9], 0.1)
    (False, True)
    """
    if tol is None or len(losses) < 2:
        return False
    return losses[-2] - losses[-1] <= tol * abs(losses[-2]) < math.inf


def fit_factors(
    state: State,
    users: Side,
    items: Side,
    parameters: Mapping[str, Any],
    accept: Callable[[np.ndarray, np.ndarray, list[float]], None],
    *,
    engine: str = "local",
    callback: Callable[[int, float], None] | None = None,
    checkpoints: FitCheckpoints | None = None,
    resume: bool = False,
) -> None:
    """Iterates, and hands the factors to ``accept``: at the end, or at Ctrl-C those of the last full iteration.

    Args:
        state: What to start from.
        users: Rows of users.
        items: Rows of items.
        parameters: Those of the model.
        accept: Takes the factors, users solved exactly for the final items, and the losses.
        engine: As in `chosen_engine`.
        callback: Called with the number of each finished iteration, from 0, and its loss.
        checkpoints: Where each full iteration is written; a resumed run goes on to ``iterations`` in all.
        resume: Go on from a checkpoint, if there is one.

    Raises:
        KeyboardInterrupt: Ctrl-C; the model has been handed over, if an iteration was finished.
        Interrupted: The same with checkpoints: these hold the last iteration, and nothing is handed over.
    """
    step = chosen_engine(engine, parameters["device"], parameters["solver"])
    iterations, tol = parameters["iterations"], parameters["tol"]
    saved = None if checkpoints is None else checkpoints.read(resume)
    if saved is not None:
        state, iterations = saved, max(0, iterations - len(saved.losses))
        iterations = 0 if is_converged(saved.losses, tol) else iterations
    options = {"unobserved_weight": parameters["unobserved_weight"], "n_jobs": parameters["n_jobs"]}
    begun = len(state.losses)

    def note(left: np.ndarray, right: np.ndarray, losses: list[float]) -> None:
        nonlocal state
        state = State(left, right, list(losses))
        if checkpoints is not None:
            checkpoints.write(state)
        if callback is not None:
            callback(len(losses) - 1, losses[-1])

    try:
        found = alternate(
            state.items,
            state.users,
            users,
            items,
            iterations=iterations,
            step=step,
            solver=parameters["solver"],
            target=parameters["target"],
            tol=tol,
            verbose=parameters["verbose"],
            history=state.losses,
            on_iteration=note,
            **options,
        )
    except KeyboardInterrupt as stop:
        done = f"after {len(state.losses)} of {parameters['iterations']} iterations"
        if checkpoints is not None:
            path = last_checkpoint(checkpoints.folder)
            kept = "nothing was saved" if path is None else f"resume from {path}"
            raise Interrupted(f"the fit was stopped {done}; {kept}", path) from stop
        if len(state.losses) > begun:
            left = step(state.items, users.rows, users.regularization, start=None, solver="cholesky", **options)
            accept(left, state.items, state.losses)
        raise
    accept(*found)
