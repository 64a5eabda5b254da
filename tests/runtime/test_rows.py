"""Rows in parallel: same bits for every number of threads, results in order, failures reported, balanced blocks."""

import multiprocessing
import threading
from itertools import pairwise

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from tenfold.numerics import kernel
from tenfold.runtime import parallel_rows, threads
from tenfold.runtime.rows import BLOCKS, block_edges


@kernel
def total(values, start, stop):
    result = np.float32(0.0)
    for i in range(start, stop):
        result += values[i]
    return result


VALUES = np.random.default_rng(0).normal(size=100_003).astype(np.float32) * 1e3


def merged_total(n_threads: int) -> bytes:
    parts = parallel_rows(lambda start, stop: total(VALUES, start, stop), len(VALUES), n_threads)
    result = np.float32(0.0)
    for part in parts:
        result = np.float32(result + np.float32(part))
    return result.tobytes()


def test_merged_sums_have_the_same_bits_for_every_number_of_threads():
    assert len({merged_total(n_threads) for n_threads in (1, 2, 3, 8)}) == 1


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_merged_sums_have_the_same_bits_in_a_forked_child():
    parent = merged_total(2)  # threads have run before the fork
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(merged_total, (2,)).get(60) == parent


def test_results_come_in_row_order_and_cover_every_row_once():
    spans = parallel_rows(lambda start, stop: (start, stop), 1000, 4)
    assert spans[0][0] == 0
    assert spans[-1][1] == 1000
    assert all(before[1] == after[0] for before, after in pairwise(spans))


@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_failure_of_the_first_row_is_raised_and_no_further_block_begins(n_threads):
    begun = []

    def fail(start, stop):
        begun.append(start)
        raise KeyError(start)

    with pytest.raises(KeyError) as caught:
        parallel_rows(fail, 1000, n_threads)
    assert caught.value.args[0] == min(begun)
    assert len(begun) <= n_threads


def test_one_thread_and_small_work_stay_in_the_callers_thread():
    def where(start, stop):
        return threading.current_thread()

    own = threading.current_thread()
    assert set(parallel_rows(where, 1000, 1)) == {own}
    assert parallel_rows(where, 1000, 4, block_cost=5000.0) == [own]


def test_several_threads_work_at_the_same_time():
    meeting = threading.Barrier(2, timeout=10)
    assert parallel_rows(lambda start, stop: meeting.wait() >= 0, 2, 2) == [True, True]


def test_the_number_of_threads_is_the_current_setting():
    seen = set()

    def note(start, stop):
        seen.add(threading.current_thread().name)

    with threads(1):
        parallel_rows(note, 100)
    assert seen == {threading.current_thread().name}


def test_blas_is_held_to_one_thread_meanwhile():
    def blas(start, stop):
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    with threads(2):
        assert parallel_rows(blas, 2, 2) == [{1}, {1}]
        assert parallel_rows(blas, 1, 1, uses_blas=False) == [{2}]


def test_blocks_of_unequal_rows_cost_about_the_same():
    costs = np.random.default_rng(0).lognormal(sigma=1.0, size=20_000)
    edges = block_edges(costs)
    sums = np.add.reduceat(costs, edges[:-1])
    assert len(sums) == BLOCKS
    assert sums.max() - sums.min() < 2 * costs.max()


def test_one_row_that_outweighs_the_rest_gets_its_own_block():
    costs = np.ones(100)
    costs[40] = 1000.0
    edges = block_edges(costs, block_cost=100.0).tolist()
    assert 41 in edges
    assert edges[0] == 0
    assert edges[-1] == 100


def test_no_rows_give_no_results():
    assert parallel_rows(lambda start, stop: 1, 0) == []
    assert parallel_rows(lambda start, stop: 1, np.zeros(0)) == []
    assert parallel_rows(lambda start, stop: stop - start, np.zeros(5)) == [5]  # rows that cost nothing are done too


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 1), "costs=-1: the number of rows must not be negative"),
        ((np.array([1.0, -2.0]), 1), r"costs\[1\]=-2.0 must be finite and not negative"),
        ((np.array([np.nan]), 1), r"costs\[0\]=nan must be finite and not negative"),
        ((3, 0), "n_threads=0 must be at least 1"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        parallel_rows(lambda start, stop: None, *arguments)


def test_a_block_that_costs_nothing_is_refused():
    with pytest.raises(ValueError, match=r"block_cost=0\.0 must be positive"):
        parallel_rows(lambda start, stop: None, 3, 1, block_cost=0.0)
