"""Opt-in: let glibc keep large freed blocks, so that large fresh tensors cost no page faults.

glibc takes each block above 32 MiB from the kernel and gives it back when freed. A new 98 MiB tensor is then 25,000
page faults, several times the cost of filling it; torch's CPU allocator asks glibc each time. Two settings keep such
blocks in the process. The price is memory: what was freed stays with the process, up to the trim threshold, and since
glibc 2.36 places the first dozen aligned blocks of a new size one behind the other, a loop settles only after as many
steps.

It is a setting of the whole process, so it is never changed unless asked for, and where the user has settled the matter
already (an allocator that is preloaded, thresholds in the environment) it is left alone.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
LARGEST_INT = 2**31 - 1  # mallopt takes a C int
GIB = 2**30

OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc", "tbbmalloc", "hoard")
OWN_SETTINGS = ("glibc.malloc.mmap_threshold", "glibc.malloc.trim_threshold", "glibc.malloc.mmap_max")
OWN_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_")


@dataclass(frozen=True)
class AllocatorTuning:
    """What `tune_allocator` did.

    Attributes:
        tuned: Whether the thresholds are in force now.
        reason: One sentence: what was set, or why nothing was.
        mmap_threshold: Bytes from which a block is taken from the kernel and given back, if tuned.
        trim_threshold: Bytes of freed memory that the process keeps, if tuned.
    """

    tuned: bool
    reason: str
    mmap_threshold: int | None = None
    trim_threshold: int | None = None


_tuned: AllocatorTuning | None = None


def tune_allocator(*, mmap_threshold: int = GIB, trim_threshold: int = LARGEST_INT) -> AllocatorTuning:
    """Keep blocks below ``mmap_threshold`` in the process when they are freed, by glibc's ``mallopt``.

    Call it once, before the work, in each process that shall profit; spawned workers start untuned. It concerns blocks
    that the main thread allocates, which includes torch's forward and backward passes on the CPU.

    Args:
        mmap_threshold: Bytes; at least 32 MiB, glibc's own highest.
        trim_threshold: Bytes; freed memory beyond it at the end of the heap is given back. At most 2 GiB - 1.

    Returns:
        What was done; ``tuned`` is False, with the reason, on other systems and where the user has settled the matter.

    Raises:
        ValueError: A threshold is out of range.

    >>> tune_allocator(mmap_threshold=1)
    Traceback (most recent call last):
    ValueError: mmap_threshold=1 bytes must lie between 32 MiB (33554432) and 2 GiB - 1 (2147483647)
    """
    global _tuned
    for name, value in (("mmap_threshold", mmap_threshold), ("trim_threshold", trim_threshold)):
        if not 32 * 2**20 <= value <= LARGEST_INT:
            raise ValueError(f"{name}={value} bytes must lie between 32 MiB (33554432) and 2 GiB - 1 ({LARGEST_INT})")
    obstacle = _obstacle()
    if obstacle is not None:
        return AllocatorTuning(False, obstacle)
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    if not (mallopt(M_MMAP_THRESHOLD, mmap_threshold) and mallopt(M_TRIM_THRESHOLD, trim_threshold)):
        return AllocatorTuning(False, f"{_glibc()} refused these thresholds")
    sentence = (
        f"{_glibc()} keeps freed blocks below {mmap_threshold / GIB:.2f} GiB,"
        f" up to {trim_threshold / GIB:.2f} GiB in all"
    )
    _tuned = AllocatorTuning(True, sentence, mmap_threshold, trim_threshold)
    return _tuned


def allocator_state() -> str:
    """One sentence on the C allocator of this process, for reports.

    >>> len(allocator_state()) > 0
    True
    """
    if _tuned is not None:
        return _tuned.reason
    return _obstacle() or f"{_glibc()}, not tuned"


def _obstacle() -> str | None:
    """Why the allocator cannot or should not be tuned, or None."""
    if _glibc() is None:
        return "this system's C library is not glibc, the only one with these settings"
    for name in OTHER_ALLOCATORS:
        if name in os.environ.get("LD_PRELOAD", "") or name in _mapped_libraries():
            return f"the allocator {name} is loaded in place of glibc's"
    for setting in OWN_SETTINGS:
        if setting in os.environ.get("GLIBC_TUNABLES", ""):
            return f"GLIBC_TUNABLES sets {setting} already"
    for variable in OWN_VARIABLES:
        if variable in os.environ:
            return f"the environment sets {variable} already"
    return None


def _glibc() -> str | None:
    """The version of glibc ("glibc 2.36"), or None where the C library is another (musl, macOS, Windows)."""
    if "CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}):
        return None
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (OSError, ValueError):  # musl knows the name in Python's table but not the value
        return None


def _mapped_libraries() -> str:
    """The names of the shared libraries in this process, one after the other (Linux)."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return ""
    return " ".join({Path(fields[5]).name for fields in map(str.split, lines) if len(fields) > 5})
