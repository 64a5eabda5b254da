"""A contestant that can be timed: in this process, or in a worker process with an interpreter of its own."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from benchmarks.case import Case, MissingContestantError

ROOT = Path(__file__).parents[1]
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
)


class Timing(NamedTuple):
    """Seconds of one call: on the clock, and of processor time over all threads of the process."""

    wall: float
    cpu: float


class Contestant(Protocol):
    """Something that does its work ``calls`` times and says how long one call took."""

    def time(self, calls: int) -> Timing:
        """Mean seconds of one call over ``calls`` calls in a row."""

    def close(self) -> None:
        """Let go of what it holds."""


def time_calls(work: Callable[[], object], calls: int) -> Timing:
    """Mean wall and processor time of one call; the garbage collector waits meanwhile."""
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(calls):
            work()
        return Timing((time.perf_counter() - wall) / calls, (time.process_time() - cpu) / calls)
    finally:
        gc.enable()


class Here:
    """A contestant in this very process."""

    def __init__(self, case: Case, name: str) -> None:
        try:
            self.work = case.ready(name)
            self.work()  # compiles, loads and fills caches; also finds out what is missing
        except ModuleNotFoundError as error:
            raise MissingContestantError(f"not installed: pip install {error.name}") from error

    def time(self, calls: int) -> Timing:
        """Mean seconds of one call."""
        return time_calls(self.work, calls)

    def close(self) -> None:
        """Drop the inputs."""
        del self.work


class Worker:
    """A contestant in a process of its own, asked by lines ``time N``, ``memory``, ``quit``; answers in lines of JSON.

    Args:
        area: The module of this folder that holds the case.
        case: The case's name.
        name: The contestant's name.
        python: The interpreter to run, for peers that do not install together with Tenfold.
        threads: Threads that the numerical libraries may use.
    """

    def __init__(self, area: str, case: str, name: str, *, python: str = sys.executable, threads: int = 1) -> None:
        command = [python, "-m", "benchmarks.worker", area, case, name]
        environment = os.environ | thread_environment(threads)
        try:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise MissingContestantError(f"cannot run {python}: {error.strerror}") from error
        self.name = name
        try:
            self._answer()
        except MissingContestantError:
            self.close()
            raise

    def time(self, calls: int) -> Timing:
        """Mean seconds of one call in the worker."""
        answer = self._ask(f"time {calls}")
        return Timing(answer["wall"], answer["cpu"])

    def memory(self) -> int:
        """Bytes by which one call raises the worker's resident memory at its highest."""
        return int(self._ask("memory")["bytes"])

    def close(self) -> None:
        """End the worker and wait for it."""
        if self.process.poll() is None:
            self.process.communicate("quit\n", timeout=60)
        else:
            self.process.communicate()

    def _ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise MissingContestantError(f"its worker process ended with exit code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "missing" in answer:
            raise MissingContestantError(answer["missing"])
        return answer


def thread_environment(threads: int) -> Mapping[str, str]:
    """What the numerical libraries read at start to know how many threads they may use."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def peak_growth(work: Callable[[], object]) -> int:
    """Bytes by which one call raises this process's resident memory at its highest.

    On Linux the high-water mark is set back after a first call, and what that call freed is handed back to the system;
    elsewhere the growth of ``ru_maxrss`` over the first call is taken, with what the call compiles and loads.
    """
    if not sys.platform.startswith("linux"):
        unit = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        work()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit
    work()
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM back to VmRSS
    before = _status("VmRSS")
    work()
    return max(0, _status("VmHWM") - before)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key}")
