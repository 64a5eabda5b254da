r"""Reads pairs of sequences, and turns text into ids: two-column files, pronouncing dictionaries, tokens, vocabularies.

A file of pairs has one pair a line, source and target with a tab between, UTF-8, no header (``.gz`` is unpacked). A
dictionary (``.dict``, ``.dict.gz``) has one word a line and its phones behind it, as CMUdict does.

Tokens are characters (``"character"``: code points), what stands between white space (``"space"``), or the matches of a
regular expression (``"regex:..."``), which must leave nothing but white space out.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from tenfold.datasets.pronunciations import read_entries
from tenfold.errors import InputError
from tenfold.files.delimited import decoded
from tenfold.files.limits import gunzip, require_file, require_memory
from tenfold.raml.seq2seq import BOS, EOS, PAD, UNK

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # names of the ids PAD, BOS, EOS, UNK
TOKENS = ("character", "space")
REGEX = "regex:"
MOST_TOKENS = 2_000  # of a side of a pair: the work of a step grows with the longest
BYTES_A_CHARACTER = 60  # of memory, while a file is read


@dataclass(frozen=True)
class Pairs:
    """Sources and targets as text, and where they were read.

    Args:
        sources: One a pair.
        targets: One a pair.
        path: The file, if they are from one.
        lines: Numbers of their lines in it, from 1.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    path: Path | None = None
    lines: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.sources)

    def refuse(self, row: int, message: str) -> InputError:
        """The error that names the pair's file and line, or its number among the pairs, from 1."""
        if self.path is None or self.lines is None:
            return InputError(f"pair {row + 1}: {message}")
        return InputError(message, path=self.path, line=self.lines[row])


def as_pairs(pairs: Pairs | Iterable[tuple[str, str]]) -> Pairs:
    """Pairs from tuples of two texts.

    Raises:
        TypeError: Something that is no tuple of two texts.

    >>> as_pairs([("tea", "T IY")]).targets
    ('T IY',)
    """
    if isinstance(pairs, Pairs):
        return pairs
    rows = list(pairs)
    for number, row in enumerate(rows, start=1):
        if isinstance(row, str) or len(row) != 2 or not all(isinstance(side, str) for side in row):
            raise TypeError(f"pair {number} is {row!r:.60}; a tuple of two texts is needed")
    return Pairs(tuple(source for source, _ in rows), tuple(target for _, target in rows))


def read_pairs(path: str | os.PathLike[str], *, stress: bool = False) -> Pairs:
    r"""The pairs in a file.

    Args:
        path: Two columns with a tab between; or a dictionary, by its suffix ``.dict`` or ``.dict.gz``.
        stress: Whether the phones of a dictionary keep their digits of stress.

    Raises:
        InputError: Names the file and line of a line without a tab or with two, of an empty side, or of bytes that are
            no UTF-8; or there is no pair at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "pairs.tsv")
    ...     _ = file.write_text("tea\tT IY\n")
    ...     read_pairs(file).sources
    ('tea',)
    """
    file = require_file(path)
    text = _text(file)
    if is_dictionary(file):
        entries = list(read_entries(text, file, stress=stress))
        rows = [(entry.line, entry.word, " ".join(entry.phones)) for entry in entries]
    else:
        rows = [(number, *_two_sides(line, file, number)) for number, line in _lines(text)]
    if not rows:
        raise InputError("there is no pair in this file", path=file)
    lines, sources, targets = zip(*rows, strict=True)
    return Pairs(sources, targets, file, lines)


def read_sources(path: str | os.PathLike[str]) -> tuple[list[str], list[int]]:
    """The sources in a file, one a line, and their lines' numbers; of a file of pairs, the first column.

    Raises:
        InputError: Names the file and line of an empty source, or of bytes that are no UTF-8.
    """
    file = require_file(path)
    text = _text(file)
    if is_dictionary(file):
        entries = list(read_entries(text, file))
        return [entry.word for entry in entries], [entry.line for entry in entries]
    sources, lines = [], []
    for number, line in _lines(text):
        source = line.split("\t", 1)[0]
        if not source.strip():
            raise InputError("the source is empty", path=file, line=number)
        sources.append(source)
        lines.append(number)
    if not sources:
        raise InputError("there is no source in this file", path=file)
    return sources, lines


