"""What this computer and this installation are, for reports and for asking for help."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from threadpoolctl import threadpool_info

from tenfold.runtime.allocator import allocator_state
from tenfold.runtime.thread_policy import available_cpus, thread_count

PACKAGES = ("tenfold", "torch", "numpy", "scipy", "numba", "lightning")


def describe_machine() -> dict[str, str | int | float | None]:
    """The machine, the thread settings and the versions that decide results and speed.

    Returns:
        A flat mapping that JSON can hold: ``system``, ``python``, ``cpu``, ``cpus`` (in the machine),
        ``available cpus`` (to this process), ``memory GiB``, ``threads``, ``torch threads``, ``BLAS`` (loaded now, with
        its threads), ``vector instructions`` (torch's choice), ``accelerator``, ``allocator``, and one entry for the
        version of each package.

    >>> machine = describe_machine()
    >>> machine["threads"] >= 1, sorted(machine)[:2]
    (True, ['BLAS', 'accelerator'])
    """
    import torch

    from tenfold.runtime.devices import default_device

    device = default_device()
    machine: dict[str, str | int | float | None] = {
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "available cpus": available_cpus(),
        "memory GiB": memory_gib(),
        "threads": thread_count(),
        "torch threads": torch.get_num_threads(),
        "BLAS": blas_libraries(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "accelerator": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "allocator": allocator_state(),
    }
    return machine | {package: _version(package) for package in PACKAGES}


def cpu_name() -> str:
    """The processor's name as its maker writes it, where the system tells it.

    >>> len(cpu_name()) > 0
    True
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith(("model name", "Hardware"))]
    return names[0] if names else platform.processor() or platform.machine()


def memory_gib() -> float | None:
    """The machine's memory in GiB, or None where the system does not tell.

    >>> memory_gib() is None or memory_gib() > 0
    True
    """
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):
        return None


def blas_libraries() -> str:
    """The BLAS libraries that are loaded now, each with its threads; NumPy and SciPy bring one each.

    >>> isinstance(blas_libraries(), str)
    True
    """
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    names = {f"{library['internal_api']} {library['version']} ({library['num_threads']})" for library in libraries}
    return ", ".join(sorted(names)) or "none loaded"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
