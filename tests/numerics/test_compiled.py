"""Kernels compile at their first call, stay on disk, and are compiled anew when anything inside them has changed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tenfold
from tenfold.numerics import FAST, exp64, inlined, kernel

PACKAGE = Path(tenfold.__file__).parent
ROOM = """
import numpy as np
from tenfold.numerics import kernel, exp64

@kernel
def total(values):
    result = 0.0
    for i in range(values.size):
        result += exp64(values[i])
    return result
"""
CALL = """
import json
import room
compiled_at_import = len(room.total.signatures)
result = room.total(room.np.zeros(2))
stats = room.total.stats
print(json.dumps([compiled_at_import, result, sum(stats.cache_hits.values()), sum(stats.cache_misses.values())]))
"""


@pytest.fixture
def copy(tmp_path):
    """A small copy of the library, free to be edited, with a module that holds one kernel."""
    (tmp_path / "tenfold").mkdir()
    shutil.copy(PACKAGE / "__init__.py", tmp_path / "tenfold")
    shutil.copytree(
        PACKAGE / "numerics", tmp_path / "tenfold" / "numerics", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "room.py").write_text(ROOM)
    return tmp_path


def call(folder: Path, **environment: str) -> list:
    """[signatures compiled at import, result, cache hits, cache misses] of the kernel in a new process."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment = {**inherited, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    command = [sys.executable, "-W", "error", "-c", "import sys; sys.path.insert(0, sys.argv[1])\n" + CALL, str(folder)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_machine_code_is_kept_in_the_given_folder_until_the_source_changes(copy):
    folder = str(copy / "kernels")
    first, second = (call(copy, NUMBA_CACHE_DIR=folder) for _ in range(2))
    assert first == [0, 2.0, 0, 1]
    assert second == [0, 2.0, 1, 0]
    assert list((copy / "kernels").rglob("*.nbi"))

    # a changed scalar function reaches the kernels that were cached with the old one inside
    source = copy / "tenfold" / "numerics" / "elementary.py"
    text = source.read_text()
    changed = text.replace("polynomial(r, EXP64), r) + 1.0, rounded)", "polynomial(r, EXP64), r) + 3.0, rounded)")
    assert changed != text
    source.write_text(changed)
    assert call(copy, NUMBA_CACHE_DIR=folder) == [0, 6.0, 0, 1]


def test_a_kernel_is_compiled_anew_when_a_file_beside_it_has_changed(copy):
    folder = copy / "kernels"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "room.py").write_text(
        ROOM.replace("exp64(values[i])", "weight(values[i])") + "\nfrom kernels.part import weight\n"
    )
    part = "from tenfold.numerics import kernel\n\n@kernel\ndef weight(value):\n    return value + {}.0\n"
    (folder / "part.py").write_text(part.format(1))
    (copy / "room.py").write_text("from kernels.room import np, total\n")
    cache = str(copy / "cache")
    assert [call(copy, NUMBA_CACHE_DIR=cache) for _ in range(2)] == [[0, 2.0, 0, 1], [0, 2.0, 1, 0]]
    (folder / "part.py").write_text(part.format(2))
    assert call(copy, NUMBA_CACHE_DIR=cache) == [0, 4.0, 0, 1]


def test_kernels_in_a_folder_that_cannot_be_written_are_cached_in_the_users_folder(copy):
    (copy / "__pycache__").write_text("a file where the folder would be: not writable even for root")
    (copy / "home").mkdir()
    places = {"HOME": str(copy / "home"), "XDG_CACHE_HOME": str(copy / "home" / "cache")}
    assert call(copy, **places) == [0, 2.0, 0, 1]
    assert list((copy / "home").rglob("*.nbi"))


def test_kernels_run_where_nothing_can_be_written(copy):
    for place in (copy / "__pycache__", copy / "tenfold" / "numerics" / "__pycache__", copy / "home"):
        place.write_text("not a folder")
    places = {"HOME": str(copy / "home"), "XDG_CACHE_HOME": str(copy / "home" / "cache")}
    assert call(copy, **places)[1] == 2.0


def test_division_by_zero_follows_ieee_not_python():
    @kernel
    def ratio(a, b):
        return a / b

    assert ratio(1.0, 0.0) == np.inf


def test_fast_flags_keep_nan_and_infinity_unless_asked_otherwise():
    assert not FAST & {"nnan", "ninf", "fast"}

    @kernel(fastmath=False)
    def strict(x):
        return x + 1.0

    assert strict.targetoptions["fastmath"] is False
    assert strict.targetoptions["nogil"]


def test_own_scalar_functions_can_be_inlined_too():
    @inlined
    def gauss(x):
        return exp64(-0.5 * x * x)

    assert gauss(1.0) == pytest.approx(np.exp(-0.5), rel=1e-15)
