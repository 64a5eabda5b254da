"""The torch twin of the compiled half step."""

import numpy as np
import pytest
import torch
from scipy import sparse

from tenfold.recommend import ImplicitALS, solvers, torch_solver
from tenfold.recommend.engines import chosen_engine
from tenfold.recommend.solvers import Rows


@pytest.mark.parametrize("base", [0.7, 0.0])
@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-3), ("float64", 1e-9)])
@pytest.mark.parametrize("memory", [1, 2**26], ids=["a row at a time", "whole buckets"])
def test_torch_gives_what_the_compiled_solver_gives(base, dtype, close, memory, monkeypatch):
    monkeypatch.setattr(torch_solver, "GATHERED", memory)
    rng = np.random.default_rng(0)
    dense = sparse.random_array((50, 31), density=0.3, rng=rng).toarray() * rng.choice([9, 9, -9], (50, 31))
    dense[[3, 49]] = 0
    matrix = sparse.csr_array(dense)
    rows = Rows(matrix.indptr.astype(np.int64), matrix.indices, matrix.data.astype(dtype), base)
    fixed, regularization = rng.standard_normal((31, 13)).astype(dtype), rng.uniform(0.5, 2, 50)
    expected = solvers.half_step(fixed, rows, regularization, unobserved_weight=0.7, solver="cholesky")
    found = torch_solver.half_step(torch.from_numpy(fixed), rows, regularization, unobserved_weight=0.7)
    assert found.dtype == torch.from_numpy(fixed).dtype
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=close * np.abs(expected).max())


@pytest.mark.parametrize("target", ["hkv", "rendle"])
def test_a_device_gives_the_exact_solver_for_fit_and_fold_in(target):
    matrix = sparse.random_array((60, 40), density=0.2, format="csr", rng=np.random.default_rng(1))
    settings = {"regularization": 0.5, "alpha": 3.0, "target": target, "dtype": "float64", "iterations": 4}
    on_device = ImplicitALS(6, device="cpu", random_state=0, **settings).fit(matrix)
    compiled = ImplicitALS(6, solver="cholesky", random_state=0, **settings).fit(matrix)
    np.testing.assert_allclose(on_device.user_factors_, compiled.user_factors_, atol=1e-9)
    np.testing.assert_allclose(on_device.loss_history_, compiled.loss_history_, rtol=1e-12)
    np.testing.assert_allclose(on_device.fold_in_users(matrix), on_device.user_factors_, atol=1e-9)


def test_auto_takes_the_compiled_kernels_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr("tenfold.recommend.engines.choose_device", lambda name: torch.device("cpu"))
    assert chosen_engine(device="auto", solver="cg") is solvers.half_step


@pytest.mark.parametrize(
    ("parameters", "engine", "message"),
    [
        ({"device": "cuda:99"}, "local", "device 'cuda:99' is not here; available: auto"),
        ({"device": "gpu"}, "local", "device 'gpu' is not here"),
        ({"device": 1}, "local", "device=1 must be None or a name"),
        ({"device": "cpu", "solver": "cg"}, "local", "solver='cg': device='cpu' solves exactly; solver must be 'auto'"),
        ({"device": "cpu"}, "ray", "engine='ray' solves with the compiled kernels; device must be None"),
        ({"device": "cpu", "factors": 41, "regularization": 0.0}, "local", "regularization=0 leaves a singular system"),
    ],
)
def test_devices_that_cannot_be_had_are_refused(parameters, engine, message):
    with pytest.raises(ValueError, match=message):
        ImplicitALS(4).set_params(**parameters).fit(np.eye(60, 40), engine=engine)
