"""Half steps on a local Ray of two workers give the factors of one machine, also when a worker is killed."""

import importlib.util
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import sparse

from tenfold.console.main import main
from tenfold.errors import InputError, MissingExtraError
from tenfold.recommend import ImplicitALS, Interactions
from tenfold.recommend.fitting import FitCheckpoints

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


def write_events(path, *, numbers=False, rows=6000, seed=0):
    """Repeated events with counts, which float64 sums exactly; ids as text or large integers."""
    rng = np.random.default_rng(seed)
    users, items = rng.integers(0, 300, rows), rng.integers(0, 90, rows)
    frame = pl.DataFrame(
        {
            "user": users * (2**53 + 1) if numbers else [f"{'ü' * (u % 3)}{u}" for u in users],
            "item": items if numbers else [str(i) if i % 2 else f"item {i}" for i in items],
            "plays": rng.integers(-1, 6, rows),
        }
    )
    frame.write_parquet(path, row_group_size=500)


@needs_ray
@quiet
@pytest.mark.parametrize("numbers", [True, False], ids=["integers", "text"])
def test_workers_that_read_their_own_blocks_give_the_bits_of_one_machine(two_workers, tmp_path, numbers):
    from tenfold.recommend.ray_parquet import fit_parquet, spread_parquet

    path = tmp_path / "plays.parquet"
    write_events(path, numbers=numbers)
    settings = {"alpha": 4.0, "iterations": 3, "solver": "cholesky", "random_state": 0, "n_jobs": 1}
    local, spread = ImplicitALS(12, **settings), ImplicitALS(12, **settings)
    plays = Interactions.from_csv(path)
    local.fit(plays.matrix)
    prepared = spread_parquet(path, spread.objective(), blocks=5, events=1000)
    assert len(prepared.users.rows.parts) == len(prepared.items.rows.parts) == 5
    np.testing.assert_array_equal(prepared.users.rows.lengths, np.diff(plays.matrix.indptr))
    spread.fit_sides(prepared.users, prepared.items, engine="ray")
    assert prepared.user_ids.tolist() == plays.user_ids.tolist()
    assert prepared.item_ids.tolist() == plays.item_ids.tolist()
    assert np.array_equal(local.user_factors_, spread.user_factors_)
    assert np.array_equal(local.item_factors_, spread.item_factors_)
    np.testing.assert_allclose(spread.loss_history_, local.loss_history_, rtol=1e-12)
    assert fit_parquet(spread, path) == plays.matrix.nnz
    assert np.array_equal(local.user_factors_, spread.user_factors_)
    assert spread.user_ids_.tolist() == plays.user_ids.tolist()


@needs_ray
@quiet
def test_a_folder_of_parts_is_one_table_though_one_part_has_only_numbers_as_ids(two_workers, tmp_path):
    from tenfold.recommend.ray_parquet import spread_parquet

    (tmp_path / "plays").mkdir()
    for number, ids in enumerate((["7", "12"], ["b", "7"])):
        pl.DataFrame({"user": ids, "item": [1, 2]}).write_parquet(tmp_path / "plays" / f"{number}.parquet")
    prepared = spread_parquet(tmp_path / "plays", ImplicitALS(2).objective())
    assert prepared.user_ids.tolist() == ["12", "7", "b"]
    assert prepared.users.rows.lengths.tolist() == [1, 2, 1]


@needs_ray
@quiet
def test_what_workers_cannot_read_is_named_by_file_and_row(two_workers, tmp_path):
    from tenfold.recommend.ray_parquet import spread_parquet

    objective, path = ImplicitALS(2).objective(), tmp_path / "plays.parquet"
    pl.DataFrame({"user": [1] * 9, "item": [2] * 9, "plays": [1.0] * 7 + [float("nan"), 1.0]}).write_parquet(path)
    with pytest.raises(InputError, match=r"plays\.parquet:8: column 'plays' holds nan"):
        spread_parquet(path, objective, events=3)
    with pytest.raises(InputError, match="there is no column 'who' for user"):
        spread_parquet(path, objective, user="who")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="this Parquet file is damaged"):
        spread_parquet(path, objective)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: this folder holds no \.parquet file"):
        spread_parquet(tmp_path / "empty", objective)


@needs_ray
@quiet
def test_command_fits_a_parquet_file_on_the_cluster_and_resumes(two_workers, tmp_path, capfd):
    write_events(tmp_path / "plays.parquet")
    words = ["recommend", "fit", str(tmp_path / "plays.parquet"), "--solver", "cholesky", "-k", "6", "--threads", "1"]
    assert main([*words, "-i", "3", "-o", str(tmp_path / "local")]) == 0
    write, told = FitCheckpoints.write, []

    def write_and_stop(self, state):
        write(self, state)
        told.append(state)
        raise KeyboardInterrupt

    spread = [*words, "-i", "3", "--engine", "ray", "-o", str(tmp_path / "spread")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FitCheckpoints, "write", write_and_stop)
        assert main(spread) == 130
    assert "after 1 of 3 iterations; resume from" in capfd.readouterr().err
    assert main([*spread, "--resume"]) == 0, capfd.readouterr().err
    one, other = (ImplicitALS.from_pretrained(tmp_path / name) for name in ("local", "spread"))
    assert np.array_equal(one.user_factors_, other.user_factors_)
    assert one.user_ids_.tolist() == other.user_ids_.tolist()
    write_events(tmp_path / "plays.parquet", seed=1)
    spread[-1] = str(tmp_path / "third")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FitCheckpoints, "write", write_and_stop)
        assert main(spread) == 130
    write_events(tmp_path / "plays.parquet", seed=2)
    assert main([*spread, "--resume"]) == 2
    assert "was made of other events" in capfd.readouterr().err
