"""The width of vectors, and kernels on machines whose vectors are narrower than here."""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest

from tenfold.numerics.vectors import BYTES, padded


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_width_is_padded_to_whole_vectors(dtype):
    lanes = BYTES // np.dtype(dtype).itemsize
    for width in range(1, 70):
        assert padded(width, dtype) % lanes == 0
        assert 0 <= padded(width, dtype) - width < lanes


NARROW = """
import numpy as np
from tenfold.numerics import padded, rank_update, solve_definite, vectors

assert vectors.BYTES == 32
rng = np.random.default_rng(0)
for k in (8, 24, 32, 40):
    rows = rng.standard_normal((2 * k, k)).astype("float32")
    matrix, right = np.eye(k, dtype="float32"), rng.standard_normal(k).astype("float32")
    rank_update(rows, rows, len(rows), matrix)
    expected = np.linalg.solve(np.eye(k) + rows.astype(float).T @ rows, right)
    assert solve_definite(matrix, right, np.empty(k, "float32"))
    np.testing.assert_allclose(right, expected, rtol=0, atol=1e-5)
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names a processor of that family")
def test_a_processor_without_wide_registers_gets_narrow_vectors(tmp_path):
    processor = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", NARROW], env=os.environ | processor, check=True)
