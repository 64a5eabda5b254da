"""Where output goes: results to standard output, all else to standard error, styled only where a person reads it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rich.console import Console


@runtime_checkable
class Stream(Protocol):
    """What is asked of standard output and standard error."""

    def isatty(self) -> bool:
        """Whether it is a terminal."""


def is_styled(stream: Stream) -> bool:
    """Whether colours and lines belong on this stream: a capable terminal whose user has not set ``NO_COLOR``.

    Args:
        stream: ``sys.stdout`` or ``sys.stderr``.

    >>> import io
    >>> is_styled(io.StringIO())
    False
    """
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def is_terminal(stream: Stream) -> bool:
    """Whether a person at a terminal that can move its cursor reads this stream.

    Args:
        stream: ``sys.stdout`` or ``sys.stderr``.
    """
    return stream.isatty() and os.environ.get("TERM", "") not in {"dumb", "unknown"}


def results() -> Console:
    """The console for a command's results, on the present standard output."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, emoji=False, markup=False)


def messages() -> Console:
    """The console for progress and remarks, on the present standard error."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False, emoji=False, markup=False)


def remark(text: str) -> None:
    """Write one line of what the user should know to standard error, under the command's name as errors are.

    Args:
        text: The line, without a full stop at its end.
    """
    sys.stderr.write(f"tenfold: {text}\n")
    sys.stderr.flush()
