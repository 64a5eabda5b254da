"""What a benchmark case is: inputs, our way of doing the work, and the peers' ways.

An area's module (``benchmarks/<area>.py``) holds a list ``CASES``. It is also imported by peers' interpreters, where
Tenfold is not installed; so it imports nothing but this module at its top, and everything else inside the functions:

    def inputs():
        import numpy as np
        return np.random.default_rng(0).normal(size=1000)

    def ours(x):
        from tenfold.somewhere import total
        return total(x)

    def peer(x):
        import somebody
        return somebody.sum(x)

    CASES = [Case("sum of 1000", inputs, ours, {"somebody": Peer(peer, package="somebody")})]
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OURS = "tenfold"
HARNESS = {"__main__", "case", "contestant", "measure", "results", "worker"}


class MissingContestantError(Exception):
    """A contestant cannot take part here; the message is its row in the table."""


@dataclass(frozen=True)
class Peer:
    """Another library's way of doing the case's work.

    Args:
        run: Does the work once on what ``prepare`` (or the case's ``setup``) returned. Only this is timed.
        package: What ``pip install`` needs to bring the peer.
        module: Its import name, when that differs from the package's.
        prepare: Turns the case's inputs into the form that the peer wants, untimed.
    """

    run: Callable[[Any], object]
    package: str
    module: str | None = None
    prepare: Callable[[Any], Any] | None = None

    def installed(self) -> bool:
        """Whether this interpreter finds the peer."""
        return importlib.util.find_spec(self.module or self.package) is not None


@dataclass(frozen=True)
class Case:
    """One piece of work that Tenfold and its peers do on the same inputs.

    Args:
        name: What is measured, with its sizes; unique in the area.
        setup: Makes the inputs, the same in every process (fix the seed). Untimed.
        ours: Does the work once on the inputs.
        peers: Name to a ``Peer``, or to a plain function for what comes with Tenfold's own dependencies.
        prepare: Turns the inputs into the form that ``ours`` wants, untimed.
        quick: Whether ``--quick`` includes the case.
        goal: The ratios that we aim at, for example ``{"pyro": 0.5}``: shown beside what was measured.
        note: What a reader has to know to read the figures rightly.
    """

    name: str
    setup: Callable[[], Any]
    ours: Callable[[Any], object]
    peers: Mapping[str, Peer | Callable[[Any], object]]
    prepare: Callable[[Any], Any] | None = None
    quick: bool = True
    goal: Mapping[str, float] | None = None
    note: str = ""

    def contestants(self) -> tuple[str, ...]:
        """Ours first, then the peers in their order."""
        return (OURS, *self.peers)

    def ready(self, contestant: str) -> Callable[[], object]:
        """The contestant's work as a function without arguments, its inputs made.

        Raises:
            MissingContestantError: A package that it needs is not installed in this interpreter.
        """
        if contestant == OURS:
            return self._bound(self.ours, self.prepare)
        peer = self.peers[contestant]
        if not isinstance(peer, Peer):
            return self._bound(peer, None)
        if not peer.installed():
            raise MissingContestantError(f"not installed: pip install {peer.package}")
        return self._bound(peer.run, peer.prepare)

    def _bound(self, run: Callable[[Any], object], prepare: Callable[[Any], Any] | None) -> Callable[[], object]:
        inputs = self.setup()
        if prepare is not None:
            inputs = prepare(inputs)
        return lambda: run(inputs)


def areas() -> list[str]:
    """The modules of this folder that hold cases."""
    return sorted(
        module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.name not in HARNESS
    )


def load_cases(area: str) -> Sequence[Case]:
    """The cases of ``benchmarks/<area>.py``.

    Raises:
        ValueError: There is no such module, or two of its cases have one name.
    """
    if area not in areas():
        raise ValueError(f"no benchmark {area!r}; there are: {', '.join(areas())}")
    cases: Sequence[Case] = importlib.import_module(f"benchmarks.{area}").CASES
    names = [case.name for case in cases]
    if len(set(names)) != len(names):
        raise ValueError(f"benchmarks/{area}.py: two cases have the same name")
    return cases