def is_dictionary(path: Path) -> bool:
    """Whether the name is that of a pronouncing dictionary.

    >>> is_dictionary(Path("cmudict.dict.gz")), is_dictionary(Path("pairs.tsv"))
    (True, False)
    """
    return path.name.lower().endswith((".dict", ".dict.gz"))


def _text(file: Path) -> str:
    remedy = "train on a part of it"
    if file.suffix.lower() == ".gz":
        raw = gunzip(file)
    else:
        require_memory(file.stat().st_size, file, remedy)
        raw = file.read_bytes()
    require_memory(len(raw) * BYTES_A_CHARACTER, file, remedy)
    return decoded(raw, file)


def _lines(text: str) -> list[tuple[int, str]]:
    """Lines with their numbers; ends are those of Unix or Windows, and empty lines at the very end do not count."""
    return [(number, line.removesuffix("\r")) for number, line in enumerate(text.rstrip("\r\n").split("\n"), start=1)]


def _two_sides(line: str, file: Path, number: int) -> tuple[str, str]:
    sides = line.split("\t")
    if len(sides) == 1:
        raise InputError(
            f"there is no tab in {line!r:.60}; a line is source, tab, target"
            if line.strip()
            else "the line is empty; a line is source, tab, target",
            path=file,
            line=number,
        )
    if len(sides) > 2:
        raise InputError(f"there are {len(sides)} columns; two are needed, source and target", path=file, line=number)
    for name, side in zip(("source", "target"), sides, strict=True):
        if not side.strip():
            raise InputError(f"the {name} is empty", path=file, line=number)
    return sides[0], sides[1]


def tokenize(text: str, tokens: str) -> list[str]:
    r"""The tokens of a text.

    Args:
        text: Any.
        tokens: ``"character"``, ``"space"``, or ``"regex:"`` and an expression.

    Raises:
        ValueError: Another kind, an expression that cannot be compiled or matches nothing, or one that leaves out what
            is no white space.

    >>> tokenize("no tea", "character"), tokenize("T IY", "space"), tokenize("CCl", "regex:Cl|[A-Z]")
    (['n', 'o', ' ', 't', 'e', 'a'], ['T', 'IY'], ['C', 'Cl'])
    """
    if tokens == "character":
        return list(text)
    if tokens == "space":
        return text.split()
    found, end = [], 0
    for match in _expression(tokens).finditer(text):
        if match.start() == match.end():
            continue
        _nothing_between(text[end : match.start()], tokens)
        found.append(match[0])
        end = match.end()
    _nothing_between(text[end:], tokens)
    return found


def join(tokens: Sequence[str], kind: str) -> str:
    """The text of tokens: characters stand side by side, other tokens with a space between.

    >>> join(["t", "e", "a"], "character"), join(["T", "IY"], "space")
    ('tea', 'T IY')
    """
    return ("" if kind == "character" else " ").join(tokens)


def check_tokens(name: str, tokens: str) -> None:
    """Raises a ValueError that names the argument unless ``tokens`` is a kind of tokens."""
    if tokens not in TOKENS and not tokens.startswith(REGEX):
        raise ValueError(f"{name}={tokens!r} is not one of 'character', 'space', 'regex:...'")
    if tokens not in TOKENS:
        _expression(tokens)


@lru_cache(maxsize=16)
def _expression(tokens: str) -> re.Pattern[str]:
    if not tokens.startswith(REGEX):
        raise ValueError(f"tokens={tokens!r} is not one of 'character', 'space', 'regex:...'")
    try:
        return re.compile(tokens.removeprefix(REGEX))
    except re.error as error:
        raise ValueError(f"tokens={tokens!r} is no regular expression: {error}") from None


