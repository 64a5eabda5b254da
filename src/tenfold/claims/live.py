"""What a person sees while claims run: each verdict as it comes, the measurements under way, and the time left.

At a terminal the lines under way are redrawn in place; in a log, each verdict is a line, and now and then one says how
far the run is. All of it goes to standard error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tenfold.claims.result import Result
from tenfold.claims.runner import Progress
from tenfold.claims.verdict import Verdict
from tenfold.claims.wording import SYMBOLS, comparison_text, deciding, duration_text, interval_text, number_words
from tenfold.console.progress import clock
from tenfold.console.terminal import is_terminal, messages

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

STYLES = {
    Verdict.HOLDS: "green",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.DOES_NOT_HOLD: "red",
    Verdict.ERROR: "bold magenta",
}
BAR = 28  # columns
LOG_EVERY = 30.0  # seconds between two lines on the state of the run in a log


@contextmanager
def live_progress() -> Iterator[Callable[[Progress], None]]:
    """A display for ``run_claims(on_progress=...)`` on standard error.

    Yields:
        The function that takes the state of the run.
    """
    if not is_terminal(sys.stderr):
        yield _Log()
        return
    from rich.live import Live

    console = messages()
    with Live(console=console, transient=True, refresh_per_second=8, redirect_stdout=False) as live:

        def show(progress: Progress) -> None:
            for result in progress.finished:
                console.print(verdict_line(result), soft_wrap=True)
            live.update(state(progress, max(console.height - 4, 1)))

        yield show


class _Log:
    """Lines for a log: verdicts as they come, and the state of the run twice a minute."""

    def __init__(self) -> None:
        self.written = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        for result in progress.finished:
            self.write(verdict_line(result).plain)
        if time.monotonic() - self.written >= LOG_EVERY:
            self.write(counted(progress))

    def write(self, line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
        self.written = time.monotonic()


def verdict_line(result: Result) -> Text:
    """One line for a claim that is done: verdict, id, what was measured against what, and how long it took."""
    from rich.text import Text

    line = Text(f"{SYMBOLS[result.verdict]} {result.verdict.value:<13}", style=STYLES[result.verdict])
    line.append(f" {result.claim.id}", style="default not bold")
    judgement = deciding(result)
    if result.error:
        line.append(f"  {result.error}", style="default not bold")
    elif judgement is not None:
        measured = interval_text(judgement.interval, judgement.criterion.unit)
        line.append(
            f"  {number_words(result.claim, judgement.criterion.number)}: {measured}, asked {comparison_text(judgement)}",
            style="dim not bold",
        )
    cached = bool(result.runs) and all(run.cached for run in result.runs)
    line.append(f"  {'from an earlier run' if cached else duration_text(result.seconds)}", style="dim not bold")
    return line


def state(progress: Progress, most: int) -> RenderableType:
    """The lines that are redrawn: at most so many that say what is being measured, then a bar with the time left."""
    from rich.console import Group
    from rich.text import Text

    lines = []
    for task in progress.running[:most]:
        expected = f" of about {clock(task.expected_seconds)}" if task.expected_seconds is not None else ""
        line = Text(f"  {task.claim} ", no_wrap=True, overflow="ellipsis")
        line.append(f"seed {task.seed}  {clock(task.seconds)}{expected}", style="dim")
        lines.append(line)
    if len(progress.running) > most:
        lines.append(Text(f"  and {len(progress.running) - most} more", style="dim"))
    filled = round(BAR * progress.done / progress.total) if progress.total else BAR
    bar = Text("━" * filled, style="cyan", no_wrap=True, overflow="ellipsis")
    bar.append("━" * (BAR - filled), style="bright_black")
    bar.append(f" {counted(progress)}", style="default")
    return Group(*lines, bar)


def counted(progress: Progress) -> str:
    """How far a run is, in words.

    >>> counted(Progress(done=3, total=8, cached=2, running=(), seconds_left=75.0))
    '3 of 8 measurements (2 from earlier runs), about 1:15 left'
    """
    cached = f" ({progress.cached} from earlier runs)" if progress.cached else ""
    left = f", about {clock(progress.seconds_left)} left" if progress.seconds_left is not None else ""
    return f"{progress.done} of {progress.total} measurements{cached}{left}"
