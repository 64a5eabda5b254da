"""The two decorators of all compiled code: `kernel` for loops over arrays, `inlined` for scalar functions inside them.

Nothing compiles at import: a kernel compiles at its first call and is then kept on disk (beside the source, in the
user's cache folder where that is read-only, or in ``$NUMBA_CACHE_DIR``). Where no folder is writable it compiles once
per process.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache

from tenfold import __version__

# LLVM may reorder sums, fuse multiply-adds, and multiply by reciprocals, but must keep NaN and infinity: "nnan" and
# "ninf", which fastmath=True adds, turn guards such as `x == -inf` or `isnan(x)` into undefined behaviour.
FAST = frozenset({"nsz", "arcp", "contract", "afn", "reassoc"})


@cache
def file_digest(path: str) -> str:
    """SHA-256 of one source file, or of its name where it cannot be read (a shell, a zip)."""
    try:
        content = Path(path).read_bytes()
    except OSError:
        content = path.encode()
    return hashlib.sha256(content).hexdigest()


@cache
def sources_digest(path: str) -> str:
    """One digest for a kernel's source: its file, and in a package ``kernels`` the files beside it, which it may call."""
    folder = Path(path).parent
    if folder.name != "kernels":
        return file_digest(path)
    digests = [file_digest(str(source)) for source in sorted(folder.glob("*.py"))]
    return hashlib.sha256("".join([file_digest(path), *digests]).encode()).hexdigest()


@cache
def inlined_digest() -> str:
    """One digest for all of `tenfold.numerics`, whose functions end up inside every kernel's machine code."""
    digests = [file_digest(str(source)) for source in sorted(Path(__file__).parent.glob("*.py"))]
    return hashlib.sha256("".join([__version__, *digests]).encode()).hexdigest()


class ContentCache(FunctionCache):
    """Numba's on-disk cache, keyed also by the content of the kernel's file, of those beside it and of this package.

    Numba itself looks at the time stamp of the kernel's own file only, and would keep serving machine code with an old
    version of an inlined function in it.
    """

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        own = sources_digest(self._py_func.__code__.co_filename)
        return (*super()._index_key(sig, codegen), own, inlined_digest())

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the machine code on disk; a full disk costs the next process a compilation."""
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    dispatcher = numba.njit(error_model="numpy", nogil=True, **options)(function)
    with contextlib.suppress(RuntimeError):  # numba found no writable folder: compile once per process
        dispatcher._cache = ContentCache(function)
    return dispatcher


def kernel(function: Callable[..., Any] | None = None, *, fastmath: bool | frozenset[str] = FAST) -> Any:
    """Compile a loop over arrays at its first call: no GIL, no division check, cached on disk, vectorised sums.

    Args:
        function: A function of arrays and numbers that numba can compile.
        fastmath: `FAST` (the default) lets LLVM reorder and fuse but keeps NaN and infinity meaningful; ``True`` also
            lets it assume that there are none (only for code whose inputs were checked); ``False`` keeps the order of
            every sum.

    Returns:
        The compiled function (a numba dispatcher; ``.py_func`` is the original). Decorate functions of a module, not
        closures over other kernels: numba's cache would see a new function in each process.

    >>> import numpy as np
    >>> @kernel
    ... def total(values):
    ...     result = 0.0
    ...     for i in range(values.size):
    ...         result += values[i]
    ...     return result
    >>> total(np.arange(4.0))
    6.0
    """
    if function is None:
        return lambda decorated: kernel(decorated, fastmath=fastmath)
    flags: bool | set[str] = fastmath if isinstance(fastmath, bool) else set(fastmath)
    return _compiled(function, fastmath=flags)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a scalar function that LLVM always inlines into the loop that calls it, so that the loop vectorises.

    Only fused multiply-add is allowed: reordering would undo the argument reductions and the error terms.
    """
    return _compiled(function, fastmath={"contract"}, forceinline=True)
