"""Claims about coins and clocks, measured for real in worker processes: one of each fate that a claim can have."""

import os
import random
import signal
import sys
import time
from pathlib import Path

from tenfold.claims import Claim, Criterion, Curve, Measurement, Plot
from tenfold.errors import InputError

AREA = "sample"


def coin_fairness(seed: int, scale: str) -> Measurement:
    """Throws a coin, and keeps account of the share of heads."""
    count = {"smoke": 2000, "quick": 20000, "full": 200000}[scale]
    generator = random.Random(seed)
    heads, shares, throws = 0.0, [], []
    for throw in range(1, count + 1):
        heads += generator.random() < 0.5
        if throw % (count // 20) == 0:
            throws.append(float(throw))
            shares.append(heads / throw)
    plot = Plot(
        "Share of heads",
        "throws",
        "share of heads",
        {"fair coin": Curve(throws, shares), "expected": Curve(throws, [0.5] * len(throws))},
        x_log=True,
        caption="The broken line is what a fair coin gives in the long run.",
    )
    bars = Plot(
        "Heads and tails",
        "",
        "share",
        {"fair coin": Curve([0.0, 1.0], [heads / count, 1 - heads / count])},
        kind="bar",
        ticks=["heads", "tails"],
    )
    error = Plot(
        "Distance from one half",
        "throws",
        "distance",
        {"fair coin": Curve(throws, [abs(share - 0.5) + 1e-5 for share in shares])},
        kind="scatter",
        x_log=True,
        y_log=True,
    )
    return Measurement(
        {"distance from 1/2": abs(heads / count - 0.5), "heads": heads, "share": heads / count},
        {"share": plot, "sides": bars, "error": error},
    )


def noise(seed: int, scale: str) -> Measurement:
    """A number around 1 that says nothing against a threshold of 1."""
    generator = random.Random(seed)
    return Measurement({"ratio": 1 + (-1) ** seed * generator.uniform(0.1, 0.2)})


def nothing_random(seed: int, scale: str) -> Measurement:
    """The same for every seed."""
    return Measurement({"answer": 42.0})


def not_finite(seed: int, scale: str) -> Measurement:
    """A measurement that diverged for one seed."""
    return Measurement({"loss": float("nan") if seed == 1 else 0.5})


def raises(seed: int, scale: str) -> Measurement:
    """Fails with an exception."""
    raise ZeroDivisionError("no throws, no share")


def exits(seed: int, scale: str) -> Measurement:
    """Takes its process down."""
    sys.stderr.write("about to leave\n")
    sys.stderr.flush()
    os._exit(3)


def is_killed(seed: int, scale: str) -> Measurement:
    """Dies as under the kernel's out-of-memory killer."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def lacks_data(seed: int, scale: str) -> Measurement:
    """Needs a data set that is not here."""
    raise InputError("the data set 'coins' is not here; put coins.csv into the folder that TENFOLD_DATA names")


def forgets_its_number(seed: int, scale: str) -> Measurement:
    """Returns another number than the criterion's."""
    return Measurement({"share": 0.5})


def uses_global_generator(seed: int, scale: str) -> Measurement:
    """Draws from the global generator, which the worker seeds."""
    return Measurement({"draw": random.random(), "threads": float(os.environ["OMP_NUM_THREADS"])})


def leaves_a_trace(seed: int, scale: str) -> Measurement:
    """Counts its runs in a folder, so that a test can see what was measured anew."""
    folder = Path(os.environ["TENFOLD_SAMPLE_TRACES"])
    (folder / f"{time.time_ns()}-seed{seed}-process{os.getpid()}").touch()
    return Measurement({"answer": 42.0 + seed})


def sleeps_after_the_first(seed: int, scale: str) -> Measurement:
    """Leaves a trace, and is slow for every seed but the first."""
    measurement = leaves_a_trace(seed, scale)
    if seed and "TENFOLD_SAMPLE_HURRY" not in os.environ:
        time.sleep(60)
    return measurement


def prints_much(seed: int, scale: str) -> Measurement:
    """Writes to standard output, where the runner must not see it."""
    sys.stdout.write("noise on standard output\n" * 5000)
    return Measurement({"answer": 42.0})


def sample(name, measure, criterion, **more):
    return Claim(
        id=f"{AREA}.{name}",
        area=AREA,
        title=name.replace("-", " ").capitalize(),
        statement=more.pop("statement", f"What is said of {name.replace('-', ' ')} is true."),
        paper="Bernoulli 1713, Ars conjectandi, part 4",
        published="a share of heads within 1/50 of one half, in 25550 throws",
        measure=measure,
        criteria=criterion if isinstance(criterion, tuple) else (criterion,),
        **more,
    )


HOLDS = sample(
    "fair-coin",
    coin_fairness,
    (Criterion("distance from 1/2", "at most", 0.2), Criterion("heads", "at least", 500.0, "throws", "median")),
    statement="The share of heads of a fair coin comes close to one half when it is thrown often enough.",
    units={"heads": "throws"},
    descriptions={"heads": "heads among all throws"},
    ranges={"distance from 1/2": (0.0, 0.5)},
    limits="Says nothing of coins that stand on their edge.",
)
DOES_NOT_HOLD = sample("exact-half", coin_fairness, Criterion("distance from 1/2", "at most", -1.0))
KNOWN_TO_FAIL = sample("known-to-fail", nothing_random, Criterion("answer", "at most", 41.0), expected="does not hold")
INCONCLUSIVE = sample("noise", noise, Criterion("ratio", "at most", 1.0))
EXACT = sample("exact", nothing_random, Criterion("answer", "at least", 42.0))
NOT_FINITE = sample("diverges", not_finite, Criterion("loss", "at most", 1.0))
RAISES = sample("raises", raises, Criterion("share", "at most", 1.0))
EXITS = sample("exits", exits, Criterion("share", "at most", 1.0))
IS_KILLED = sample("is-killed", is_killed, Criterion("share", "at most", 1.0))
LACKS_DATA = sample("lacks-data", lacks_data, Criterion("share", "at most", 1.0), needs=("coins",))
FORGETS = sample("forgets", forgets_its_number, Criterion("distance", "at most", 1.0))
GLOBAL = sample("global-generator", uses_global_generator, Criterion("draw", "at most", 1.0))
TRACED = sample("traced", leaves_a_trace, Criterion("answer", "at least", 42.0))
SLOW = sample("slow", sleeps_after_the_first, Criterion("answer", "at least", 42.0))
PRINTS = sample("prints", prints_much, Criterion("answer", "at least", 42.0))
