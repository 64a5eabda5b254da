"""Files and folders that are either complete or not there: written beside their place, flushed to disk, then renamed.

A reader never sees half a file, and a writer that fails, is interrupted or is killed leaves what was there before.
What a killed process leaves is one hidden entry ``.<name>.<token>.tmp`` beside the target, which nothing reads.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from tenfold.errors import InputError

Location = str | os.PathLike[str]

RENAME_EXCHANGE = 2  # linux/fs.h: swap two names in one step; macOS calls the same bit RENAME_SWAP
AT_FDCWD = -100


def atomic_write(path: Location, content: bytes | str) -> Path:
    r"""Writes a whole file in one step; text is written as UTF-8, with its line ends as they are.

    Args:
        path: The file; missing parent folders are made, an existing file is replaced and keeps its permissions.
        content: All of it.

    Returns:
        The path, as a ``Path``.

    Raises:
        InputError: `path` is a folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     atomic_write(f"{folder}/deep/note.txt", "first line\n").read_text()
    'first line\n'
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


@contextlib.contextmanager
def atomic_path(path: Location) -> Iterator[Path]:
    r"""A temporary path beside `path`, of the same suffix, that takes its place when the block ends without exception.

    Args:
        path: The file; missing parent folders are made, an existing file is replaced and keeps its permissions.
            A device or pipe (``/dev/stdout``) cannot be renamed over and is written directly.

    Yields:
        The path to write to.

    Raises:
        InputError: `path` is a folder.
        FileNotFoundError: The block ended without writing the file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try:
    ...         with atomic_path(f"{folder}/numbers.csv") as temporary:
    ...             _ = temporary.write_text("1,2\n3,")
    ...             raise OSError("disk full")
    ...     except OSError:
    ...         os.listdir(folder)
    []
    """
    target = Path(path).resolve()
    if target.is_dir():
        raise InputError("this is a folder; the name of a file is needed", path=path)
    if target.exists() and not target.is_file():
        yield target
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(target)
    try:
        yield temporary
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        _flush(temporary)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush(target.parent)


@contextlib.contextmanager
def atomic_folder(path: Location) -> Iterator[Path]:
    """A new, empty folder beside `path` that takes its place, all files at once, when the block ends without exception.

    If `path` exists, the new folder replaces it in one step (Linux and macOS; elsewhere by two renames, undone if the
    second fails). Entries of the old folder that the block has not written anew, such as a README or checkpoints, are
    kept: they are hard-linked into the new one, so nothing that a user put there is ever deleted. A sub-folder written
    anew is merged likewise.

    Args:
        path: The folder; missing parents are made.

    Yields:
        The folder to write into.

    Raises:
        InputError: `path` is a file, or holds the working directory (a folder of its own is needed).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for text in "first", "second":
    ...         with atomic_folder(f"{place}/model") as folder:
    ...             _ = (folder / "config.json").write_text(text)
    ...     os.listdir(place), Path(place, "model", "config.json").read_text()
    (['model'], 'second')
    """
    target = check_folder(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(target)
    temporary.mkdir()
    try:
        yield temporary
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            _keep(target, temporary)
        for entry in sorted(temporary.rglob("*"), reverse=True):
            if not entry.is_symlink():
                _flush(entry)
        _flush(temporary)
        if target.exists():
            _swap(temporary, target)  # the old folder now bears the temporary name
        else:
            temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _flush(target.parent)
    shutil.rmtree(temporary, ignore_errors=True)


def check_folder(path: Location) -> Path:
    """The whole path of a folder that `atomic_folder` can write; to be asked before long work.

    Raises:
        InputError: It or a parent is a file, or it holds the working directory.
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_dir():
        raise InputError("this is a file; the name of a folder is needed", path=path)
    for parent in target.parents:
        if parent.exists() and not parent.is_dir():
            raise InputError(f"{parent.name} is a file; a folder cannot lie in it", path=path)
    if Path.cwd().resolve().is_relative_to(target):
        raise InputError("this folder holds the working directory; give a folder of its own, such as model/", path=path)
    return target


def _beside(target: Path) -> Path:
    """A hidden name of the same suffix in the same folder; long names are cut, as file systems end at 255 bytes."""
    stem = target.stem.encode()[:100].decode(errors="ignore")
    return target.with_name(f".{stem}.{secrets.token_hex(6)}.tmp{target.suffix[:40]}")


def _flush(path: Path) -> None:
    """Asks the system to put a file's content, or a folder's list of names, onto the disk."""
    if path.is_dir() and sys.platform == "win32":
        return  # folders cannot be opened there
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        # some network file systems refuse to sync folders; the rename is still in order
        with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _keep(old: Path, new: Path) -> None:
    """Links into `new` what only `old` has; falls back to copies where the file system has no hard links."""
    for entry in old.iterdir():
        place = new / entry.name
        if entry.is_dir() and not entry.is_symlink():
            if place.is_dir() or not place.exists():
                place.mkdir(exist_ok=True)
                _keep(entry, place)
        elif not os.path.lexists(place):
            try:
                os.link(entry, place, follow_symlinks=False)
            except OSError:
                shutil.copy2(entry, place, follow_symlinks=False)


def _swap(new: Path, old: Path) -> None:
    """Exchanges two folders of the same parent, in one step where the system can."""
    if _exchange(new, old):
        return
    aside = _beside(old)
    old.rename(aside)
    try:
        new.rename(old)
    except BaseException:
        aside.rename(old)
        raise
    aside.rename(new)


def _exchange(first: Path, second: Path) -> bool:
    """renameat2(RENAME_EXCHANGE) on Linux, renamex_np(RENAME_SWAP) on macOS; False where neither is to be had."""
    if sys.platform not in ("linux", "darwin"):
        return False
    library = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(first), os.fsencode(second)
    if sys.platform == "darwin":
        return hasattr(library, "renamex_np") and library.renamex_np(*names, RENAME_EXCHANGE) == 0
    if not hasattr(library, "renameat2"):
        return False
    return library.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0
