"""What a file may ask for: no more memory than the machine has; and how readers fail on damaged bytes."""

from __future__ import annotations

import binascii
import gzip
import lzma
import os
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path

from tenfold.errors import InputError

#: What the standard library, numpy and Pillow raise on bytes that are not what their name says.
DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    binascii.Error,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def memory() -> int:
    """Bytes of memory that this machine has; 2**40 where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2**40


def require_memory(size: int, path: str | os.PathLike[str], remedy: str) -> None:
    """Refuses what would not fit into memory before any of it is allocated.

    Args:
        size: Bytes needed.
        path: The file that asks for them.
        remedy: What the user can do, as the end of the sentence.

    Raises:
        InputError: The machine has less.
    """
    if size > memory():
        raise InputError(
            f"needs {in_units(size)} of memory, this machine has {in_units(memory())}; {remedy}", path=path
        )


def require_file(path: str | os.PathLike[str]) -> Path:
    """The path, if a readable file is there.

    Raises:
        InputError: Nothing there, a folder, or an empty file.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else str(error)
        raise InputError(reason, path=path) from error
    if path.is_dir():
        raise InputError("this is a folder; a file is needed", path=path)
    if path.is_file() and size == 0:
        raise InputError("the file is empty", path=path)
    return path


def gunzip(path: Path) -> bytes:
    """The content of a gzip file, no more than memory allows.

    Raises:
        InputError: Not gzip, cut short, or too large.
    """
    largest = memory() // 2
    try:
        with gzip.open(path) as stream:
            data = stream.read(largest + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"the gzip compression is damaged ({error})", path=path) from error
    if len(data) > largest:
        raise InputError(
            f"unpacks to more than {in_units(largest)}; half of this machine's memory is the limit", path=path
        )
    return data


def in_units(size: int | float) -> str:
    """A size in bytes for people.

    >>> in_units(512), in_units(47_040_016), in_units(2.5e9)
    ('512 bytes', '47.0 MB', '2.5 GB')
    """
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} bytes"
