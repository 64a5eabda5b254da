"""The measurement: contestants take turns (A B A B ...), so that what disturbs the machine disturbs all alike."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.case import OURS, Case, MissingContestantError, Peer
from benchmarks.contestant import Contestant, Here, Timing, Worker


@dataclass(frozen=True)
class Spread:
    """Median, extremes, and the interquartile range as a share of the median."""

    median: float
    low: float
    high: float
    spread: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise at least one value."""
        median = statistics.median(values)
        if len(values) < 2 or median == 0:
            return cls(median, min(values), max(values), 0.0)
        first, _, third = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, min(values), max(values), (third - first) / median)


@dataclass(frozen=True)
class Row:
    """One contestant in one case. Times in seconds of one call, memory in bytes; ``missing`` says why there are none.

    ``wall_ratio`` and ``cpu_ratio`` are ours divided by this contestant's, turn by turn: below 1 Tenfold is the faster.
    """

    case: str
    contestant: str
    missing: str = ""
    place: str = "same process"
    calls: int = 0
    wall: Spread | None = None
    cpu: Spread | None = None
    wall_ratio: Spread | None = None
    cpu_ratio: Spread | None = None
    memory: int | None = None
    goal: float | None = None
    note: str = ""
    turns: Mapping[str, Sequence[float]] = field(default_factory=dict)


def measure(
    area: str,
    case: Case,
    *,
    repeats: int,
    threads: int = 1,
    turn_seconds: float = 0.1,
    pythons: Mapping[str, str] | None = None,
    memory: bool = True,
    on_turn: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Time every contestant of a case, in turns.

    Args:
        area: The module that holds the case; worker processes import it by this name.
        case: The case.
        repeats: Turns of each contestant, at least 1.
        threads: Threads that worker processes may use.
        turn_seconds: A turn repeats the call until it lasts about this long.
        pythons: Interpreters of contestants that have an environment of their own; these run as worker processes.
        memory: Whether to measure peak memory too, each contestant in a fresh process.
        on_turn: Told what happens next.

    Returns:
        One row a contestant, ours first, the missing ones included.
    """
    pythons = pythons or {}
    missing: dict[str, str] = {}
    present: dict[str, Contestant] = {}
    with ExitStack() as stack:
        for name in case.contestants():
            on_turn(f"{case.name}: {name} gets ready")
            try:
                if name in pythons:
                    present[name] = Worker(area, case.name, name, python=pythons[name], threads=threads)
                else:
                    present[name] = Here(case, name)
                stack.callback(present[name].close)
            except MissingContestantError as reason:
                missing[name] = str(reason)
        gc.collect()
        gc.freeze()  # what lives now is not searched again for garbage between the turns
        stack.callback(gc.unfreeze)
        calls = {name: _calls(contestant, turn_seconds) for name, contestant in present.items()}
        turns: dict[str, list[Timing]] = {name: [] for name in present}
        for turn in range(repeats):
            on_turn(f"{case.name}: turn {turn + 1} of {repeats}")
            for name, contestant in present.items():
                turns[name].append(contestant.time(calls[name]))

    rows = []
    for name in case.contestants():
        goal = (case.goal or {}).get(name)
        if name in missing:
            rows.append(Row(case.name, name, missing=_remedy(case, name, missing[name]), goal=goal, note=case.note))
            continue
        peak = None
        if memory:
            on_turn(f"{case.name}: memory of {name}")
            peak = _peak_memory(area, case, name, threads=threads, python=pythons.get(name))
        rows.append(
            Row(
                case.name,
                name,
                place="own process" if name in pythons else "same process",
                calls=calls[name],
                wall=Spread.of([timing.wall for timing in turns[name]]),
                cpu=Spread.of([timing.cpu for timing in turns[name]]),
                wall_ratio=_ratio(turns, name, "wall"),
                cpu_ratio=_ratio(turns, name, "cpu"),
                memory=peak,
                goal=goal,
                note=case.note,
                turns={kind: [getattr(timing, kind) for timing in turns[name]] for kind in ("wall", "cpu")},
            )
        )
    return rows


def _calls(contestant: Contestant, turn_seconds: float) -> int:
    """Calls that fill a turn, judged by the faster of two single calls."""
    once = min(contestant.time(1).wall for _ in range(2))
    return max(1, round(turn_seconds / max(once, 1e-7)))


def _ratio(turns: Mapping[str, Sequence[Timing]], name: str, kind: str) -> Spread | None:
    if name == OURS or OURS not in turns:
        return None
    pairs = zip(turns[OURS], turns[name], strict=True)
    return Spread.of([getattr(ours, kind) / max(getattr(peer, kind), 1e-12) for ours, peer in pairs])


def _peak_memory(area: str, case: Case, name: str, *, threads: int, python: str | None) -> int | None:
    options = {} if python is None else {"python": python}
    try:
        worker = Worker(area, case.name, name, threads=threads, **options)
    except MissingContestantError:
        return None
    try:
        return worker.memory()
    finally:
        worker.close()


def _remedy(case: Case, name: str, reason: str) -> str:
    """The package of the peer, where the import error could only tell the module."""
    peer = case.peers.get(name)
    if isinstance(peer, Peer) and reason.startswith("not installed"):
        return f"not installed: pip install {peer.package}"
    return reason
