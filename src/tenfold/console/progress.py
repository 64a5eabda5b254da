"""Progress of long work on standard error: a bar with the time left at a terminal, an occasional line in a log.

Library code does not import this module: it takes a callback (``on_progress``), and the command passes
``display.advance``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from tenfold.console.tables import cell_text, plain_value
from tenfold.console.terminal import is_terminal, messages

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

NARROW = 60  # columns; below, the bar makes room for the numbers


class Progress(Protocol):
    """What :func:`progress` gives: something that is told how far the work is."""

    def advance(self, n: int | float = 1, **fields: object) -> None:
        """``n`` more units are done; ``fields`` (``loss=0.25``) are shown beside them until replaced."""

    def update(self, *, description: str | None = None, total: int | float | None = None) -> None:
        """Say what is done now, or how much there is in all."""


@contextmanager
def progress(
    description: str, total: int | float | None = None, *, show: bool = True, every: int | float = 30.0
) -> Iterator[Progress]:
    """Show how far a piece of work is, and how long it will still take.

    Inside another ``progress`` at a terminal, this one takes a line below it and leaves when it is done.

    Args:
        description: What is done, a word or two.
        total: Units of work in all; None when unknown.
        show: False shows nothing, so that callers need no second path.
        every: Seconds between two lines when standard error is not a terminal. Work shorter than that writes none.

    Yields:
        The display, to be told of each step.

    >>> with progress("counting", 3) as display:
    ...     for i in range(3):
    ...         display.advance(last=i)
    """
    if not show:
        yield Silence()
    elif _shown or is_terminal(sys.stderr):  # a display that is on has put a proxy in the place of the stream
        with shared_bars() as bars:
            bar = Bar(bars, description, total)
            try:
                yield bar
            finally:
                bar.leave()
    else:
        lines = Lines(description, total, every)
        yield lines
        lines.finish()


class Silence:
    """Shows nothing."""

    def advance(self, n: int | float = 1, **fields: object) -> None:
        """Nothing."""

    def update(self, *, description: str | None = None, total: int | float | None = None) -> None:
        """Nothing."""


class Lines:
    """A line in the log every now and then, and a last one if there was a first."""

    def __init__(self, description: str, total: int | float | None, every: int | float) -> None:
        self.description = description
        self.total = total
        self.every = every
        self.done: int | float = 0
        self.fields: dict[str, object] = {}
        self.start = self.written = time.monotonic()
        self.lines = 0

    def advance(self, n: int | float = 1, **fields: object) -> None:
        """Count ``n`` units; write a line when the last one is old enough."""
        self.done += n
        self.fields.update(fields)
        if time.monotonic() - self.written >= self.every:
            self.write(time_left(self.done, self.total, time.monotonic() - self.start))

    def update(self, *, description: str | None = None, total: int | float | None = None) -> None:
        """Change the description or the total."""
        self.description = description if description is not None else self.description
        self.total = total if total is not None else self.total

    def finish(self) -> None:
        """Write the last line, if any was written."""
        if self.lines:
            self.write(f"done in {clock(time.monotonic() - self.start)}")

    def write(self, remark: str) -> None:
        """Write one line."""
        parts = [counted(self.done, self.total), remark, field_text(self.fields)]
        sys.stderr.write(f"{self.description}: {', '.join(part for part in parts if part)}\n")
        sys.stderr.flush()
        self.written = time.monotonic()
        self.lines += 1


class Bar:
    """One line of the display at a terminal."""

    def __init__(self, bars: Bars, description: str, total: int | float | None) -> None:
        self.bars = bars
        self.nested = bool(bars.tasks)
        self.fields: dict[str, object] = {}
        self.task = bars.add_task(description, total=total, remarks="")
        if self.nested:
            bars.refresh()  # seen even if it is done before the display is drawn again

    def advance(self, n: int | float = 1, **fields: object) -> None:
        """Move the bar by ``n`` units."""
        self.fields.update(fields)
        self.bars.update(self.task, advance=n, remarks=field_text(self.fields))

    def update(self, *, description: str | None = None, total: int | float | None = None) -> None:
        """Change the description or the total."""
        self.bars.update(self.task, description=description, total=total)

    def leave(self) -> None:
        """Give the line back, unless it is the outermost, which stays to be read."""
        if self.nested:
            self.bars.remove_task(self.task)
        else:
            self.bars.stop_task(self.task)


_shown: list[Bars] = []  # the display on the terminal, there is room for one


@contextmanager
def shared_bars() -> Iterator[Bars]:
    """The display that is on the terminal already, or a new one."""
    if _shown:
        yield _shown[-1]
        return
    with new_bars() as bars:
        _shown.append(bars)
        try:
            yield bars
        finally:
            _shown.remove(bars)


def new_bars() -> Bars:
    """A display: description, bar, count, time, and what the work says of itself."""
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
    from rich.progress import Progress as Bars
    from rich.table import Column
    from rich.text import Text

    console = messages()
    narrow = console.width < NARROW

    class Count(ProgressColumn):
        def render(self, task: Task) -> Text:
            if narrow and task.total:
                return Text(f"{task.completed / task.total:.0%}".replace("%", " %"))
            return Text(counted(task.completed, task.total))

    class Time(ProgressColumn):
        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            elapsed = task.elapsed or 0.0
            if task.stop_time is not None or task.finished:
                return Text(f"in {clock(elapsed)}")
            return Text(time_left(task.completed, task.total, elapsed) or clock(elapsed), style="cyan")

    remarks = TextColumn("{task.fields[remarks]}", style="dim", markup=False, table_column=Column(no_wrap=True))
    bar = [BarColumn(bar_width=24)] if not narrow else []
    return Bars(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        *bar,
        Count(table_column=Column(no_wrap=True, justify="right", min_width=5)),
        Time(table_column=Column(no_wrap=True, min_width=9)),
        remarks,
        console=console,
        redirect_stdout=sys.stdout.isatty(),  # results that go to a file must not end up on the terminal
    )


def counted(done: int | float, total: int | float | None) -> str:
    """How much is done.

    >>> counted(12, 200), counted(12, None)
    ('12/200 (6 %)', '12')
    """
    if total is None:
        return f"{done:.12g}"
    return f"{done:.12g}/{total:.12g} ({done / total:.0%})".replace("%", " %") if total else f"{done:.12g}/0"


def time_left(done: int | float, total: int | float | None, elapsed: float) -> str:
    """The time that the rest takes at the pace so far; nothing when there is no telling.

    >>> time_left(25, 100, elapsed=30.0), time_left(0, 100, elapsed=30.0)
    ('1:30 left', '')
    """
    if total is None or done <= 0:
        return ""
    return f"{clock(elapsed * max(total - done, 0) / done)} left"


def clock(seconds: int | float) -> str:
    """Seconds as minutes and seconds, and hours where there are any.

    >>> clock(7.2), clock(75), clock(3 * 3600 + 62)
    ('0:07', '1:15', '3:01:02')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def field_text(fields: dict[str, object]) -> str:
    """What the work says of itself.

    >>> field_text({"loss": 0.123456, "epoch": 3})
    'loss 0.1235, epoch 3'
    """
    values = {key: plain_value(value) for key, value in fields.items()}
    return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {cell_text(v)}" for k, v in values.items())
