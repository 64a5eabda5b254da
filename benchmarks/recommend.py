"""Alternating least squares for implicit feedback: Tenfold beside implicit and irspack, on synthetic plays.

The matrices have the shapes of MovieLens 1M and 20M and the like: log-normal activity of users (20 items at least),
log-normal popularity of items, groups of taste. All contestants get the same confidences and start from small random
factors of their own. The threads that the harness gives are used by all. irspack's cost is scaled otherwise than
implicit's: it does the same work on the same entries, and its losses are not compared.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from benchmarks.case import Case, Peer

REGULARIZATION = 5.0
SHAPES = {
    "ML-1M": (6_040, 3_706, 1_150_000),
    "ML-20M": (138_493, 26_744, 23_000_000),
    "wide": (1_500, 1_100, 340_000),  # most fall together: users have 60 items on average
}
GROUPS = 60


def synthetic(users: int, items: int, draws: int, least: int = 20) -> Any:
    """Plays (1 to 5) as float32 CSR; ``draws`` with repetition, of which some fall together."""
    import numpy as np
    from scipy import sparse

    rng = np.random.default_rng(0)
    degree = np.exp(rng.normal(0, 1.1, users))
    degree = np.minimum((least + degree * (draws / users - least) / degree.mean()).astype(int), items // 3)
    popularity = np.exp(rng.normal(0, 2, items))
    group = rng.integers(0, GROUPS, items)
    members = [np.flatnonzero(group == g) for g in range(GROUPS)]
    row = np.repeat(np.arange(users), degree)
    own = rng.integers(0, GROUPS, (users, 4))
    chosen = own[row, rng.integers(0, 4, len(row))]
    chosen[rng.random(len(row)) < 0.25] = -1  # anything popular
    place = rng.random(len(row))
    column = np.empty(len(row), np.int64)
    for g, pool in [(-1, np.arange(items)), *enumerate(members)]:
        share = np.cumsum(popularity[pool]) / popularity[pool].sum()
        here = chosen == g
        column[here] = pool[np.minimum(np.searchsorted(share, place[here]), len(pool) - 1)]
    matrix = sparse.csr_matrix((np.ones(len(row), np.float32), (row, column)), shape=(users, items))
    matrix.sum_duplicates()
    matrix.data[:] = rng.integers(1, 6, matrix.nnz)
    return matrix


@dataclass
class Work:
    """Plays, the same as confidences, and what fitting takes.

    Args:
        plays: r.
        confidence: 1 + alpha r.
        alpha: Of the confidence.
        factors: k.
        iterations: Full iterations of one call.
        target: Loss at which a contestant may stop; None for all iterations.
        model: A fitted model, where the work is to use it.
    """

    plays: Any
    confidence: Any
    alpha: float
    factors: int
    iterations: int
    target: float | None = None
    model: Any = None
    notes: dict[str, Any] = field(default_factory=dict)


def threads() -> int:
    """What the harness gives every contestant."""
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


def work(shape: str, factors: int, iterations: int, alpha: float = 2.0, target: float | None = None) -> Work:
    plays = synthetic(*SHAPES[shape])
    confidence = plays.copy()
    confidence.data = 1 + alpha * confidence.data
    return Work(plays, confidence, alpha, factors, iterations, target)


# --- Tenfold ---------------------------------------------------------------------------------------------------------


class Reached(Exception):  # noqa: N818  no error: it ends a fit
    """The loss that was asked for is reached."""


def ours(solver: Any) -> Callable[[Work], object]:
    def run(given: Work) -> object:
        from tenfold.recommend import ImplicitALS

        def watch(iteration: int, loss: float) -> None:
            if given.target is not None and loss <= given.target * normalizer(given):
                raise Reached

        model = ImplicitALS(
            given.factors,
            alpha=given.alpha,
            regularization=REGULARIZATION,
            solver=solver,
            iterations=given.iterations,
            random_state=0,
            n_jobs=threads(),
        )
        try:
            model.fit(given.plays, callback=watch)
        except Reached:
            return None
        return model

    return run


def normalizer(given: Work) -> float:
    """What implicit divides its loss by: the sum of all confidences."""
    users, items = given.plays.shape
    return float(given.confidence.data.sum(dtype="float64") + users * items - given.plays.nnz)


def our_model(given: Work) -> Work:
    given.model = ours("auto")(given)
    return given


def our_lists(given: Work) -> object:
    import numpy as np

    return given.model.recommend(np.arange(given.plays.shape[0]), given.plays, n=10)


# --- implicit --------------------------------------------------------------------------------------------------------


def implicit(use_cg: bool) -> Callable[[Work], Any]:
    def run(given: Work) -> Any:
        from implicit.cpu.als import AlternatingLeastSquares

        model = AlternatingLeastSquares(
            factors=given.factors,
            regularization=REGULARIZATION,
            use_cg=use_cg,
            iterations=given.iterations,
            random_state=0,
            num_threads=threads(),
            calculate_training_loss=given.target is not None,
        )
        model.fit(given.confidence, show_progress=False)
        return model

    return run


def implicit_model(given: Work) -> Work:
    given.model = implicit(use_cg=True)(given)
    return given


def implicit_lists(given: Work) -> object:
    import numpy as np

    return given.model.recommend(np.arange(given.plays.shape[0]), given.confidence, N=10)


# --- irspack ---------------------------------------------------------------------------------------------------------


def irspack(solver: str) -> Callable[[Work], Any]:
    def run(given: Work) -> Any:
        from irspack.recommenders.ials import IALSRecommender

        model = IALSRecommender(
            given.confidence,
            n_components=given.factors,
            alpha0=1.0,
            reg=REGULARIZATION,
            nu=0.0,
            solver_type=solver,
            max_cg_steps=3,
            n_threads=threads(),
            train_epochs=given.iterations,
            prediction_time_max_cg_steps=3,
        )
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # its progress bars
            return model.learn()

    return run


IMPLICIT = {
    True: Peer(implicit(use_cg=True), package="implicit"),
    False: Peer(implicit(use_cg=False), package="implicit"),
}
IRSPACK = {solver: Peer(irspack(solver), package="irspack") for solver in ("CG", "CHOLESKY")}
WHOLE = "one call is a whole fit with its set-up and, for Tenfold, the losses and a last exact user step"


def exact(shape: str, factors: int, *, iterations: int = 3, quick: bool = False) -> Case:
    return Case(
        f"exact, {shape}, k={factors}, {iterations} iteration{'s' * (iterations > 1)}",
        lambda: work(shape, factors, iterations),
        ours("cholesky"),
        {"implicit": IMPLICIT[False], "irspack": IRSPACK["CHOLESKY"]},
        quick=quick,
        goal={"implicit": 1 / 6, "irspack": 1 / 1.5},
        note=WHOLE,
    )


def default(shape: str, factors: int, *, iterations: int = 10, quick: bool = False) -> Case:
    return Case(
        f"default solver, {shape}, k={factors}, {iterations} iterations",
        lambda: work(shape, factors, iterations),
        ours("auto"),
        {"implicit": IMPLICIT[True], "irspack": IRSPACK["CG"]},
        quick=quick,
        goal={"implicit": 1 / 3, "irspack": 1 / 1.5},
        note=WHOLE,
    )


def to_loss(shape: str, alpha: float, target: float, ratio: float, *, quick: bool = False) -> Case:
    return Case(
        f"to the loss of implicit's iteration 15, {shape}, k=64, alpha={alpha:g}",
        lambda: work(shape, 64, 15, alpha, target),
        ours("auto"),
        {"implicit": Peer(implicit_blind, package="implicit")},
        quick=quick,
        goal={"implicit": 1 / ratio},
        note=f"implicit runs its 15 iterations without computing losses; Tenfold stops at a loss of {target}",
    )


def implicit_blind(given: Work) -> Any:
    """Fifteen iterations without the cost of computing the loss."""
    given.target = None
    return implicit(use_cg=True)(given)


def top_ten(shape: str, factors: int, *, quick: bool = False) -> Case:
    return Case(
        f"top 10 of all users, {shape}, k={factors}",
        lambda: work(shape, factors, 3),
        our_lists,
        {"implicit": Peer(implicit_lists, package="implicit", prepare=implicit_model)},
        prepare=our_model,
        quick=quick,
        goal={"implicit": 0.5},
        note="seen items left out; each library ranks with its own factors",
    )


# Losses of implicit 0.7.3 after 15 iterations of its conjugate gradients, by `implicit_loss` below.
LOSS = {("ML-1M", 2.0): 0.044743, ("ML-1M", 40.0): 0.046131}


def implicit_loss(shape: str, alpha: float, iterations: int = 15) -> list[float]:
    """Normalised losses of implicit after each iteration; run where implicit is installed."""
    from implicit.cpu.als import AlternatingLeastSquares

    given = work(shape, 64, iterations, alpha)
    losses: list[float] = []
    model = AlternatingLeastSquares(
        factors=64,
        regularization=REGULARIZATION,
        iterations=iterations,
        random_state=0,
        num_threads=threads(),
        calculate_training_loss=True,
    )
    model.fit(given.confidence, show_progress=False, callback=lambda i, seconds, loss: losses.append(float(loss)))
    return losses


def our_loss(shape: str, alpha: float, iterations: int = 15, solver: str = "auto") -> list[float]:
    """Tenfold's losses, divided as implicit divides its own."""
    given = work(shape, 64, iterations, alpha)
    model: Any = ours(solver)(given)
    return [loss / normalizer(given) for loss in model.loss_history_]


CASES = [
    exact("ML-1M", 64, quick=True),
    default("ML-1M", 64, quick=True),
    exact("ML-1M", 128),
    default("ML-1M", 128),
    to_loss("ML-1M", 2.0, LOSS["ML-1M", 2.0], 5.0),
    to_loss("ML-1M", 40.0, LOSS["ML-1M", 40.0], 3.0),
    top_ten("ML-1M", 64, quick=True),
    exact("ML-20M", 64, iterations=1),
    default("ML-20M", 64, iterations=3),
    default("ML-20M", 128, iterations=3),
    top_ten("ML-20M", 64),
    Case(
        "exact, rows of mean length 60, k=1024, 1 iteration",
        lambda: work("wide", 1024, 1),
        ours("cholesky"),
        {"implicit": IMPLICIT[False]},
        quick=False,
        goal={"implicit": 0.1},
        note="1,500 users, 1,100 items: some minutes for implicit",
    ),
]
