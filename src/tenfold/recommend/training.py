"""The alternation: users given items, items given users, until the iterations are done or the loss stands still."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from tenfold.console.progress import progress
from tenfold.recommend.objective import Side, Target, cost_of_zeros, loss_by_gains, total_loss
from tenfold.recommend.solvers import Solver

HalfStep = Callable[..., np.ndarray]  # `tenfold.recommend.solvers.half_step`, or the same by other means


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
    on_iteration: Callable[[np.ndarray, np.ndarray, list[float]], None] | None = None,
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
        on_iteration: Called after each iteration with the factors of users and items, which it must not change, and the losses.
            The users' array is written over by the next iteration.

    Returns:
        Users, items, and the history.
    """
    options = {"unobserved_weight": unobserved_weight, "n_jobs": n_jobs}
    left, right, losses = user_factors, item_factors, list(history)
    del item_factors  # or the start would take memory to the end
    zeros, gains = cost_of_zeros(users, items, n_jobs), np.empty(len(items.rows))
    warm: np.ndarray | None = None if left is None else right  # random items are no start worth improving
    with progress("alternating least squares", iterations, show=verbose) as display:
        for _ in range(iterations):
            own = left is not user_factors  # what the caller gave is not written over
            left = step(right, users.rows, users.regularization, start=left, solver=solver, in_place=own, **options)
            right = step(left, items.rows, items.regularization, start=warm, solver=solver, gains=gains, **options)
            warm = right
            loss = loss_by_gains(zeros, gains, users, left)
            if loss is None:
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
            if on_iteration is not None:
                on_iteration(left, right, losses)
            if tol is not None and previous - loss <= tol * abs(previous) < math.inf:
                break
    own = left is not user_factors
    left = step(right, users.rows, users.regularization, start=left, solver="cholesky", in_place=own, **options)
    return left, right, losses
