"""Runs claims: each seed in a worker process with one thread, several at a time, and nothing measured twice.

A finished measurement is stored at once, so that an interrupted run goes on where it stopped. A measurement that
raises, or that takes its process down with it, is that claim's result; the others are not touched. The longest
measurements known from earlier runs start first.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from multiprocessing.connection import wait
from pathlib import Path

from tenfold.claims.claim import SCALES, Claim
from tenfold.claims.code_version import code_version, library_versions
from tenfold.claims.result import Result, SeedRun, judge_claim, measurement_from_json
from tenfold.claims.store import Store, default_cache
from tenfold.claims.worker import Task, Worker

MACHINE = ("system", "cpu", "cpus", "available cpus", "memory GiB", "vector instructions", "accelerator")
LOOK_EVERY = 0.25  # seconds between two looks at the workers, and two reports of progress


@dataclass(frozen=True)
class Running:
    """A measurement that is under way."""

    claim: str
    seed: int
    seconds: float
    expected_seconds: float | None


@dataclass(frozen=True)
class Progress:
    """How far a run is; given to ``on_progress`` several times a second.

    Args:
        done: Measurements that need no more work, with those from the cache.
        total: All measurements of the run.
        cached: Measurements that came from the cache.
        running: Those under way.
        seconds_left: Estimate for all the rest, from earlier runs and the costs so far; None while nothing is known.
        finished: The claims that were completed since the last report.
    """

    done: int
    total: int
    cached: int
    running: tuple[Running, ...]
    seconds_left: float | None
    finished: tuple[Result, ...] = ()


def run_claims(
    claims: Iterable[Claim],
    *,
    scale: str = "quick",
    seeds: int | None = None,
    jobs: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[Result]:
    """Measures claims over their seeds in worker processes and judges them.

    Args:
        claims: What to run; ids must differ.
        scale: ``"smoke"``, ``"quick"`` or ``"full"``.
        seeds: Seeds 0 to ``seeds - 1`` for every claim; None takes each claim's own number at this scale.
        jobs: Worker processes; None takes one a processor core that this process may use.
        cache: Folder of finished measurements; None takes ``default_cache()``.
        fresh: Measure again what the cache holds. What is measured is stored either way.
        on_progress: Called several times a second with the state of the run.

    Returns:
        One result a claim, in the order of the claims.

    Raises:
        ValueError: An unknown scale, fewer than one seed or job, or two claims of one id.
        KeyboardInterrupt: On Ctrl-C; the message says what was saved.
    """
    claims = tuple(claims)
    if scale not in SCALES:
        raise ValueError(f"run_claims: scale={scale!r} is not one of {', '.join(SCALES)}")
    if (seeds is not None and seeds < 1) or (jobs is not None and jobs < 1):
        raise ValueError(f"run_claims: seeds={seeds} and jobs={jobs} must be 1 or more")
    twice = [name for name, count in Counter(claim.id for claim in claims).items() if count > 1]
    if twice:
        raise ValueError(f"run_claims: two claims have the id {twice[0]!r}; ids must differ")
    store = Store(Path(cache) if cache is not None else default_cache(), scale)
    run = Run(claims, scale, seeds, store, fresh, on_progress)
    try:
        run.measure(jobs or usable_cores())
    except KeyboardInterrupt:
        done, total = run.done, run.total
        raise KeyboardInterrupt(
            f"interrupted; {done} of {total} measurements are done and saved in {store.folder}; "
            "the same command goes on from there"
        ) from None
    return [run.results[claim.id] for claim in claims]


def usable_cores() -> int:
    """Processor cores that this process may use.

    >>> usable_cores() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Run:
    """The state of one call of ``run_claims``: what is waiting, what came out, and what the rest will cost."""

    def __init__(
        self,
        claims: Sequence[Claim],
        scale: str,
        seeds: int | None,
        store: Store,
        fresh: bool,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.scale = scale
        self.store = store
        self.on_progress = on_progress
        self.claims = {claim.id: claim for claim in claims}
        self.runs: dict[str, list[SeedRun]] = {claim.id: [] for claim in claims}
        self.open: dict[str, int] = {}  # measurements that a claim still waits for
        self.results: dict[str, Result] = {}
        self.unreported: list[Result] = []
        self.waiting: list[Task] = []
        self.done = self.cached = 0
        self.known_seconds = {claim.id: store.seconds(claim.id) for claim in claims}
        for claim in claims:
            count = seeds if seeds is not None else claim.seeds[scale]
            self.open[claim.id] = count
            for seed in range(count):
                found = None if fresh else store.load(claim, seed)
                if found is None:
                    self.waiting.append(Task(claim, seed))
                else:
                    self.cached += 1
                    self.record(claim.id, found)
        self.total = self.done + len(self.waiting)
        self.waiting.sort(key=lambda task: -(self.known_seconds[task.claim.id] or 0.0))

    def measure(self, jobs: int) -> None:
        """Makes the waiting measurements."""
        self.report(())
        if not self.waiting:
            return
        workers: list[Worker] = []
        with tempfile.TemporaryDirectory(prefix="tenfold-claims-") as logs:
            try:
                while self.waiting or any(worker.task for worker in workers):
                    workers = [worker for worker in workers if worker.alive()]
                    while self.waiting and sum(worker.task is not None for worker in workers) < jobs:
                        idle = next((worker for worker in workers if worker.task is None), None)
                        if idle is None:
                            idle = Worker(Path(logs))
                            workers.append(idle)
                        idle.start(self.waiting.pop(0), self.scale)
                    busy = [worker for worker in workers if worker.task is not None]
                    wait([end for worker in busy for end in (worker.connection, worker.process.sentinel)], LOOK_EVERY)
                    for worker in busy:
                        self.collect(worker)
                    self.report(workers)
            except BaseException:
                for worker in workers:
                    worker.process.kill()
                raise
            finally:
                for worker in workers:
                    worker.dismiss()

    def collect(self, worker: Worker) -> None:
        """Takes a worker's answer, or its death, if there is one."""
        task, answer = worker.task, worker.answer()
        if task is None or answer is None:
            return
        worker.task = None
        claim = task.claim
        run = SeedRun(
            task.seed,
            seconds=answer["seconds"],
            cpu_seconds=answer["cpu_seconds"],
            finished=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
            code=code_version(claim.measure),
            machine=machine(),
            versions=library_versions(claim.measure),
        )
        if "measurement" in answer:
            run = replace(run, measurement=measurement_from_json(answer["measurement"]))
            self.store.save(claim, run)
        else:
            needs = (
                f"needs the data set {', '.join(claim.needs)}: " if claim.needs and answer["kind"] == "input" else ""
            )
            run = replace(run, error=f"{needs}{answer['error']}", traceback=answer["traceback"])
            dropped = [waiting for waiting in self.waiting if waiting.claim.id == claim.id]
            self.waiting = [waiting for waiting in self.waiting if waiting.claim.id != claim.id]
            self.open[claim.id] -= len(dropped)
            self.done += len(dropped)
        self.record(claim.id, run)

    def record(self, claim: str, run: SeedRun) -> None:
        """Adds the run of a seed, and judges the claim when it was the last."""
        self.done += 1
        self.open[claim] -= 1
        self.runs[claim].append(run)
        if self.open[claim] == 0:
            self.results[claim] = judge_claim(self.claims[claim], self.scale, self.runs[claim])
            self.unreported.append(self.results[claim])

    def report(self, workers: Iterable[Worker]) -> None:
        """Tells ``on_progress`` how far the run is."""
        if self.on_progress is None:
            return
        running = tuple(
            Running(
                worker.task.claim.id, worker.task.seed, worker.elapsed(), self.expected_seconds(worker.task.claim.id)
            )
            for worker in workers
            if worker.task is not None
        )
        finished, self.unreported = tuple(self.unreported), []
        self.on_progress(Progress(self.done, self.total, self.cached, running, self.seconds_left(running), finished))

    def expected_seconds(self, claim: str) -> float | None:
        """Cost of a measurement: this run's mean for the claim, an earlier run's, or this run's mean for all claims."""
        own = [run.seconds for run in self.runs[claim] if not run.cached and not run.error]
        if own:
            return sum(own) / len(own)
        if self.known_seconds[claim] is not None:
            return self.known_seconds[claim]
        every = [run.seconds for runs in self.runs.values() for run in runs if not run.cached and not run.error]
        return sum(every) / len(every) if every else None

    def seconds_left(self, running: Sequence[Running]) -> float | None:
        """The rest of the work over the processes at work, and no less than the longest rest of one measurement."""
        if not self.waiting and not running:
            return 0.0
        expected = [self.expected_seconds(task.claim.id) for task in self.waiting]
        rests = [
            None if task.expected_seconds is None else max(task.expected_seconds - task.seconds, 0.0)
            for task in running
        ]
        known = [seconds for seconds in (*expected, *rests) if seconds is not None]
        if len(known) < len(expected) + len(rests):
            return None
        return max(sum(known) / max(len(running), 1), *known)


@functools.cache
def machine() -> Mapping[str, object]:
    """What the measurements run on; threads and the like are left out, since each worker has one."""
    from tenfold.runtime import describe_machine

    return {name: value for name, value in describe_machine().items() if name in MACHINE}
