"""The two errors that Tenfold adds to Python's own: bad input named by place, and a missing extra named by its remedy."""

from __future__ import annotations

import os


class InputError(ValueError):
    """Something the user gave (a file, a folder, an option) cannot be used; the message is one line and says what would be right.

    Args:
        message: What is wrong, what was given, what would be right; one line.
        path: The file or folder at fault, if there is one.
        line: Line (text files) or row (tables) in it, counted from 1.

    >>> str(InputError("column 'age' holds text ('n/a'); numbers are needed", path="people.csv", line=7))
    "people.csv:7: column 'age' holds text ('n/a'); numbers are needed"
    """

    def __init__(self, message: str, *, path: str | os.PathLike[str] | None = None, line: int | None = None) -> None:
        self.message = message
        self.path = path
        self.line = line
        place = "" if path is None else f"{os.fspath(path)}: " if line is None else f"{os.fspath(path)}:{line}: "
        super().__init__(place + message)


class MissingExtraError(ImportError):
    """A package that only one extra needs is not installed; the message is the command that installs it.

    Args:
        package: The import name that was not found.
        extra: Tenfold's extra that brings it.

    >>> str(MissingExtraError("h5py", "elmo"))
    "this needs the package h5py: pip install 'tenfold[elmo]'"
    """

    def __init__(self, package: str, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(f"this needs the package {package}: pip install 'tenfold[{extra}]'")
