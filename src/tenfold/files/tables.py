"""Tables that users have, CSV, Parquet and numpy files: read strictly, the row at fault named; written atomically."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from tenfold.errors import InputError
from tenfold.files import delimited
from tenfold.files.arrays import read_array, split_member
from tenfold.files.atomic import atomic_path
from tenfold.files.limits import require_file
from tenfold.files.parquet_pages import pages_agree, survives_reading

Location = str | os.PathLike[str]

TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
ARRAYS = (".npy", ".npz")
PARQUET = (".parquet", ".pq")
SMALLEST_PARQUET = 12  # bytes: the mark at both ends, and the length of the footer


@dataclass(frozen=True)
class Table:
    """A table of finite numbers.

    Args:
        values: (rows, columns), at least one of each; float32 if the file's own numbers fit it exactly by their type
            (float32, float16, booleans, integers of 8 or 16 bits), else float64.
        names: One a column; ``column_1``, ``column_2``, ... where the file has none.
        path: Where it was read.
    """

    values: Float[np.ndarray, "rows columns"]
    names: tuple[str, ...]
    path: Path


def read_table(path: Location, *, columns: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> Table:
    r"""Reads a table in which every cell is a finite number.

    Text: comma, semicolon or tab; with a header, or none where the first line holds numbers only; decimal point, or
    decimal comma where the comma does not separate; UTF-8; optionally gzipped. Of several arrays in an ``.npz`` one is
    named, as in ``digits.npz:x`` (:func:`tenfold.files.read_array` has the rule). A Parquet file whose pages do not
    agree with its footer is read by another process first (half a second), since damage can end the process that reads.

    Args:
        path: ``.csv``, ``.tsv`` (or either with ``.gz``), ``.parquet``, ``.npy`` or ``.npz``.
        columns: Names of the columns to read, in this order; the others may hold anything.
        exclude: Names of columns not to read, which may hold anything.

    Returns:
        The table; an array of shape (n,) is one column.

    Raises:
        InputError: Names file, row (line, for text) and column of text among numbers, of missing values, NaN or
            infinity; names rows that are too short or too long, damaged and empty files, unknown suffixes and columns.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "people.csv")
    ...     _ = file.write_text("age,height\n31,1.75\n44,1.62\n")
    ...     table = read_table(file)
    >>> table.names, table.values.tolist()
    (('age', 'height'), [[31.0, 1.75], [44.0, 1.62]])
    """
    file, _ = split_member(path)
    kind = _kind(file)
    if kind in ARRAYS:
        return _from_array(path, file, columns, exclude)
    require_file(file)
    if kind in TEXT:
        dialect = delimited.find_dialect(file)
        chosen = _chosen(dialect.names, columns, exclude, file)
        values = delimited.read_numbers(file, dialect, chosen)
        return Table(values, tuple(dialect.names[index] for index in chosen), file)
    frame = _read_parquet(file)
    names = [frame.columns[index] for index in _chosen(frame.columns, columns, exclude, file)]
    return Table(_numbers(frame.select(names), file), tuple(names), file)


def read_frame(path: Location) -> pl.DataFrame:
    r"""Reads a table of any columns, typed by what they hold.

    Args:
        path: As for :func:`read_table`.

    Returns:
        A frame with at least one row; empty cells are null, all else is as it stands in the file. In text tables
        integers, floats and booleans are recognised by all of a column's cells.

    Raises:
        InputError: Names the row that is too short or too long, damaged and empty files, unknown suffixes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "plays.tsv")
    ...     _ = file.write_text("user\tartist\tplays\nann\tBach\t3\nbob\tPärt\t\n")
    ...     read_frame(file).rows()
    [('ann', 'Bach', 3), ('bob', 'Pärt', None)]
    """
    file, _ = split_member(path)
    kind = _kind(file)
    if kind in ARRAYS:
        values = _two_axes(read_array(path), file)
        return pl.DataFrame(dict(zip(_numbered(values.shape[1]), np.ascontiguousarray(values.T), strict=True)))
    require_file(file)
    if kind in TEXT:
        return delimited.read_typed(file, delimited.find_dialect(file))
    return _read_parquet(file)


def row_error(message: str, path: Location, row: int) -> InputError:
    r"""The error about a row of a table that has been read: text is named by line, other files by row.

    Args:
        message: What is wrong.
        path: The table.
        row: The row, counted from 0 without the header, as in what `read_table` returned.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "people.csv")
    ...     _ = file.write_text('name,age\n"Ann\nMarie",31\n\nBob,-44\n')
    ...     str(row_error("an age below 0", file, 1)).removeprefix(folder)[1:]
    'people.csv:5: an age below 0'
    >>> str(row_error("an age below 0", "people.parquet", 1))
    'people.parquet: row 2: an age below 0'
    """
    file, _ = split_member(path)
    if _kind(file) not in TEXT:
        return InputError(f"row {row + 1}: {message}", path=path)
    line, _ = next(islice(delimited.body(file, delimited.find_dialect(file)), row, None))
    return InputError(message, path=file, line=line)


def write_table(path: Location, columns: Mapping[str, Any]) -> Path:
    """Writes columns of equal length as CSV, TSV or Parquet, whole or not at all.

    Args:
        path: ``.csv``, ``.tsv`` or ``.parquet``.
        columns: Name to values: arrays or lists of numbers, booleans or strings, (rows,), or (rows, k), which becomes
            the columns ``name_1`` ... ``name_k``. Floats in text have as many digits as give them back exactly.

    Returns:
        The path.

    Raises:
        ValueError: Columns of different lengths, no columns, another shape.
        InputError: Unknown suffix.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_table(f"{folder}/codes.csv", {"name": ["a", "b"], "z": np.eye(2)}).read_text().split()
    ['name,z_1,z_2', 'a,1.0,0.0', 'b,0.0,1.0']
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".tsv", *PARQUET):
        raise InputError(
            f"a table cannot be written as {suffix or 'a file without suffix'}; give .csv, .tsv or .parquet", path=path
        )
    series: dict[str, np.ndarray] = {}
    for name, given in columns.items():
        values = np.asarray(given)
        if values.ndim not in (1, 2) or values.dtype.kind not in "biufU":
            raise ValueError(
                f"column {name!r}: shape {values.shape} of {values.dtype}; (rows,) or (rows, k) of numbers or strings"
            )
        parts = (
            {name: values} if values.ndim == 1 else {f"{name}_{k}": part for k, part in enumerate(values.T, start=1)}
        )
        if twice := series.keys() & parts.keys():
            raise ValueError(f"two columns would bear the name {min(twice)!r}")
        series.update(parts)
    lengths = {name: len(values) for name, values in series.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"columns need the same length, and one at least; given: {lengths}")
    frame = pl.DataFrame(
        [
            pl.Series(name, values.tolist(), dtype=pl.String)
            if values.dtype.kind == "U"
            else pl.Series(name, np.ascontiguousarray(values))
            for name, values in series.items()
        ]
    )
    with atomic_path(path) as temporary:
        if suffix in PARQUET:
            frame.write_parquet(temporary)
        else:
            frame.write_csv(temporary, separator="\t" if suffix == ".tsv" else ",")
    return path


