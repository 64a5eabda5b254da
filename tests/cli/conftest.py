"""Runs the real command in a real process: through pipes, or at a terminal of a given width."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(sys.executable).with_name("tenfold")
TENFOLD = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-m", "tenfold.console.main"]
PROBE = [sys.executable, str(Path(__file__).with_name("probe.py"))]
STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def environment(**changes: str) -> dict[str, str]:
    unwanted = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "PYTHONUNBUFFERED", "PY_COLORS"}
    return {key: value for key, value in os.environ.items() if key not in unwanted} | {"PYTHONUTF8": "1"} | changes


def piped(*words: str, program: list[str] = TENFOLD, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*program, *words], capture_output=True, text=True, env=environment(**changes), timeout=60, check=False
    )


def at_terminal(*words: str, width: int = 80, program: list[str] = TENFOLD, **changes: str) -> tuple[str, int]:
    """What the terminal received on both streams, styles included, and the exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    process = subprocess.Popen(
        [*program, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm-256color") | changes,
        start_new_session=True,
    )
    os.close(theirs)
    received = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        received += chunk
    os.close(ours)
    return received.decode().replace("\r\n", "\n"), process.wait(timeout=60)


def without_style(text: str) -> str:
    return STYLE.sub("", text)


@pytest.fixture
def shell() -> SimpleNamespace:
    """The ways to run the command, for tests that cannot import this file."""
    return SimpleNamespace(
        piped=piped,
        at_terminal=at_terminal,
        without_style=without_style,
        environment=environment,
        tenfold=TENFOLD,
        probe=PROBE,
    )
