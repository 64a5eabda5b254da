"""``tenfold`` with one more area, ``probe``, whose commands fail, wait and print on purpose; the tests run it.

Several commands may follow one another, each ended by a form feed: ``width=20 areas --then width=40 areas``.
"""

import fcntl
import struct
import sys
import termios
import time
import types
from pathlib import Path

import typer

import tenfold.areas
from tenfold.areas import Area
from tenfold.console import options
from tenfold.console.progress import progress
from tenfold.console.tables import show_table
from tenfold.errors import InputError, MissingExtraError

app = typer.Typer(help="Fail on purpose; needs tenfold[probe].")


class Interrupted(KeyboardInterrupt):
    """As training raises it."""

    saved = Path("model/checkpoint.ckpt")


@app.command()
def fail(kind: str, seed: options.Seed = 0, device: options.Device = "auto") -> None:
    """Raise an error of that kind; not [bold] at all."""
    if kind == "input":
        raise InputError("column 'age' holds text ('n/a'); numbers are needed", path="people.csv", line=7)
    if kind == "value":
        raise ValueError("num_groups=5 does not divide\n  num_channels=32")
    if kind == "file":
        Path("no/such/file.csv").read_text()
    if kind == "extra":
        raise MissingExtraError("h5py", "elmo")
    if kind == "import":
        import package_of_the_probe  # noqa: F401
    if kind == "bug":
        raise ZeroDivisionError("division by zero")
    if kind == "exit":
        raise typer.Exit(1)


@app.command()
def wait(saves: bool = False) -> None:
    """Work until interrupted."""
    try:
        with progress("waiting", 1000, every=0.1) as display:
            for i in range(1000):
                time.sleep(0.02)
                display.advance(step=i)
                if i == 2:
                    sys.stdout.write("ready\n")
                    sys.stdout.flush()
    except KeyboardInterrupt:
        if saves:
            raise Interrupted("interrupted after 3 epochs") from None
        raise


@app.command()
def work() -> None:
    """Show progress on standard error, also inside other progress, and a result on standard output."""
    with progress("working [fast]", 20) as outer:
        for i in range(20):
            time.sleep(0.02)
            outer.advance(loss=1 / (i + 1))
            if i == 10:
                with progress("inner", None) as inner:
                    inner.advance(3)
                    time.sleep(0.2)
                sys.stdout.write("in between\n")
    show_table("Result [all]", ["name", "loss"], [["[bold]x[/bold]", 0.05]])


@app.command()
def rows(count: int = 20000, json: options.Json = False) -> None:
    """Print a long table."""
    show_table("Rows", ["row", "square"], [[i, i * i] for i in range(count)], json=json)


if __name__ == "__main__":
    module = types.ModuleType("tenfold.probe.cli")
    module.app = app  # type: ignore[attr-defined]
    sys.modules["tenfold.probe.cli"] = module
    tenfold.areas.AREAS += (
        Area("probe", "Nobody 2000, Probing", "Fail on purpose.", extra="probe", requires=("package_of_the_probe",)),
    )
    from tenfold.console.main import main

    code, words = 0, sys.argv[1:]
    while words:
        end = words.index("--then") if "--then" in words else len(words)
        command, words = words[:end], words[end + 1 :]
        if command and command[0].startswith("width="):
            columns = int(command.pop(0).removeprefix("width="))
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        code = max(code, main(command))
        if words:
            sys.stdout.write("\f\n")
    sys.exit(code if len(sys.argv) > 1 else main())