def _kind(path: Path) -> str:
    name = path.name.lower()
    for suffix in (*TEXT, *ARRAYS, *PARQUET):
        if name.endswith(suffix):
            return suffix
    raise InputError(
        f"{path.suffix or 'no suffix'} is no kind of table; known are .csv, .tsv (.gz), .parquet, .npy, .npz", path=path
    )


def _chosen(
    names: Sequence[str], columns: Sequence[str] | None, exclude: Sequence[str] | None, path: Path
) -> list[int]:
    """Positions of the wanted columns."""
    for argument, given in (("columns", columns), ("exclude", exclude)):
        if given is not None and (isinstance(given, str) or not given):
            raise ValueError(f"{argument}={given!r} must be a sequence of at least one name")
        for name in given or ():
            if name not in names:
                listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
                raise InputError(f"there is no column {name!r}; the columns are {listed}", path=path)
            if list(given or ()).count(name) > 1:
                raise InputError(f"the column {name!r} is asked for twice", path=path)
    chosen = [name for name in columns or names if name not in (exclude or ())]
    if not chosen:
        raise InputError("every column is excluded; one at least is needed", path=path)
    return [list(names).index(name) for name in chosen]


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"column_{index}" for index in range(1, count + 1))


def _two_axes(values: np.ndarray, path: Path) -> np.ndarray:
    if values.ndim == 1:
        return values[:, None]
    if values.ndim != 2:
        raise InputError(f"the array has shape {values.shape}; a table has (rows, columns)", path=path)
    return values


