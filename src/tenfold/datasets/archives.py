"""Single members of wheels, sdists and gzip files, read into memory: nothing is extracted, imported or run.

A member is named exactly, must be a regular file, and may not be larger than the caller knows it to be; names inside
the archive never become paths on this machine.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

from tenfold.errors import InputError
from tenfold.files.limits import DAMAGE


def read_member(archive: Path, member: str, *, limit: int) -> bytes:
    """The content of one regular file in a zip archive (a wheel) or tar archive (an sdist).

    Args:
        archive: The archive.
        member: Its full name in the archive.
        limit: Most bytes that it may unpack to.

    Raises:
        InputError: No such member, no regular file, larger than the limit, or a damaged archive.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened, opened.open(member) as stream:
                content = stream.read(limit + 1)
        else:
            with tarfile.open(archive) as opened_tar:
                found = opened_tar.extractfile(opened_tar.getmember(member))
                if found is None or not opened_tar.getmember(member).isreg():
                    raise InputError(f"{member} is no regular file", path=archive)
                content = found.read(limit + 1)
    except InputError:
        raise
    except (*DAMAGE, tarfile.TarError) as error:
        reason = "there is no such member" if isinstance(error, KeyError) else str(error).split("\n")[0]
        raise InputError(f"{member} cannot be read from this archive ({reason})", path=archive) from error
    return _within(content, limit, member, archive)


def gunzipped(content: bytes, *, limit: int, path: Path) -> bytes:
    """The unpacked content of gzip bytes, at most `limit` of them.

    Raises:
        InputError: Damaged, or larger than the limit.
    """
    try:
        with gzip.open(io.BytesIO(content)) as stream:
            unpacked = stream.read(limit + 1)
    except DAMAGE as error:
        raise InputError(f"the gzip compression is damaged ({error})", path=path) from error
    return _within(unpacked, limit, "the gzip content", path)


def _within(content: bytes, limit: int, name: str, path: Path) -> bytes:
    if len(content) > limit:
        raise InputError(f"{name} unpacks to more than the {limit} bytes that are known; refused", path=path)
    return content
