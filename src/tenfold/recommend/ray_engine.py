"""Half steps of alternating least squares on a Ray cluster: blocks of rows as tasks, the fixed factors in the object store.

Every row is solved by `tenfold.recommend.solvers.half_step`, as on one machine. The rows are cut into blocks of about equal
cost, which are put into the object store once; per half step only factors travel. With R rows to solve, F rows of
the fixed side, k factors of b bytes and N nodes

========================  =======================================================================================
moved per half step       F k b to each node (once, whatever its workers: N F k b in all), R k b back to the driver; with
                          the iterative solvers R k b of starting points, too
memory of a node          F k b (fixed, shared by its workers), F k b for each worker at work (the rotated table), and the blocks
                          that it holds: 8 bytes an entry in float32, and every entry is kept twice, by user and by item
memory of the driver      both sides of factors, and the interactions, unless the nodes read these themselves (`ray_parquet`)
========================  =======================================================================================

Example: 10 million users, 1 million items, 1 billion entries, k = 128, float32, 10 nodes. The user half step moves 0.5 GB to each
node and 5.1 GB back, the item half step 5.1 GB to each node and 0.5 GB back; a node of 16 workers holds about
1.6 GB of blocks, and in the item half step 5.1 GB fixed and 5.1 GB for each worker. Bytes grow with rows times k and not with
entries; the fixed side is what limits: take few workers a node with many threads each (``n_jobs``).

The exact solver gives the factors of the local engine to the bit, whatever the blocks. A few steps of conjugate gradients do
not quite: their basis is chosen from the mean weights of a block's rows. A block whose worker dies is solved again.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from tenfold.errors import InputError, MissingExtraError
from tenfold.recommend.solvers import Rows, Solver, gram_matrix, half_step
from tenfold.recommend.spread_rows import SpreadRows
from tenfold.runtime.rows import block_edges

RETRIES = 8  # times that a block is solved again when its worker is lost
BLOCKS_PER_CPU = 4

_put: list[Any] = []  # weak reference to the factors put last, their reference in the object store, the job
_shipped: dict[int, tuple[Any, Int[np.ndarray, " edges"], list[Any], str]] = {}  # by id of Rows, as long as these live


def ray_half_step(
    fixed: Float[np.ndarray, "items k"],
    rows: Rows | SpreadRows,
    regularization: Float[np.ndarray, " rows"],
    *,
    unobserved_weight: float = 1.0,
    start: Float[np.ndarray, "rows k"] | None = None,
    solver: Solver = "auto",
    n_jobs: int | None = None,
    blocks: int | None = None,
    gains: Float[np.ndarray, " rows"] | None = None,
    in_place: bool = False,
) -> Float[np.ndarray, "rows k"]:
    """The factors of ``rows`` given the fixed ones, by the tasks of a Ray cluster.

    Joins the cluster that ``RAY_ADDRESS`` names, or the one that ``ray.init`` has joined; else starts one on this machine.

    Args:
        fixed: Factors of the other side.
        rows: Entries of the rows; shipped once, and kept in the object store as long as this object lives, unless they lie on
            the nodes already.
        regularization: Of each row.
        unobserved_weight: Weight of cells without an entry.
        start: Factors from which the iterative solvers set out.
        solver: As in `half_step`.
        n_jobs: Threads (and CPUs asked of Ray) of each task; 1 if None.
        blocks: Tasks; four for each CPU of the cluster if None.
        gains: Written, as by `half_step`.
        in_place: Of no use here.

    Raises:
        MissingExtraError: Ray is not installed.
        ValueError: As in `half_step`.
    """
    ray = joined()
    edges, parts = (rows.edges, rows.parts) if isinstance(rows, SpreadRows) else _ship(ray, rows, blocks)
    threads = 1 if n_jobs is None else n_jobs
    task = ray.remote(num_cpus=threads, max_retries=RETRIES)(solve_block)
    table = shared(ray, fixed)
    gram = ray.put(gram_matrix(fixed))
    exact = solver == "cholesky"
    waiting = {
        task.remote(
            table,
            gram,
            part,
            regularization[first:last],
            None if exact or start is None else start[first:last],
            unobserved_weight,
            solver,
            threads,
            int(first),
        ): (first, last)
        for part, first, last in zip(parts, edges[:-1], edges[1:], strict=True)
    }
    result = np.empty((len(rows), fixed.shape[1]), fixed.dtype)
    while waiting:
        (done,), _ = ray.wait(list(waiting), num_returns=1)
        first, last = waiting.pop(done)
        ((result[first:last], gained),) = results(ray, [done], others=waiting)
        if gains is not None:
            gains[first:last] = gained
    return result


def solve_block(
    fixed: np.ndarray,
    gram: np.ndarray,
    part: tuple[Any, ...],
    regularization: np.ndarray,
    start: np.ndarray | None,
    unobserved_weight: float,
    solver: Solver,
    threads: int,
    first: int,
) -> tuple[np.ndarray, np.ndarray]:
    """What a worker does: factors and gains of a block of rows, whose first row has the number ``first`` of all."""
    indptr, indices, values, *scale = part
    gains = np.empty(len(indptr) - 1)
    # Arrays of the object store are read-only, for which the kernels would be compiled once more; a block is small.
    rows = Rows(indptr.copy(), indices.copy(), values.copy(), *scale)
    factors = half_step(
        fixed,
        rows,
        regularization.copy(),
        unobserved_weight=unobserved_weight,
        start=start,
        solver=solver,
        n_jobs=threads,
        gram=gram,
        gains=gains,
    )
    return factors, gains


def joined() -> Any:
    """The module ray, having joined a cluster: the one that ``RAY_ADDRESS`` names, or else a new one on this machine."""
    ray = require_ray()
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)
    return ray


def shared(ray: Any, factors: Float[np.ndarray, "rows k"]) -> Any:
    """A reference to factors in the object store: put there once, as long as the next factors are not asked for."""
    if _put and _put[0]() is factors and _put[2] == _job(ray):
        return _put[1]
    _put[:] = [weakref.ref(factors), ray.put(factors), _job(ray)]
    return _put[1]


def results(ray: Any, references: list[Any], *, others: Iterable[Any] = ()) -> list[Any]:
    """What tasks returned; at the first that failed the others are cancelled, and bad input is the error that it is locally."""
    try:
        return list(ray.get(references))
    except ray.exceptions.RayTaskError as error:
        for other in (*references, *others):
            ray.cancel(other)
        if isinstance(error.cause, InputError):
            raise InputError(str(error.cause)) from None
        if isinstance(error.cause, ValueError):
            raise ValueError(str(error.cause)) from None
        raise


def block_count(ray: Any, blocks: int | None) -> int:
    """Blocks of rows: as many as are asked for, or a few for each CPU of the cluster."""
    return max(1, BLOCKS_PER_CPU * int(ray.cluster_resources().get("CPU", 1)) if blocks is None else blocks)


def require_ray() -> Any:
    """The module ray.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    return ray


def _ship(ray: Any, rows: Rows, blocks: int | None) -> tuple[Int[np.ndarray, " edges"], list[Any]]:
    """The first rows of the blocks, and references to the blocks in the object store; from an earlier half step if possible."""
    key = id(rows)
    if key in _shipped and _shipped[key][0]() is rows and _shipped[key][3] == _job(ray):
        return _shipped[key][1], _shipped[key][2]
    costs = rows.lengths + 10.0
    edges = block_edges(costs, float(costs.sum()) / block_count(ray, blocks))
    parts = []
    for first, last in pairwise(edges):
        entries = slice(rows.indptr[first], rows.indptr[last])
        parts.append(
            ray.put(
                (
                    rows.indptr[first : last + 1] - rows.indptr[first],
                    rows.indices[entries],
                    rows.values[entries],
                    rows.base,
                    rows.slope,
                    rows.offset,
                )
            )
        )
    _shipped[key] = (weakref.ref(rows, lambda _: _shipped.pop(key, None)), edges, parts, _job(ray))
    return edges, parts


def _job(ray: Any) -> Any:
    return ray.get_runtime_context().get_job_id()
