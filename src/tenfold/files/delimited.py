"""Text tables (CSV, TSV): how they are written is found out, and what is wrong with them is named by line.

Happy files go through polars, whole columns at a time. Python's csv module reads the first records, to find the
separator and the header, and the whole file once polars has stumbled: it knows in which line the fault lies.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import mmap
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import polars as pl

from tenfold.errors import InputError
from tenfold.files.limits import gunzip

SAMPLE = 1 << 18  # characters that the dialect is found out from
MISSING = {"", "na", "n/a", "nan", "null", "none", "?", "-", "."}
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Dialect:
    """How a text table is written.

    Args:
        separator: Tab, semicolon or comma.
        names: The columns' names: the header, or ``column_1``, ``column_2``, ... where the first line is data.
        header: Whether the first line is a header.
        decimal_comma: Whether 1,5 means one and a half (never with commas as separators).
        old_mac: Whether lines end in a lone carriage return, which polars does not know.
    """

    separator: str
    names: tuple[str, ...]
    header: bool
    decimal_comma: bool
    old_mac: bool


def find_dialect(path: Path) -> Dialect:
    """Separator, header and decimal sign of a text table, from its first records.

    The first line is data if every cell in it is a number or empty, and a header otherwise.

    Raises:
        InputError: No text, UTF-16, no UTF-8, a column name that appears twice.
    """
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            raw = stream.read(SAMPLE)
            whole = not stream.read(1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot be read ({error})", path=path) from error
    text = decoded(raw, path, whole=whole)
    if not text.strip("\r\n \t"):
        raise InputError("the file is empty", path=path)
    old_mac = "\r" in text and "\n" not in text
    if not whole:
        text = text[: 1 + max(text.rfind("\n"), text.rfind("\r") if old_mac else -1)] or text
    separator = _separator(text, tab_only=".tsv" in [suffix.lower() for suffix in path.suffixes])
    try:
        rows = [cells for _, cells in islice(records(text, separator, path), 50)]
    except InputError:
        rows = []
    if not rows:  # the fault lies in the first record: say so
        rows = [cells for _, cells in islice(records(text, separator, path), 1)]
    if not rows:
        raise InputError("the file is empty", path=path)
    cells = [cell for row in rows for cell in row]
    decimal_comma = separator != "," and _has_decimal_commas(cells)
    first = rows[0]
    values = [number(cell, decimal_comma) for cell in first]
    data = all(value is not None or not cell.strip() for cell, value in zip(first, values, strict=True))
    header = not (data and any(value is not None for value in values))
    names = tuple((cell.strip() if header else "") or f"column_{index}" for index, cell in enumerate(first, start=1))
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"the column name {name!r} appears twice in the header", path=path, line=1)
    return Dialect(separator, names, header, decimal_comma, old_mac)


def read_numbers(path: Path, dialect: Dialect, columns: Sequence[int]) -> np.ndarray:
    """The chosen columns as float64, (rows, columns); every cell a finite number.

    Raises:
        InputError: Names the line and column of text, of a missing or infinite value, or the line of the wrong length.
    """
    frame = None if dialect.old_mac else _with_polars(path, dialect, numeric=columns)
    if frame is not None and frame.height and not frame[:, -1].has_nulls():
        values = frame[:, list(columns)].to_numpy()
        if np.isfinite(values).all():  # a missing cell has become NaN
            return np.ascontiguousarray(values, dtype=np.float64)
    rows = []
    for line, cells in body(path, dialect):
        rows.append([_finite(cells[index], index, line, path, dialect) for index in columns])
    if not rows:
        raise InputError("there is a header, but no row under it", path=path)
    return np.array(rows, dtype=np.float64)


def read_typed(path: Path, dialect: Dialect) -> pl.DataFrame:
    """All columns, typed by what they hold (integers, floats, booleans, text); empty cells are null.

    Raises:
        InputError: Names the line that is too short or too long, or whose quotes do not close.
    """
    frame = None if dialect.old_mac else _with_polars(path, dialect, sample=10_000)
    if frame is None and not dialect.old_mac:  # further down, a column holds something else
        frame = _with_polars(path, dialect)
    if frame is None or frame[:, -1].has_nulls():  # a short row ends in nulls, as does one with empty cells
        rows = [cells for _, cells in body(path, dialect)]
        if frame is None:
            text = io.StringIO(newline="")
            csv.writer(text, delimiter=dialect.separator, lineterminator="\n").writerows(rows)
            frame = _with_polars(text.getvalue().encode(), dialect, header=False) if rows else None
    if frame is None or not frame.height:
        raise InputError("holds no rows that can be read as a table", path=path)
    return frame


def body(path: Path, dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """The records under the header, each with the line that it starts in; every one as long as the first.

    Blank lines are skipped, but in a table of one column a blank line between two others is a missing value.
    """
    raw = gunzip(path) if path.suffix.lower() == ".gz" else path.read_bytes()
    found = records(decoded(raw, path), dialect.separator, path, blank=len(dialect.names) == 1)
    if dialect.header:
        next(found)
    width = len(dialect.names)
    for line, cells in found:
        if len(cells) != width:
            s = "" if len(cells) == 1 else "s"
            raise InputError(f"this line has {len(cells)} value{s}, the first has {width}", path=path, line=line)
        yield line, cells


def records(text: str, separator: str, path: Path, *, blank: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Records of a text table with the line that each starts in; blank lines inside the table as [""] if asked for."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    blanks: list[int] = []
    started = False
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise InputError(
                f"the quotes or the length of a value are wrong ({error})", path=path, line=line
            ) from error
        if cells is None:
            return
        if not cells or (len(cells) == 1 and not cells[0].strip()):
            blanks.append(line)
            continue
        if blank and started:
            yield from ((number, [""]) for number in blanks)
        blanks.clear()
        started = True
        yield line, cells


def decoded(raw: bytes, path: Path, *, whole: bool = True) -> str:
    """UTF-8 text without its byte-order mark; `whole` is False for the first bytes of a longer file."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError("this text is UTF-16; save it as UTF-8", path=path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if not whole and error.start > len(raw) - 4:
            return raw[: error.start].decode("utf-8-sig")
        line = 1 + raw[: error.start].count(b"\n")
        raise InputError(
            f"byte {raw[error.start]:#04x} is no UTF-8 text; save the file as UTF-8", path=path, line=line
        ) from None


