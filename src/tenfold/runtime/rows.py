"""Independent rows over Python threads: blocks by cost, fixed whatever the number of threads, results in order.

Compiled kernels release the interpreter's lock, so plain threads suffice: no processes, no copies. A sum over rows that
must not depend on the number of threads is summed block by block, and the blocks depend on the costs alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from typing import TypeVar

import numpy as np
from jaxtyping import Int, Num

from tenfold.runtime.thread_policy import blas_single_thread, thread_count

Result = TypeVar("Result")

BLOCKS = 64  # enough to even out unequal rows over a desktop's cores, few enough to cost nothing


def parallel_rows(
    function: Callable[[int, int], Result],
    costs: int | np.integer | Num[np.ndarray, " rows"],
    n_threads: int | None = None,
    *,
    block_cost: float | None = None,
    uses_blas: bool = True,
) -> list[Result]:
    """Call ``function(start, stop)`` on consecutive blocks of rows, in several threads; results in row order.

    The blocks depend on ``costs`` and ``block_cost`` only. Results merged in the order of the list therefore have the
    same bits for every number of threads. With one thread, or one block, the caller's thread does the work. BLAS is
    held to one thread meanwhile.

    Args:
        function: Works on the rows start, ..., stop - 1. It gains from threads if it releases the interpreter's lock,
            as functions under `tenfold.numerics.kernel` do.
        costs: The number of rows, if they cost alike; else the cost of each row, in any unit, not negative.
        n_threads: At least 1; None for the current setting (`tenfold.runtime.set_threads`).
        block_cost: The cost of one block, about, in the same unit; work up to this size stays in the caller's thread.
            None for a 64th of the whole. Threads pay from about a millisecond of work.
        uses_blas: Whether ``function`` may call BLAS; False spares the limit, 0.04 ms for each thread.

    Returns:
        One result for each block, in the order of the rows; no rows, no results.

    Raises:
        ValueError: A cost is negative or not finite, or n_threads < 1, or block_cost <= 0.
        Exception: What ``function`` raised first in row order; no further block is begun after a failure.

    >>> import numpy as np
    >>> values = np.arange(1000.0)
    >>> sum(parallel_rows(lambda start, stop: values[start:stop].sum(), len(values), n_threads=2))
    np.float64(499500.0)
    """
    workers = thread_count() if n_threads is None else n_threads
    if workers < 1:
        raise ValueError(f"n_threads={n_threads} must be at least 1")
    edges = block_edges(costs, block_cost)
    count = len(edges) - 1
    results: dict[int, Result] = {}
    failures: dict[int, BaseException] = {}
    blocks = itertools.count()  # next() on it is atomic

    def work() -> None:
        with blas_single_thread() if uses_blas else nullcontext():
            for block in blocks:
                if block >= count or failures:
                    return
                try:
                    results[block] = function(int(edges[block]), int(edges[block + 1]))
                except BaseException as failure:
                    failures[block] = failure
                    raise

    if min(workers, count) <= 1:
        work()
    else:
        with ThreadPoolExecutor(min(workers, count), thread_name_prefix="tenfold-rows") as pool:
            try:
                wait([pool.submit(work) for _ in range(min(workers, count))])
            except KeyboardInterrupt as interruption:  # the threads end with the block that they are at
                failures[-1] = interruption
                raise
    if failures:
        raise failures[min(failures)]
    return [results[block] for block in range(count)]


def block_edges(
    costs: int | np.integer | Num[np.ndarray, " rows"], block_cost: float | None = None
) -> Int[np.ndarray, " edges"]:
    """The first rows of blocks of about equal cost, and the number of rows at the end.

    >>> block_edges(np.array([5.0, 1.0, 1.0, 1.0, 4.0]), block_cost=4.0).tolist()
    [0, 1, 4, 5]
    """
    if block_cost is not None and not block_cost > 0:
        raise ValueError(f"block_cost={block_cost} must be positive")
    if isinstance(costs, int | np.integer):
        if costs < 0:
            raise ValueError(f"costs={costs}: the number of rows must not be negative")
        rows, total = int(costs), float(costs)
    else:
        bad = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0)))
        if bad.size:
            raise ValueError(f"costs[{bad[0]}]={costs[bad[0]]} must be finite and not negative")
        cumulative = np.cumsum(costs, dtype=np.float64)
        rows, total = len(costs), float(cumulative[-1]) if len(costs) else 0.0
    blocks = max(1, min(rows, BLOCKS if block_cost is None else round(total / block_cost)))
    if isinstance(costs, int | np.integer):
        return np.unique(np.arange(blocks + 1) * rows // blocks)
    # a block ends with the row that brings it nearest to its share of the whole
    shares = total * np.arange(1, blocks) / blocks
    inner = np.searchsorted(cumulative - 0.5 * costs, shares)
    return np.unique(np.concatenate([[0], inner, [rows]]))
