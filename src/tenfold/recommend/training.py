"""The alternation: users given items, items given users, until the iterations are done or the loss stands still."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from tenfold.console.progress import progress
from tenfold.recommend.objective import Target, total_loss
from tenfold.recommend.solvers import Rows, Solver, half_step

ENGINES = ("local", "ray")


HalfStep = Callable[..., np.ndarray]  # `tenfold.recommend.solvers.half_step`, or the same by other means


@dataclass
class Side:
    """The rows of one side and the lambda of each."""

    rows: Rows
    regularization: Float[np.ndarray, " rows"]


def chosen_engine(engine: str) -> HalfStep:
    """The half step of an engine: ``"local"``, or ``"ray"`` (extra ``ray``).

    Raises:
        ValueError: Another name.
    """
    if engine == "local":
        return half_step
    if engine == "ray":
        from tenfold.recommend.ray_engine import ray_half_step

        return ray_half_step
    raise ValueError(f"engine={engine!r} is not one of {', '.join(map(repr, ENGINES))}")


def alternate(
    item_factors: Float[np.ndarray, "items k"],
    user_factors: Float[np.ndarray, "users k"] | None,
    users: Side,
    items: Side,
    *,
    iterations: int,
    step: HalfStep,
    solver: Solver,
    unobserved_weight: float,
    target: Target,
    tol: float | None = None,
    n_jobs: int | None = None,
    verbose: bool = False,
    history: Sequence[float] = (),
    callback: Callable[[int, float], None] | None = None,
) -> tuple[Float[np.ndarray, "users k"], Float[np.ndarray, "items k"], list[float]]:
    """Full iterations from given factors, then users that solve exactly the system of the final items.

    By that last step explanations add up to scores, and folding in a row of the training gives its own factors.

    Args:
        item_factors: Factors to start from.
        user_factors: The same where training continues, else None: then the items, too, are solved from nothing at first.
        users: Rows of users.
        items: Rows of items.
        iterations: Full iterations at most.
        step: Solves a half step.
        solver: How.
        unobserved_weight: w0.
        target: Which cost is reported.
        tol: Stop when an iteration lowers the loss by less than this share.
        n_jobs: Threads.
        verbose: Show progress and loss on standard error.
        history: Losses so far; those of this call are appended to a copy.
        callback: Called with the number of each finished iteration and its loss.

    Returns:
        Users, items, and the history.
    """
    options = {"unobserved_weight": unobserved_weight, "n_jobs": n_jobs}
    left, right, losses = user_factors, item_factors, list(history)
    warm: np.ndarray | None = None if left is None else right  # random items are no start worth improving
    with progress("alternating least squares", iterations, show=verbose) as display:
        for iteration in range(iterations):
            left = step(right, users.rows, users.regularization, start=left, solver=solver, **options)
            right = step(left, items.rows, items.regularization, start=warm, solver=solver, **options)
            warm = right
            loss = total_loss(
                users.rows,
                left,
                right,
                users.regularization,
                items.regularization,
                target=target,
                unobserved_weight=unobserved_weight,
                n_jobs=n_jobs,
            ).total
            previous = losses[-1] if losses else math.inf
            losses.append(loss)
            display.advance(loss=f"{loss:.6g}")
            if callback is not None:
                callback(iteration, loss)
            if tol is not None and previous - loss <= tol * abs(previous) < math.inf:
                break
    left = step(right, users.rows, users.regularization, start=None, solver="cholesky", **options)
    return left, right, losses
