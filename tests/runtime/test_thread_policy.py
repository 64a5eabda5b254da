"""Thread settings reach torch and BLAS, are restored in every case, and respect a container's limits."""

import multiprocessing
import os
import threading

import numpy as np
import pytest
import scipy.linalg  # noqa: F401  loads the second BLAS
import torch
from threadpoolctl import threadpool_info

from tenfold.runtime import (
    available_cpus,
    blas_single_thread,
    default_threads,
    set_threads,
    thread_count,
    threads,
)
from tenfold.runtime.thread_policy import cgroup_cpu_limit


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


@pytest.fixture(autouse=True)
def restored():
    with threads(2):
        yield


def test_threads_sets_torch_blas_and_the_kernels_and_restores_them():
    with threads(3) as count:
        assert count == thread_count() == torch.get_num_threads() == 3
        assert blas_threads()
        assert set(blas_threads()) <= {3, os.cpu_count()}  # a BLAS may refuse more threads than it was built for
    assert thread_count() == torch.get_num_threads() == 2


def test_threads_are_restored_after_an_exception():
    def fail():
        with threads(1):
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail()
    assert thread_count() == torch.get_num_threads() == 2
    assert set(blas_threads()) == {2}


def test_set_threads_lasts():
    assert set_threads(1) == 1
    assert thread_count() == torch.get_num_threads() == 1
    assert set(blas_threads()) == {1}
    assert set_threads(None) == default_threads()


@pytest.mark.parametrize("wrong", [0, -1, True])
def test_a_wrong_number_of_threads_is_named(wrong):
    with pytest.raises(ValueError, match=rf"threads={wrong} must be a whole number of at least 1"):
        set_threads(wrong)


def test_blas_is_restored_after_an_exception():
    def fail():
        with blas_single_thread():
            assert set(blas_threads()) == {1}
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail()
    assert set(blas_threads()) == {2}
    assert torch.get_num_threads() == 2


def test_nested_limits_end_with_the_outermost():
    with blas_single_thread():
        with blas_single_thread():
            pass
        assert set(blas_threads()) == {1}
    assert set(blas_threads()) == {2}


def test_overlapping_limits_of_several_threads_restore_what_was_before_the_first():
    first_is_in, second_is_in = threading.Event(), threading.Event()

    def first():
        with blas_single_thread():
            first_is_in.set()
            second_is_in.wait(10)

    other = threading.Thread(target=first)
    other.start()
    first_is_in.wait(10)
    with blas_single_thread():
        second_is_in.set()
        other.join()
        assert set(blas_threads()) == {1}  # the first has left, the second still needs it
    assert set(blas_threads()) == {2}


def limits_seen_by_a_child() -> list[int]:
    with blas_single_thread():
        inside = blas_threads()
    return [max(inside), min(blas_threads())]


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_limits_work_in_child_processes(method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system cannot {method}")
    if method == "fork":
        with blas_single_thread():  # forked in the middle of a limit
            pool = multiprocessing.get_context(method).Pool(1)
    else:
        pool = multiprocessing.get_context(method).Pool(1)
    with pool:
        inside, after = pool.apply_async(limits_seen_by_a_child).get(60)
    assert inside == 1
    assert after >= 1


def test_the_default_is_what_omp_num_threads_says(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert default_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert default_threads() == available_cpus()
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert default_threads() == available_cpus()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_affinity_lowers_the_available_cpus():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert available_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_the_tightest_group_of_version_2_counts(tmp_path):
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    (tmp_path / "outer" / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "outer" / "inner" / "cpu.max").write_text("max 100000\n")
    membership = tmp_path / "cgroup"
    membership.write_text("0::/outer/inner\n")
    assert cgroup_cpu_limit(tmp_path, membership) == 1.5


def test_version_1_quotas_count_and_minus_one_means_none(tmp_path):
    (tmp_path / "cpu" / "job").mkdir(parents=True)
    (tmp_path / "cpu" / "job" / "cpu.cfs_quota_us").write_text("400000\n")
    (tmp_path / "cpu" / "job" / "cpu.cfs_period_us").write_text("100000\n")
    membership = tmp_path / "cgroup"
    membership.write_text("4:memory:/job\n2:cpu,cpuacct:/job\n")
    assert cgroup_cpu_limit(tmp_path, membership) == 4.0
    (tmp_path / "cpu" / "job" / "cpu.cfs_quota_us").write_text("-1\n")
    assert cgroup_cpu_limit(tmp_path, membership) is None
    assert cgroup_cpu_limit(tmp_path, tmp_path / "missing") is None


def test_products_inside_the_limit_are_right():
    a = np.random.default_rng(0).normal(size=(200, 200))
    with blas_single_thread():
        inside = a @ a
    np.testing.assert_allclose(inside, a @ a)
