"""How a training run is stopped: the first Ctrl-C or SIGTERM asks it to stop after the step, the second stops it."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C or SIGTERM. A ``KeyboardInterrupt``, so that nothing swallows it by accident.

    Args:
        message: What was stopped, where, and what was saved; one line.
        saved: The checkpoint to resume from, or None if there is none.

    >>> stop = Interrupted("stopped at step 12", Path("run/step-00000012.safetensors"))
    >>> stop.saved.name, isinstance(stop, KeyboardInterrupt)
    ('step-00000012.safetensors', True)
    """

    def __init__(self, message: str, saved: Path | None = None) -> None:
        super().__init__(message)
        self.saved = saved


class Stop(BaseException):
    """Leaves Lightning's loops. Not a ``KeyboardInterrupt``, which Lightning turns into ``sys.exit(1)``, nor an
    ``Exception``, which code inside a training step might catch.
    """


class StopSignals:
    """Takes over Ctrl-C and SIGTERM while it is entered: the first sets `requested`, the second raises `Stop`.

    A step is never broken in the middle, where the weights would be half updated. Signals can only be taken over in
    the main thread; elsewhere nothing is changed.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self.take_over()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self._before:
            number, handler = self._before.popitem()
            # None: a handler that was not installed from Python and cannot be put back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def take_over(self) -> None:
        """Installs the handlers, again if somebody else has taken the signals meanwhile."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.signal(number, self._receive)
                self._before.setdefault(number, before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            raise Stop
        self.requested = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
