"""Shapes and types that signatures promise are checked while the tests run (jaxtyping with beartype)."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests run in parallel processes: one thread each
os.environ.setdefault("MPLBACKEND", "Agg")

import jaxtyping

SOURCE = Path(__file__).parents[1] / "src"
# For `type_checking`, by its name. Not the folder above: its `datasets` would stand in for the package of that name.
sys.path.insert(0, str(Path(__file__).parent / "annotations"))


def checked_modules() -> list[str]:
    """Every module but the compiled ones, which numba reads as they are, and the empty packages."""
    names = []
    for path in sorted((SOURCE / "tenfold").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if path.name not in {"__init__.py", "kernels.py", "cli.py"} and not {"numerics", "kernels"} & set(parts):
            names.append(".".join(parts))
    return names


jaxtyping.install_import_hook(checked_modules(), "type_checking.checked")
