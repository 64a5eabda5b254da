"""The command ``tenfold``: runs it, and turns whatever goes wrong into one line on standard error and an exit code.

Exit codes: 0 success; 1 the work failed, or a claim that should hold does not; 2 the input was wrong; 130 interrupted.
A traceback is printed with ``-v`` only.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from tenfold.areas import AREAS
from tenfold.errors import MissingExtraError

BAD_INPUT = (
    ValueError,
    MissingExtraError,
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``tenfold`` with the given words, or with the process's own.

    Args:
        arguments: The words after ``tenfold``.

    Returns:
        The exit code.
    """
    words, verbose = without_verbose(sys.argv[1:] if arguments is None else arguments)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  open as long as the process
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    try:
        from tenfold.console.root import run  # here, so that Ctrl-C is answered in one line while typer loads, too

        code = run(words)
        sys.stdout.flush()
    except KeyboardInterrupt as interruption:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the process at once
        report(what_was_saved(interruption), interruption, verbose)
        code = 130
    except Exception as error:  # noqa: BLE001  the one place where every error becomes a message
        if isinstance(error, BrokenPipeError) and output_is_closed():
            code = 1
        else:
            message, code = explain(error)
            report(message, error, verbose)
    if output_is_closed():
        discard_output()
    return code


def without_verbose(words: Sequence[str]) -> tuple[list[str], bool]:
    """Take ``-v`` and ``--verbose`` out of the words, wherever they stand before ``--``.

    >>> without_verbose(["mixture", "fit", "-v", "--", "-v"])
    (['mixture', 'fit', '--', '-v'], True)
    """
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word not in {"-v", "--verbose"}]
    return [*kept, *words[end:]], len(kept) < end


def explain(error: Exception) -> tuple[str, int]:
    """What to tell the user about an error, and the exit code.

    >>> from tenfold.errors import InputError
    >>> explain(InputError("numbers are needed, not 'n/a'", path="people.csv", line=7))
    ("people.csv:7: numbers are needed, not 'n/a'", 2)
    >>> explain(FileNotFoundError(2, "No such file or directory", "people.csv"))
    ('people.csv: no such file or directory', 2)
    >>> explain(ZeroDivisionError("division by zero"))
    ('ZeroDivisionError: division by zero (run again with -v for the traceback)', 1)
    """
    from tenfold.console.root import explain_usage

    usage = explain_usage(error)
    if usage is not None:
        return usage
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        package = error.name.partition(".")[0]
        extras = [area.extra for area in AREAS if area.extra is not None and package in area.requires]
        if extras:
            return str(MissingExtraError(package, extras[0])), 2
    code = 2 if isinstance(error, BAD_INPUT) else 1
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror[:1].lower() + error.strerror[1:]
        return (
            f"{os.fspath(error.filename)}: {reason}" if isinstance(error.filename, (str, os.PathLike)) else reason
        ), code
    text = " ".join(str(error).split())
    if code == 2 and text:
        return text, code
    return f"{type(error).__name__}{': ' if text else ''}{text} (run again with -v for the traceback)", code


def what_was_saved(interruption: KeyboardInterrupt) -> str:
    """What to tell after Ctrl-C: the interruption's own words, and the checkpoint (its attribute ``saved``), if any.

    >>> what_was_saved(KeyboardInterrupt())
    'interrupted'
    """
    message = " ".join(str(interruption).split()) or "interrupted"
    saved = getattr(interruption, "saved", None)
    return message if saved is None or str(saved) in message else f"{message}; saved in {saved}"


def report(message: str, error: BaseException, verbose: bool) -> None:
    """Write the message, and with ``verbose`` the traceback before it, to standard error."""
    if verbose:
        traceback.print_exception(error)
    sys.stderr.write(f"tenfold: {message}\n")


def output_is_closed() -> bool:
    """Whether standard output takes nothing more: the reader of the pipe has left (``| head``), or the disk is full."""
    try:
        sys.stdout.flush()
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:  # an output that Python keeps in memory
        return False
    except OSError:
        return True
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(descriptor, 0)  # asks for errors only
    return any(event & select.POLLERR for _, event in poll.poll(0))


def discard_output() -> None:
    """Send what standard output still holds nowhere, so that Python does not complain about it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