def _from_array(path: Location, file: Path, columns: Sequence[str] | None, exclude: Sequence[str] | None) -> Table:
    values = _two_axes(read_array(path), file)
    names = _numbered(values.shape[1])
    chosen = _chosen(names, columns, exclude, file)
    if len(chosen) < len(names) or columns is not None:
        values = values[:, chosen]
    with np.errstate(over="ignore"):  # a long double may be too large; then it is infinite and refused
        values = np.ascontiguousarray(values, dtype=_real_type(values.dtype))
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        message = f"column {names[chosen[column]]!r} holds {values[row, column]}; finite numbers are needed"
        raise row_error(message, file, int(row))
    return Table(values, tuple(names[index] for index in chosen), file)


def _real_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    small = (
        dtype.kind == "b" or (dtype.kind in "iu" and dtype.itemsize <= 2) or (dtype.kind == "f" and dtype.itemsize <= 4)
    )
    return np.dtype(np.float32 if small else np.float64)


def _read_parquet(path: Path) -> pl.DataFrame:
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(4)
        stream.seek(max(0, size - 4))
        tail = stream.read(4)
    if head != b"PAR1" or tail != b"PAR1" or size < SMALLEST_PARQUET:
        raise InputError("this is no complete Parquet file", path=path)
    if not pages_agree(path) and not survives_reading(path):
        raise InputError("this Parquet file is damaged (its pages do not agree with its footer)", path=path)
    try:
        frame = pl.read_parquet(path, glob=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, MemoryError) as error:
        raise InputError(f"this Parquet file is damaged ({str(error).splitlines()[0][:200]})", path=path) from error
    if not frame.height or not frame.width:
        raise InputError(f"the table is empty: {frame.height} rows, {frame.width} columns", path=path)
    return frame


def _numbers(frame: pl.DataFrame, path: Path) -> np.ndarray:
    """Every column as float32 or float64; what is no finite number is named by column and row."""
    for column in frame.iter_columns():
        if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
            first = next((repr(value) for value in column.head(100).to_list() if value is not None), "nothing")
            raise row_error(f"column {column.name!r} holds {column.dtype} ({first[:40]}); numbers are needed", path, 0)
        if column.has_nulls():
            row = int(column.is_null().arg_max() or 0)
            raise row_error(f"column {column.name!r} has a missing value; every cell needs a number", path, row)
        finite = column.cast(pl.Float64).is_finite()
        if not finite.all():
            row = int((~finite).arg_max() or 0)
            raise row_error(f"column {column.name!r} holds {column[row]}; finite numbers are needed", path, row)
    small = (pl.Float32, pl.Boolean, pl.Int8, pl.Int16, pl.UInt8, pl.UInt16)
    dtype = pl.Float32 if all(dtype in small for dtype in frame.dtypes) else pl.Float64
    return np.ascontiguousarray(frame.cast(dtype).to_numpy())
