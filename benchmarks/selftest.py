"""A benchmark of nothing: shows on any machine that the harness works, and that a missing peer gets its row."""

from __future__ import annotations

from benchmarks.case import Case, Peer


def _numbers() -> list[float]:
    return [float(number) for number in range(2000)]


def _built_in_sum(numbers: list[float]) -> float:
    return sum(numbers)


def _loop(numbers: list[float]) -> float:
    total = 0.0
    for number in numbers:
        total += number
    return total


def _exact_sum(numbers: list[float]) -> float:
    import math

    return math.fsum(numbers)


def _never(numbers: list[float]) -> float:
    raise AssertionError("a peer that is not installed never runs")


def _as_array(numbers: list[float]) -> object:
    import array

    return array.array("d", numbers)


CASES = [
    Case(
        "sum of 2000 numbers",
        _numbers,
        _built_in_sum,
        {
            "loop": _loop,
            "fsum": Peer(_exact_sum, package="math", prepare=_as_array),
            "nobody": Peer(_never, package="no-such-package", module="no_such_module_at_all"),
        },
        note="the first contestant is Python's own sum; nothing of Tenfold is measured here",
    ),
    Case("32 MiB of zeros", lambda: 2**25, bytearray, {"twice": lambda count: bytearray(2 * count)}, quick=False),
]
