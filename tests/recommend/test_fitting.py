"""A fit that is stopped: what the model holds then, and that a resumed run ends in the bits of one that never stopped."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from scipy import sparse

from tenfold.errors import InputError
from tenfold.recommend import ImplicitALS
from tenfold.training import Interrupted


def plays(seed=0, shape=(60, 40)):
    matrix = sparse.random_array(shape, density=0.2, format="csr", rng=np.random.default_rng(seed))
    matrix.data = np.ceil(matrix.data * 5)
    return matrix


def model(**parameters):
    defaults = {"regularization": 2.0, "alpha": 2.0, "iterations": 6, "random_state": 0, "n_jobs": 1, "solver": "cg"}
    return ImplicitALS(5, **{**defaults, **parameters})


def stop_after(iteration):
    def callback(finished, loss):
        if finished == iteration:
            raise KeyboardInterrupt

    return callback


def assert_same_bits(one, other):
    np.testing.assert_array_equal(one.user_factors_, other.user_factors_)
    np.testing.assert_array_equal(one.item_factors_, other.item_factors_)
    assert one.loss_history_ == other.loss_history_


def test_ctrl_c_leaves_the_last_full_iteration_ready_for_use():
    stopped = model()
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(plays(), callback=stop_after(2))
    three = model(iterations=3).fit(plays())
    assert_same_bits(stopped, three)
    np.testing.assert_allclose(stopped.fold_in_users(plays()), stopped.user_factors_, atol=1e-6)
    stopped.set_params(solver="cholesky", iterations=3).partial_fit(plays())
    assert stopped.n_iter_ == 6


def test_ctrl_c_before_the_first_iteration_leaves_the_model_as_it_was(monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    fitted = model().fit(plays())
    before = fitted.item_factors_
    monkeypatch.setattr("tenfold.recommend.fitting.chosen_engine", lambda *words: interrupted)
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(plays(1))
    assert fitted.item_factors_ is before


@pytest.mark.parametrize("solver", ["auto", "cholesky", "cg", "subspace"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_resumed_fit_has_the_bits_of_one_that_never_stopped(tmp_path, solver, dtype):
    whole = model(solver=solver, dtype=dtype).fit(plays())
    stopped = model(solver=solver, dtype=dtype)
    with pytest.raises(Interrupted, match="after 3 of 6 iterations; resume from") as stop:
        stopped.fit(plays(), callback=stop_after(2), checkpoint=tmp_path)
    assert not hasattr(stopped, "item_factors_")
    assert [path.name for path in tmp_path.iterdir()] == [stop.value.saved.name] == ["step-00000003.safetensors"]
    heard = []
    stopped.fit(plays(), checkpoint=tmp_path, resume=True, callback=lambda *told: heard.append(told))
    assert_same_bits(stopped, whole)
    assert [number for number, _ in heard] == [3, 4, 5]
    again = model(solver=solver, dtype=dtype).fit(plays(), checkpoint=tmp_path, resume=True)  # nothing is left to do
    assert_same_bits(again, whole)


def test_a_run_that_had_converged_does_not_go_on(tmp_path):
    whole = model(iterations=300, tol=1e-3).fit(plays(), checkpoint=tmp_path)
    assert_same_bits(model(iterations=300, tol=1e-3).fit(plays(), checkpoint=tmp_path, resume=True), whole)


def test_more_iterations_go_on_from_fewer(tmp_path):
    model(iterations=2).fit(plays(), checkpoint=tmp_path)
    assert_same_bits(model(iterations=6).fit(plays(), checkpoint=tmp_path, resume=True), model().fit(plays()))


def test_checkpoints_of_another_run_are_refused(tmp_path):
    model(iterations=1).fit(plays(), checkpoint=tmp_path)
    with pytest.raises(InputError, match="holds checkpoints of an earlier run: resume it, or give another folder"):
        model().fit(plays(), checkpoint=tmp_path)
    with pytest.raises(InputError, match=r"was made with alpha=2\.0, now alpha=3\.0; a resumed run must be the same"):
        model(alpha=3.0).fit(plays(), checkpoint=tmp_path, resume=True)
    with pytest.raises(InputError, match="was made of other events"):
        model().fit(plays(1), checkpoint=tmp_path, resume=True)
    saved = next(tmp_path.iterdir())
    saved.write_bytes(saved.read_bytes()[:-9])
    with pytest.raises(InputError, match="step-00000001"):
        model().fit(plays(), checkpoint=tmp_path, resume=True)


ENDLESS = """
import numpy as np, sys
from scipy import sparse
from tenfold.recommend import ImplicitALS
matrix = sparse.random_array((60, 40), density=0.2, format="csr", rng=np.random.default_rng(0))
matrix.data = np.ceil(matrix.data * 5)
model = ImplicitALS(5, regularization=2.0, alpha=2.0, iterations=10**6, random_state=0, n_jobs=1, solver="cg")
model.fit(matrix, checkpoint=sys.argv[1])
"""


@pytest.mark.skipif(os.name != "posix", reason="kill -9")
def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", ENDLESS, str(tmp_path)])
    end = time.monotonic() + 120
    while not list(tmp_path.glob("step-*.safetensors")) and child.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    (saved,) = sorted(tmp_path.glob("step-*.safetensors"))[-1:]
    length = int(saved.stem.partition("-")[2]) + 3
    resumed = model(iterations=length).fit(plays(), checkpoint=tmp_path, resume=True)
    assert_same_bits(resumed, model(iterations=length).fit(plays()))


BITS = """
import zlib
import numpy as np
from scipy import sparse
from tenfold.recommend import ImplicitALS
matrix = sparse.random_array((300, 90), density=0.2, format="csr", rng=np.random.default_rng(0))
model = ImplicitALS(24, alpha=4.0, iterations=1, random_state=0, n_jobs=1, solver="cholesky").fit(matrix)
print(zlib.crc32(model.user_factors_.tobytes()), zlib.crc32(model.item_factors_.tobytes()))
"""


def test_kernels_that_are_compiled_and_kernels_read_from_disk_give_the_same_bits(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run([sys.executable, "-c", BITS], env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert first == second
