"""Lists of recommendations for many users, written to a file block by block: memory does not grow with their number."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from tenfold.errors import InputError
from tenfold.files import atomic_path
from tenfold.files.limits import require_file

Lists = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
SUFFIXES = (".parquet", ".csv", ".tsv")
INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def read_ids(path: Path, integers: bool, block: int) -> Iterator[tuple[list[int], np.ndarray]]:
    """Line numbers and ids, one a line, a block at a time; blank lines are passed over.

    Args:
        path: A text file.
        integers: Whether the ids are integers.
        block: Ids a block.

    Raises:
        InputError: A line that is no integer where ids are integers, text that is not UTF-8.
    """
    lines: list[int] = []
    ids: list[str | int] = []
    try:
        with require_file(path).open(encoding="utf-8-sig") as stream:
            for number, line in enumerate(stream, 1):
                text = line.rstrip("\r\n")
                if not text.strip():
                    continue
                if integers and not INTEGER.fullmatch(text.strip()):
                    raise InputError(
                        f"{text[:40]!r} is no integer, as the model's ids of users are", path=path, line=number
                    )
                lines.append(number)
                ids.append(int(text) if integers else text)
                if len(ids) == block:
                    yield lines, np.array(ids)
                    lines, ids = [], []
    except UnicodeDecodeError as error:
        raise InputError("is not text in UTF-8", path=path) from error
    if ids:
        yield lines, np.array(ids)


def blocks_of(ids: np.ndarray, block: int) -> Iterator[np.ndarray]:
    """Consecutive parts of at most ``block`` ids."""
    for first in range(0, len(ids), block):
        yield ids[first : first + block]


def check_output(path: Path) -> None:
    """Refuses a file that could not be written, before the work.

    Raises:
        InputError: Its suffix is none of those that are known, or it is a folder.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"recommendations are written as {', '.join(SUFFIXES)}", path=path)
    if path.is_dir():
        raise InputError("this is a folder; the name of a file is needed", path=path)


def write_recommendations(path: Path, blocks: Iterator[np.ndarray], lists: Lists, item_ids: np.ndarray) -> int:
    """One row for each recommendation: user, rank from 1, item, score. Places that no item fills have no row.

    Args:
        path: ``.parquet``, ``.csv`` or ``.tsv``; appears whole or not at all.
        blocks: Ids of users, a block at a time.
        lists: From the ids of a block to columns of items, (block, n), -1 where there is none, and their scores.
        item_ids: Id of each column.

    Returns:
        How many rows were written.
    """
    check_output(path)
    rows = 0
    with atomic_path(path) as temporary:
        if path.suffix.lower() != ".parquet":
            separator = "\t" if path.suffix.lower() == ".tsv" else ","
            with temporary.open("wb") as stream:
                for number, frame in enumerate(_frames(blocks, lists, item_ids)):
                    frame.write_csv(stream, include_header=number == 0, separator=separator)
                    rows += frame.height
                if not rows:
                    stream.write((separator.join(("user", "rank", "item", "score")) + "\n").encode())
            return rows
        temporary.parent.mkdir(parents=True, exist_ok=True)
        parts = Path(tempfile.mkdtemp(prefix=".parts.", dir=temporary.parent))
        try:
            files = []
            for number, frame in enumerate(_frames(blocks, lists, item_ids)):
                files.append(parts / f"{number:09}.parquet")
                frame.write_parquet(files[-1], compression="zstd", compression_level=1)
                rows += frame.height
            if len(files) == 1:
                files[0].replace(temporary)
            else:
                _joined(files, item_ids).sink_parquet(temporary)  # streams: one part at a time is in memory
        finally:
            shutil.rmtree(parts, ignore_errors=True)
    return rows


def _joined(files: Sequence[Path], item_ids: np.ndarray) -> pl.LazyFrame:
    if files:
        return pl.scan_parquet(list(files), glob=False)
    nobody = np.empty(0, dtype=np.int64)
    return _frame(nobody, np.empty((0, 1), np.int64), np.empty((0, 1), np.float32), item_ids).lazy()


def _frames(blocks: Iterator[np.ndarray], lists: Lists, item_ids: np.ndarray) -> Iterator[pl.DataFrame]:
    for users in blocks:
        items, scores = lists(users)
        yield _frame(users, items, scores, item_ids)


def _frame(users: np.ndarray, items: np.ndarray, scores: np.ndarray, item_ids: np.ndarray) -> pl.DataFrame:
    there = items >= 0
    row, place = np.nonzero(there)
    return pl.DataFrame(
        {
            "user": users[row],
            "rank": (place + 1).astype(np.int32),
            "item": item_ids[items[there]],
            "score": scores[there].astype(np.float32),
        }
    )
