"""Half steps on a local Ray of two workers give the factors of one machine, also when a worker is killed."""

import importlib.util
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from tenfold.errors import MissingExtraError
from tenfold.recommend.als import ImplicitALS

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra 'ray')")
needs_no_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the worker's process in /proc")
quiet = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


def plays(users, items, mean, seed=0):
    rng = np.random.default_rng(seed)
    count = np.minimum(rng.geometric(1 / mean, users), items)
    columns = np.concatenate([rng.choice(items, n, replace=False) for n in count])
    indptr = np.concatenate([[0], np.cumsum(count)])
    return sparse.csr_array((rng.integers(1, 6, len(columns)).astype(np.float32), columns, indptr), (users, items))


@pytest.fixture(scope="module")
def two_workers():
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    yield ray
    ray.shutdown()


@needs_no_ray
def test_without_ray_the_command_that_installs_it_is_named():
    with pytest.raises(MissingExtraError, match=r"pip install 'tenfold\[ray\]'"):
        ImplicitALS(2, iterations=1).fit(plays(10, 8, 3), engine="ray")


@needs_ray
@quiet
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_factors_are_those_of_the_local_engine_to_the_bit(two_workers, dtype):
    matrix = plays(700, 300, 20)
    settings = {"alpha": 4.0, "iterations": 2, "solver": "cholesky", "random_state": 0, "dtype": dtype, "n_jobs": 1}
    local = ImplicitALS(24, **settings).fit(matrix)
    spread = ImplicitALS(24, **settings).fit(matrix, engine="ray")
    assert np.array_equal(local.user_factors_, spread.user_factors_)
    assert np.array_equal(local.item_factors_, spread.item_factors_)
    assert local.loss_history_ == spread.loss_history_


@needs_ray
@quiet
def test_iterative_factors_come_near_those_of_the_local_engine(two_workers):
    matrix = plays(700, 300, 20)
    settings = {"regularization": 5.0, "iterations": 8, "solver": "cg", "random_state": 0, "n_jobs": 1}
    local = ImplicitALS(16, **settings).fit(matrix)
    spread = ImplicitALS(16, **settings).fit(matrix, engine="ray")
    np.testing.assert_allclose(spread.loss_history_, local.loss_history_, rtol=5e-3)


@needs_ray
@quiet
def test_an_error_of_a_block_is_the_error_of_the_local_engine(two_workers):
    with pytest.raises(ValueError, match="regularization=0 leaves a singular system"):
        ImplicitALS(60, regularization=0.0, iterations=1).fit(plays(100, 40, 5), engine="ray")


def worker_at_work():
    """Process id of a worker of ours that solves a block now."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::solve_block" in (folder / "cmdline").read_bytes() and is_ours(int(folder.name)):
                return int(folder.name)
        except OSError:  # it ended meanwhile
            continue
    return None


def is_ours(process):
    while process > 1:
        if process == os.getpid():
            return True
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return False


@needs_ray
@linux
@quiet
def test_a_block_whose_worker_is_killed_is_solved_again(two_workers):
    matrix = plays(20000, 3000, 60)
    settings = {"alpha": 4.0, "iterations": 1, "solver": "cholesky", "random_state": 0, "n_jobs": 1}
    local = ImplicitALS(96, **settings).fit(matrix)
    killed = []

    def kill_one():
        end = time.monotonic() + 60
        while time.monotonic() < end and not killed:
            if (process := worker_at_work()) is not None:
                os.kill(process, signal.SIGKILL)
                killed.append(process)
            time.sleep(0.005)

    killer = threading.Thread(target=kill_one)
    killer.start()
    spread = ImplicitALS(96, **settings).fit(matrix, engine="ray")
    killer.join()
    assert killed
    assert not Path(f"/proc/{killed[0]}").exists() or "Z" in Path(f"/proc/{killed[0]}/stat").read_text().split()[2]
    assert np.array_equal(local.user_factors_, spread.user_factors_)
    assert np.array_equal(local.item_factors_, spread.item_factors_)