def _nothing_between(text: str, tokens: str) -> None:
    if text.strip():
        raise ValueError(f"{text.strip()!r:.40} is no token of {tokens!r}")


class Vocabulary:
    """Tokens and their ids; `PAD`, `BOS`, `EOS` and `UNK` are 0 to 3 in each.

    Args:
        tokens: The others, from id 4 on; none twice, none empty, none with a line break.

    Raises:
        ValueError: A token that is there twice, empty, or holds a line break.

    >>> vocabulary = Vocabulary(["a", "b"])
    >>> len(vocabulary), vocabulary.encode(["b", "?"]), vocabulary.decode([5, 4])
    (6, [5, 3], ['b', 'a'])
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = tuple(tokens)
        self._ids = {token: number for number, token in enumerate(self.tokens, start=len(SPECIAL))}
        if len(self._ids) < len(self.tokens):
            twice = next(token for token, count in Counter(self.tokens).items() if count > 1)
            raise ValueError(f"the token {twice!r} is there twice")
        for token in self.tokens:
            if not token or "\n" in token:
                raise ValueError(f"{token!r} cannot be a token: it is empty or holds a line break")

    @classmethod
    def of(cls, sequences: Iterable[Sequence[str]], min_count: int = 1) -> Vocabulary:
        """The tokens that appear ``min_count`` times or more, in the order of their names.

        >>> Vocabulary.of([["b", "a"], ["b"]], min_count=2).tokens
        ('b',)
        """
        counts = Counter(token for sequence in sequences for token in sequence)
        return cls(sorted(token for token, count in counts.items() if count >= min_count))

    def __len__(self) -> int:
        return len(SPECIAL) + len(self.tokens)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.tokens == other.tokens

    def __hash__(self) -> int:
        return hash(self.tokens)

    def __contains__(self, token: str) -> bool:
        return token in self._ids

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Ids; `UNK` for a token that is not there."""
        return [self._ids.get(token, UNK) for token in tokens]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Tokens; `PAD`, `BOS` and `EOS` are left out, `UNK` is ``<unk>``."""
        return [
            SPECIAL[UNK] if number == UNK else self.tokens[number - len(SPECIAL)]
            for number in ids
            if number not in (PAD, BOS, EOS)
        ]

    def first_unknown(self, tokens: Iterable[str]) -> str | None:
        """The first token that is not there."""
        return next((token for token in tokens if token not in self._ids), None)


def padded(sequences: Sequence[Sequence[int]]) -> tuple[Int64[Tensor, "rows width"], Int64[Tensor, " rows"]]:
    """Ids in one tensor, `PAD` behind each, and their lengths.

    >>> padded([[4, 5], [6]])[0].tolist()
    [[4, 5], [6, 0]]
    """
    lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.long)
    ids = torch.full((len(sequences), max([1, *map(len, sequences)])), PAD)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence, dtype=torch.long)
    return ids, lengths


def require_room(pairs: Pairs, *sides: Sequence[Sequence[str]]) -> None:
    """Refuses pairs whose ids, each side padded to its longest, would not fit into memory.

    Raises:
        InputError: They would not.
    """
    width = sum(max(map(len, side), default=0) for side in sides)
    require_memory(8 * len(pairs) * width, pairs.path or "the pairs", "leave out the longest pairs")


def token_rows(pairs: Pairs, side: str, tokens: str) -> list[list[str]]:
    """The tokens of one side, ``"source"`` or ``"target"``, of every pair.

    Raises:
        InputError: Names the line of a side without a token, with too many, or with what is no token.
    """
    rows = []
    for row, text in enumerate(pairs.sources if side == "source" else pairs.targets):
        try:
            found = tokenize(text, tokens)
        except ValueError as error:
            raise pairs.refuse(row, f"the {side} does not fit: {error}") from None
        if not 1 <= len(found) <= MOST_TOKENS:
            reason = f"has {len(found):,} tokens; {MOST_TOKENS:,} are the most" if found else "is empty"
            raise pairs.refuse(row, f"the {side} {reason}")
        rows.append(found)
    return rows
