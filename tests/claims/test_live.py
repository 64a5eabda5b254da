"""The live display names what is being measured; tested on what it draws, since a quick measurement ends between two looks."""

import io

from rich.console import Console

from tenfold.claims.live import state
from tenfold.claims.runner import Progress, Running


def drawn(progress, most):
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(state(progress, most))
    return console.file.getvalue()


def test_display_names_the_measurements_at_work_and_counts_those_it_has_no_room_for():
    running = tuple(
        Running(claim=f"sample.claim-{seed}", seed=seed, seconds=5.0, expected_seconds=60.0) for seed in range(3)
    )
    text = drawn(Progress(done=4, total=10, cached=0, running=running, seconds_left=75.0), most=2)
    assert "sample.claim-0 seed 0" in text
    assert "sample.claim-1 seed 1" in text
    assert "of about 1:00" in text
    assert "sample.claim-2" not in text
    assert "and 1 more" in text
    assert "4 of 10 measurements, about 1:15 left" in text
