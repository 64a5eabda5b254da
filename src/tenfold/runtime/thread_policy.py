"""How many threads compute: one setting for torch and for BLAS, sensible in containers, always put back.

Three parties start threads in one process: torch (OpenMP), BLAS inside NumPy and SciPy, and our own row-parallel
kernels. If each takes all cores, they fight. Here one number serves all three, and while a row-parallel kernel runs,
BLAS is held to one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from threadpoolctl import OpenBLASController, ThreadpoolController


def cgroup_cpu_limit(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float | None:
    """The number of CPUs that this process's control groups allow (Linux containers), or None without a limit.

    Args:
        root: Where the control groups are mounted; both versions are read.
        membership: The list of groups that this process belongs to.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            folder, quota_of = root, _quota_v2
        elif "cpu" in controllers.split(","):
            folder, quota_of = root / "cpu", _quota_v1
        else:
            continue
        leaf = folder / group.strip("/")
        # a limit on any group above holds too; inside a container the leaf's path may not exist
        limits += [quota_of(place) for place in (leaf, *leaf.parents) if place == folder or folder in place.parents]
    return min((limit for limit in limits if limit is not None), default=None)


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None


@lru_cache(maxsize=1)
def _own_cpu_limit() -> float | None:
    """The limit of this process, read once: kernels ask before each call, and reading takes longer than a small one."""
    return cgroup_cpu_limit()


def available_cpus() -> int:
    """The CPUs that this process may use: the machine's, less what affinity and a container's quota take away.

    A quota is rounded to whole CPUs, at least 1.

    >>> available_cpus() >= 1
    True
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = _own_cpu_limit()
    return count if limit is None else max(1, min(count, round(limit)))


def default_threads() -> int:
    """``$OMP_NUM_THREADS`` if it is a positive number (the first of a list), else `available_cpus`."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else available_cpus()


_chosen: int | None = None  # what set_threads was given; None: default_threads()
_blas_lock = threading.Lock()
_blas_depth = 0
_outermost: Any = None


def thread_count() -> int:
    """The number of threads that Tenfold's kernels use now."""
    return default_threads() if _chosen is None else _chosen


def set_threads(n: int | None = None) -> int:
    """Let torch, BLAS and Tenfold's kernels each use at most n threads, in this process, from now on.

    Args:
        n: At least 1; None for `default_threads`.

    Returns:
        The number that was set.

    Raises:
        ValueError: n is not a whole number of at least 1.
    """
    global _chosen
    count = _checked(n)
    import torch  # a second or more to import: only when threads are really set

    torch.set_num_threads(count)
    _limit_blas(count)
    _chosen = count
    return count


@contextmanager
def threads(n: int | None = None) -> Iterator[int]:
    """`set_threads` for the duration of a ``with`` block; what was set before is restored, also after an exception.

    The setting belongs to the process: use it around work, not in several Python threads at once.

    Args:
        n: At least 1; None for `default_threads`.

    Yields:
        The number of threads.

    Raises:
        ValueError: n is not a whole number of at least 1.

    >>> import torch
    >>> with threads(1):
    ...     torch.get_num_threads()
    1
    """
    global _chosen
    count = _checked(n)
    import torch

    chosen, torch_threads = _chosen, torch.get_num_threads()
    limit = _limit_blas(count)
    try:
        torch.set_num_threads(count)
        _chosen = count
        yield count
    finally:
        _chosen = chosen
        torch.set_num_threads(torch_threads)
        _restore_blas(limit)


@contextmanager
def blas_single_thread() -> Iterator[None]:
    """Hold BLAS (inside NumPy and SciPy) to one thread while a row-parallel kernel calls it from threads of its own.

    May be nested and entered from several Python threads at once: the first one in sets the limit, the last one out
    restores what was there before, also after an exception. torch's own threads are left alone.
    """
    global _blas_depth, _outermost
    with _blas_lock:
        own = _limit_blas(1)  # each thread sets it: MKL and OpenBLAS under OpenMP hold one number for each thread
        if _blas_depth == 0:
            _outermost = own
        _blas_depth += 1
    try:
        yield
    finally:
        with _blas_lock:
            _blas_depth -= 1
            if own is not _outermost:
                _restore_blas(own)
            if _blas_depth == 0:  # most builds of OpenBLAS hold one number for the process: the first entry saw it
                _restore_blas(_outermost)
                _outermost = None


def _limit_blas(count: int) -> Any:
    """Set the limit; the value knows what was set before."""
    limit = _controller(len(sys.modules)).limit(limits=count, user_api="blas")
    _let_other_threads_set_limits()
    return limit


def _restore_blas(limit: Any) -> None:
    limit.restore_original_limits()
    _let_other_threads_set_limits()


def _let_other_threads_set_limits() -> None:
    """From version 3.8, threadpoolctl ignores limits from threads other than the first that set one, until released."""
    release = getattr(OpenBLASController, "clear_controlling_thread", None)
    if release is not None:
        release()


@lru_cache(maxsize=1)
def _controller(imported_modules: int) -> ThreadpoolController:
    """The libraries whose threads can be limited; looked up again (1 ms) only after more modules have been imported."""
    return ThreadpoolController()


def _checked(n: int | None) -> int:
    if n is None:
        return default_threads()
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"threads={n!r} must be a whole number of at least 1, or None for all available CPUs")
    return n


if hasattr(os, "register_at_fork"):  # a fork waits until nobody is half way through a change, so the child can go on
    os.register_at_fork(
        before=_blas_lock.acquire, after_in_parent=_blas_lock.release, after_in_child=_blas_lock.release
    )
