"""The torch twin of the compiled half step."""

import numpy as np
import pytest
import torch
from scipy import sparse

from tenfold.recommend import solvers, torch_solver
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
