"""Arrays in ``.npy`` and ``.npz`` files, without pickle: the header is judged before anything is allocated.

An ``.npz`` archive may hold several arrays. The one to read is named, ``array="x_train"`` or ``digits.npz:x_train``;
without a name it is the only array, or the only one with at least two dimensions (labels beside data have one).
"""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tenfold.errors import InputError
from tenfold.files.limits import DAMAGE, require_file, require_memory

Location = str | os.PathLike[str]
Header = tuple[tuple[int, ...], np.dtype[Any]]


@runtime_checkable
class Readable(Protocol):
    """What both open files and members of a zip archive are."""

    def read(self, size: int = ..., /) -> bytes:
        """The next bytes."""


def read_array(path: Location, *, array: str | None = None) -> np.ndarray:
    """One numeric array of any shape.

    Args:
        path: ``.npy`` or ``.npz``; ``digits.npz:x_train`` names the array as `array` does.
        array: Which array of an ``.npz``; see the module for the rule without it.

    Returns:
        The array: booleans, integers or real floats, at least one value, as stored.

    Raises:
        InputError: Not such a file, damaged, several arrays to choose from, Python objects, text, complex numbers.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/digits.npz", x=np.zeros((10, 8, 8)), y=np.zeros(10))
    ...     read_array(f"{folder}/digits.npz").shape, read_array(f"{folder}/digits.npz:y").shape
    ((10, 8, 8), (10,))
    """
    file, named = split_member(path)
    if named is not None and array is not None and named != array:
        raise InputError(f"names the array {named!r}, but array={array!r} was given", path=path)
    array = array if array is not None else named
    file = require_file(file)
    try:
        values = _from_npz(file, array) if zipfile.is_zipfile(file) else _from_npy(file, array)
    except InputError:
        raise
    except DAMAGE as error:
        raise InputError(f"this is no readable numpy file ({_first_line(error)})", path=file) from error
    if values.size == 0:
        raise InputError(f"the array is empty, its shape is {values.shape}", path=file)
    return values


def split_member(path: Location) -> tuple[Path, str | None]:
    """A path and the array that it names behind a colon, unless a file of the whole name is there.

    >>> split_member("digits.npz:x_train")
    (PosixPath('digits.npz'), 'x_train')
    """
    text = os.fspath(path)
    before, colon, name = text.rpartition(":")
    if colon and name and before.lower().endswith((".npz", ".npy")) and not os.path.lexists(text):
        return Path(before), name
    return Path(text), None


def _from_npy(path: Path, array: str | None) -> np.ndarray:
    if array is not None:
        raise InputError(f"holds one array without a name; there is no {array!r} in it", path=path)
    with path.open("rb") as stream:
        header = _header(stream)
        _judge(header, path.stat().st_size - stream.tell(), path)
        stream.seek(0)
        return np.lib.format.read_array(stream, allow_pickle=False)


def _from_npz(path: Path, array: str | None) -> np.ndarray:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        headers: dict[str, Header] = {}
        for name, info in members.items():
            with archive.open(info) as stream:
                headers[name] = _header(stream)
        name = _chosen(headers, array, path)
        with archive.open(members[name]) as stream:
            _header(stream)
            _judge(headers[name], members[name].file_size - stream.tell(), path)
        with archive.open(members[name]) as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)


def _chosen(headers: dict[str, Header], array: str | None, path: Path) -> str:
    if not headers:
        raise InputError("the archive holds no array", path=path)
    listed = ", ".join(f"{name} {shape}" for name, (shape, _) in list(headers.items())[:12])
    if array is not None:
        if array not in headers:
            raise InputError(f"holds no array {array!r}; it holds {listed}", path=path)
        return array
    candidates = [name for name, (shape, _) in headers.items() if len(shape) >= 2]
    for names in (list(headers), candidates):
        if len(names) == 1:
            return names[0]
    raise InputError(f"holds several arrays ({listed}); name one: {path.name}:{next(iter(headers))}", path=path)


def _header(stream: Readable) -> Header:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise ValueError(f"format version {version}")
    return shape, dtype


def _judge(header: Header, room: int, path: Path) -> None:
    """Refuses what is not numbers, and a header that promises more or less than the file has."""
    shape, dtype = header
    if dtype.hasobject:
        raise InputError("holds Python objects, which are never unpickled; save it as an array of numbers", path=path)
    if dtype.kind not in "biuf":
        raise InputError(f"holds values of type {dtype}; real numbers are needed", path=path)
    size = math.prod(shape) * dtype.itemsize
    if size != room:
        raise InputError(
            f"the file is damaged: shape {shape} of {dtype} takes {size} bytes, {room} are there", path=path
        )
    require_memory(size, path, "give a part of the data")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