def number(cell: str, decimal_comma: bool) -> float | None:
    """The number that a cell holds, or None: ASCII digits, no thousands marks; "nan" and "inf" are numbers here."""
    cell = cell.strip()
    if decimal_comma:
        cell = cell.replace(",", ".")
    if not cell.isascii() or "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return None


def _finite(cell: str, index: int, line: int, path: Path, dialect: Dialect) -> float:
    value = number(cell, dialect.decimal_comma)
    if value is not None and math.isfinite(value):
        return value
    name = dialect.names[index]
    shown = cell if len(cell) <= 40 else cell[:37] + "..."
    if cell.strip().lower() in MISSING:
        was = f" ({shown!r})" if cell.strip() else ""
        raise InputError(f"column {name!r} has a missing value{was}; every cell needs a number", path=path, line=line)
    if value is not None:
        raise InputError(f"column {name!r} holds {shown!r}; finite numbers are needed", path=path, line=line)
    raise InputError(f"column {name!r} holds text ({shown!r}); numbers are needed", path=path, line=line)


def _with_polars(
    source: Path | bytes,
    dialect: Dialect,
    *,
    numeric: Sequence[int] | None = None,
    header: bool | None = None,
    sample: int | None = None,
) -> pl.DataFrame | None:
    """The table as polars reads it, or None where it stumbles: then the records are read one by one to say why."""
    if isinstance(source, Path) and source.suffix.lower() == ".gz":
        source = gunzip(source)
    schema = None
    # polars reads numbers straight from the bytes, but panics on a cell that is one lone quote: such go through strings
    straight = numeric is not None and not _has_quotes(source)
    if numeric is not None:
        types = [pl.Float64 if straight and index in numeric else pl.String for index in range(len(dialect.names))]
        schema = dict(zip(dialect.names, types, strict=True))
    try:
        frame = pl.read_csv(
            source,
            separator=dialect.separator,
            decimal_comma=dialect.decimal_comma,
            has_header=dialect.header if header is None else header,
            schema=schema,
            infer_schema_length=sample,
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError):
        return None
    if frame.width != len(dialect.names):
        return None
    frame.columns = list(dialect.names)
    if numeric is None or straight:
        return frame
    cells = [pl.col(dialect.names[index]) for index in numeric]
    if dialect.decimal_comma:
        cells = [cell.str.replace(",", ".", literal=True) for cell in cells]
    return frame.with_columns(cell.cast(pl.Float64, strict=False) for cell in cells)


def _has_quotes(source: Path | bytes) -> bool:
    if isinstance(source, bytes):
        return b'"' in source
    with source.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b'"') >= 0


def _separator(text: str, *, tab_only: bool) -> str:
    """The first of tab, semicolon, comma that gives the first two records the same number of cells, two or more."""
    if tab_only:
        return "\t"
    widths = {}
    for separator in "\t;,":
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        try:
            counts = [len(cells) for cells in islice((row for row in reader if row), 2)]
        except csv.Error:
            continue
        if counts and counts[0] >= 2 and len(set(counts)) == 1:
            return separator
        widths[separator] = counts[0] if counts else 0
    return max(widths, key=lambda separator: widths[separator]) if max(widths.values(), default=0) > 1 else ","


def _has_decimal_commas(cells: Sequence[str]) -> bool:
    """Whether some number is written with a comma and none with a point."""
    commas = any(DECIMAL_COMMA.fullmatch(cell.strip()) for cell in cells)
    return commas and not any("." in cell and number(cell, False) is not None for cell in cells)
