"""A worker process, from both ends: it measures one claim and seed after the other, with one thread.

Requests and answers are JSON over a pipe. What a measurement prints goes to the worker's log, which the runner quotes
when the process dies. Each measurement starts from seeded global generators and torch's usual dtype, so that it does
not depend on what the same process measured before. The process ends when its runner does, however that ends.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypedDict

from tenfold.claims.claim import Claim, Measurement
from tenfold.claims.result import measurement_to_json

ENVIRONMENT = {
    **dict.fromkeys(
        (
            "OMP_NUM_THREADS",
            "MKL_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
            "VECLIB_MAXIMUM_THREADS",
            "NUMEXPR_NUM_THREADS",
            "NUMBA_NUM_THREADS",
            "POLARS_MAX_THREADS",
            "RAYON_NUM_THREADS",
        ),
        "1",
    ),
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "Agg",
}
"""What is set before a worker starts: libraries read their thread counts when they are imported."""

DYING = 5.0  # seconds for a process to be gone after its end of the pipe closed
QUOTED = 4000  # characters of a dead worker's log that go into the result


class Answer(TypedDict, total=False):
    """What came of a measurement: ``measurement``, or ``error``, ``kind`` and ``traceback``; always the two times."""

    measurement: dict[str, Any]
    error: str
    kind: str
    traceback: str
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Task:
    """One measurement to make."""

    claim: Claim
    seed: int


class Worker:
    """A worker process and what it is measuring."""

    def __init__(self, logs: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        handle, name = tempfile.mkstemp(dir=logs, suffix=".log")
        os.close(handle)
        self.log = Path(name)
        self.task: Task | None = None
        self.since = 0.0
        self.process = context.Process(target=serve, args=(theirs, str(self.log)), name="tenfold-claims")
        before = {name: os.environ.get(name) for name in ENVIRONMENT}
        os.environ.update(ENVIRONMENT)
        try:
            self.process.start()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        theirs.close()

    def start(self, task: Task, scale: str) -> None:
        """Gives the worker a measurement to make."""
        request = {
            "module": task.claim.measure.__module__,
            "function": task.claim.measure.__name__,
            "seed": task.seed,
            "scale": scale,
            "numbers": [criterion.number for criterion in task.claim.criteria],
        }
        self.task, self.since = task, time.monotonic()
        try:
            self.connection.send_bytes(json.dumps(request).encode())
        except OSError:
            return  # it has just died: answer() says of what

    def answer(self) -> Answer | None:
        """The worker's answer, an account of its death, or None while it is at work."""
        try:
            if self.connection.poll():
                return Answer(**json.loads(self.connection.recv_bytes()))
        except (EOFError, OSError):
            self.process.join(DYING)
        if wait([self.process.sentinel], 0):
            self.process.join(DYING)  # its files are closed, its number is not yet given back
        if self.process.is_alive():
            return None
        self.process.join()
        return Answer(
            error=_death(self.process.exitcode),
            kind="other",
            traceback=self.log.read_text(errors="replace")[-QUOTED:],
            seconds=self.elapsed(),
            cpu_seconds=0.0,
        )

    def elapsed(self) -> float:
        """Seconds since the present measurement was given."""
        return time.monotonic() - self.since

    def alive(self) -> bool:
        """Whether the worker can take another measurement, or still owes one."""
        if self.task is None and not self.process.is_alive():
            self.dismiss()
            return False
        return True

    def dismiss(self) -> None:
        """Lets the worker go: it ends when its pipe closes."""
        self.connection.close()
        self.process.join(3)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _death(exitcode: int | None) -> str:
    """What happened to a process that did not answer.

    >>> _death(3)
    'the worker process ended with exit code 3 in the middle of the measurement'
    """
    if exitcode is None or exitcode >= 0:
        return f"the worker process ended with exit code {exitcode} in the middle of the measurement"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    guess = ", perhaps because the memory was full" if name == "SIGKILL" else ""
    return f"the worker process was killed by {name}{guess}"


def serve(connection: Connection, log: str) -> None:
    """Answers measuring requests until the pipe closes; the target of the worker's process.

    Args:
        connection: The worker's end of the pipe.
        log: File that takes standard output and error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the runner decides
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    threading.Thread(target=_die_with_the_runner, daemon=True).start()
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        os.ftruncate(descriptor, 0)
        answer = measure_once(
            request["module"], request["function"], request["seed"], request["scale"], request["numbers"]
        )
        connection.send_bytes(json.dumps(answer).encode())


def measure_once(module: str, function: str, seed: int, scale: str, numbers: list[str]) -> Answer:
    """Runs one measurement and says what came of it.

    Args:
        module: Module of the measuring function.
        function: Its name.
        seed: The seed.
        scale: The scale.
        numbers: Names that the measurement must contain.
    """
    start, cpu_start = time.perf_counter(), time.process_time()
    try:
        measure = getattr(importlib.import_module(module), function)
        _reset_globals(seed)
        start, cpu_start = time.perf_counter(), time.process_time()
        answer = Answer(measurement=measurement_to_json(_checked(measure, seed, scale, numbers)))
    except Exception as error:  # noqa: BLE001  whatever a measurement raises is its result
        answer = Answer(error=_one_line(error), kind=_kind(error), traceback=traceback.format_exc())
    answer["seconds"], answer["cpu_seconds"] = time.perf_counter() - start, time.process_time() - cpu_start
    return answer


def _checked(measure: Callable[[int, str], object], seed: int, scale: str, numbers: list[str]) -> Measurement:
    measurement = measure(seed, scale)
    if not isinstance(measurement, Measurement):
        raise TypeError(f"measure returned {type(measurement).__name__}; a Measurement is needed")
    missing = [name for name in numbers if name not in measurement.numbers]
    if missing:
        given = ", ".join(measurement.numbers) or "none"
        raise ValueError(f"measure returned no number {missing[0]!r}, which a criterion needs; it returned: {given}")
    return measurement


def _reset_globals(seed: int) -> None:
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)


def _kind(error: Exception) -> str:
    """The name of Python's or Tenfold's own class that says how to treat the error."""
    from tenfold.errors import InputError

    return "input" if isinstance(error, InputError | OSError) else "other"


def _one_line(error: Exception) -> str:
    from tenfold.errors import InputError, MissingExtraError

    text = " ".join(str(error).split())
    if isinstance(error, InputError | MissingExtraError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _die_with_the_runner() -> None:
    """Ends this process when the runner's ends, however it ends, so that no measurement is left behind."""
    runner = multiprocessing.parent_process()
    if runner is not None:
        runner.join()
        os._exit(1)
