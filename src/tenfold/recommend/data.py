"""Reads what users have, event logs in CSV, TSV, Parquet or frames, into `Interactions`; large files in one streaming pass.

Ids are dictionary-encoded by polars while the file streams by, so that of each event a number of four bytes per id is
kept. Ids that are all written as plain integers become integers; "007" does not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Shaped

from tenfold.errors import InputError
from tenfold.files import delimited
from tenfold.files.limits import require_file
from tenfold.recommend.events import Events
from tenfold.recommend.identifiers import encode_ids, index_type, string_table
from tenfold.recommend.interactions import Interactions

# Names in the order in which they are looked for, in lower case and without what is no letter or digit.
USUAL = {
    "user": "userid user uid users customerid customer clientid client memberid member visitorid visitor accountid "
    "account listenerid listener readerid reader viewerid viewer sessionid session person username",
    "item": "itemid item iid items movieid movie filmid film productid product artistid artist trackid track songid song "
    "bookid book articleid article asin sku showid show programme program gameid game pageid page url title",
    "value": "value rating ratings count counts plays playcount listens weight score strength quantity clicks views visits "
    "r stars confidence amount",
    "timestamp": "timestamp timestamps time unixtime ts datetime date createdat eventtime ratedat",
}
NO_VALUES = "none"  # given as the column of values: every event counts 1, whatever columns there are
INTEGER = re.compile(r"-?[1-9][0-9]{0,17}|0")
CHECKED = 1000  # time stamps that are looked at to see how they are written
TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
PARQUET = (".parquet", ".pq")

Roles = dict[str, str]  # user, item, and where there are such columns value and timestamp: name of the column


def read_interactions(
    path: str | os.PathLike[str],
    *,
    user: str | None = None,
    item: str | None = None,
    value: str | None = None,
    timestamp: str | None = None,
) -> Interactions:
    r"""Interactions from a file with one event a line.

    Args:
        path: ``.csv`` or ``.tsv`` (either with ``.gz``), or ``.parquet``. In text the separator and the decimal sign are
            found out; other columns may hold anything.
        user: Name of the column of user ids, integers or text. If None, a column with a usual name ("user_id",
            "customer", ...); the same for the others.
        item: Name of the column of item ids ("item_id", "movieId", "asin", ...).
        value: Name of the column of values ("rating", "plays", "count", ...); every event counts 1 where there is none, and
            with ``"none"`` in any case.
        timestamp: Name of the column of time stamps ("timestamp", "date", ...), numbers or ISO 8601 dates; dates become
            seconds since 1970 (UTC where no zone is written).

    Raises:
        InputError: Names the file and the line (row, for Parquet) of a missing id, of a missing or infinite value, NaN
            or text; or says which columns there are when none can be taken for users or items.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "plays.tsv")
    ...     _ = file.write_text("user\tartist\tplays\nann\tBach\t3\nbob\tBach\t1\nann\tPärt\t2\n")
    ...     plays = read_interactions(file)
    >>> plays.user_ids.tolist(), plays.item_ids.tolist(), plays.matrix.toarray().tolist()
    (['ann', 'bob'], ['Bach', 'Pärt'], [[3.0, 2.0], [1.0, 0.0]])
    """
    file = Path(path)
    asked = {"user": user, "item": item, "value": value, "timestamp": timestamp}
    if file.name.lower().endswith(TEXT):
        return _from_text(require_file(file), asked)
    if file.name.lower().endswith(PARQUET):
        require_file(file)
        try:
            frame = pl.scan_parquet(file, glob=False)
            return _from_frame(frame, asked, file)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            raise InputError(f"this Parquet file is damaged ({str(error).splitlines()[0][:200]})", path=file) from error
    if file.is_dir():
        raise InputError("this is a folder; a file is needed (a folder of .parquet files with engine ray)", path=file)
    raise InputError(
        f"{file.suffix or 'no suffix'} is no kind of table for interactions; known are .csv, .tsv (.gz), .parquet",
        path=file,
    )


def frame_interactions(
    frame: Any,
    *,
    user: str | None = None,
    item: str | None = None,
    value: str | None = None,
    timestamp: str | None = None,
) -> Interactions:
    """Interactions from a frame of polars (lazy or not) or pandas; columns as for `read_interactions`.

    Raises:
        TypeError: Something that is no frame.
        InputError: Names the row, counted from 1, and the column of what cannot be used.

    >>> frame_interactions(pl.DataFrame({"user": [1, 1], "item": ["a", "b"]}))
    Interactions(1 users x 2 items, 2 entries)
    """
    asked = {"user": user, "item": item, "value": value, "timestamp": timestamp}
    if isinstance(frame, pl.DataFrame | pl.LazyFrame):
        return _from_frame(frame.lazy(), asked, None)
    if not (hasattr(frame, "columns") and hasattr(frame, "to_numpy") and hasattr(frame, "__getitem__")):
        raise TypeError(f"frame is a {type(frame).__name__}; a frame of polars or pandas is needed")
    names = [str(name) for name in frame.columns]
    roles = find_columns(names, asked, None)
    columns = {}
    for name in dict.fromkeys(roles.values()):
        values = frame[name].to_numpy()
        missing = values != values  # NaN, which stands for a missing string, too
        if values.dtype.kind == "O":
            values = [None if gone else given for given, gone in zip(values.tolist(), missing.tolist(), strict=True)]
        try:
            columns[name] = pl.Series(name, values, strict=True)
        except (TypeError, pl.exceptions.PolarsError) as error:
            raise InputError(f"column {name!r} holds values of different kinds ({str(error)[:80]})") from error
    return _from_frame(pl.DataFrame(columns).lazy(), dict.fromkeys(asked) | roles, None)


def find_columns(names: list[str], asked: dict[str, str | None], path: Path | None) -> Roles:
    """Which column is what: those asked for, others by usual names.

    Raises:
        InputError: A column that is not there, no user or item column, one column for two roles; lists the columns.

    >>> asked = {"user": None, "item": None, "value": None, "timestamp": None}
    >>> find_columns(["userId", "movieId", "rating"], asked, None)
    {'user': 'userId', 'item': 'movieId', 'value': 'rating'}
    """
    listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    counted = asked["value"] == NO_VALUES and NO_VALUES not in names
    for role, name in asked.items():
        if name is not None and name not in names and not (role == "value" and counted):
            raise InputError(f"there is no column {name!r} for {role}; the columns are {listed}", path=path)
    roles = {role: name for role, name in asked.items() if name in names}
    plain = {re.sub(r"[^a-z0-9]", "", name.lower().partition(":")[0]): name for name in reversed(names)}
    for role, usual in USUAL.items():
        if role in roles or (role == "value" and counted):
            continue
        guess = next(
            (plain[word] for word in usual.split() if word in plain and plain[word] not in roles.values()), None
        )
        if guess is not None:
            roles[role] = guess
        elif role in ("user", "item"):
            raise InputError(
                f"no column has a usual name for the {role}; name it ({role}=..., or --{role}-column): "
                f"the columns are {listed}",
                path=path,
            )
    if len(set(roles.values())) < len(roles):
        shown = ", ".join(f"{role}={name!r}" for role, name in roles.items())
        raise InputError(f"one column cannot be two things: {shown}", path=path)
    return {role: roles[role] for role in USUAL if role in roles}


def _from_text(path: Path, asked: dict[str, str | None]) -> Interactions:
    dialect = delimited.find_dialect(path)
    roles = find_columns(list(dialect.names), asked, path)
    if dialect.old_mac:
        rows = [cells for _, cells in delimited.body(path, dialect)]
        cells = pl.DataFrame(rows, schema=dict.fromkeys(dialect.names, pl.String), orient="row").lazy()
    else:
        cells = pl.scan_csv(
            path,
            separator=dialect.separator,
            has_header=dialect.header,
            schema=dict.fromkeys(dialect.names, pl.String),
            glob=False,
        )
    try:
        head = cells.select(pl.col(roles["timestamp"])).head(CHECKED).collect() if "timestamp" in roles else None
        chosen = [_text_column(role, name, head, dialect.decimal_comma) for role, name in roles.items()]
        columns = cells.select(chosen).collect(engine="streaming")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        _name_fault(path, dialect, roles)
        raise InputError(f"cannot be read as a table ({str(error).splitlines()[0][:200]})", path=path) from error
    faults = [int(bad.arg_max() or 0) for role in roles if (bad := _unusable(columns[role])).any()]
    if faults:
        _name_fault(path, dialect, roles, first=min(faults))
        _name_fault(path, dialect, roles)
        columns = columns.filter(~pl.all_horizontal(pl.all().is_null()))  # blank lines, which polars takes for rows
    if not columns.height:
        raise InputError("there is a header, but no row under it", path=path)
    return Interactions.from_codes(*_encoded(columns, path))


def _text_column(role: str, name: str, head: pl.DataFrame | None, decimal_comma: bool) -> pl.Expr:
    cell = pl.col(name).alias(role)
    if role in ("user", "item"):
        return cell.cast(pl.Categorical(pl.Categories.random(name)))
    cell = cell.str.strip_chars()
    if role == "timestamp" and head is not None:
        sample = head.to_series().drop_nulls().str.strip_chars()
        if sample.len() and sample.str.contains(r"^\d{4}-\d\d?-\d\d?|^\d\d?[./]\d").all():
            return _seconds(cell.str.to_datetime(strict=False, time_unit="us", time_zone="UTC"))
    if decimal_comma:
        cell = cell.str.replace(",", ".", literal=True)
    return cell.cast(pl.Float64, strict=False)


def _seconds(moment: pl.Expr) -> pl.Expr:
    return moment.dt.epoch("us").cast(pl.Float64) / 1e6


def _from_frame(frame: pl.LazyFrame, asked: dict[str, str | None], path: Path | None) -> Interactions:
    return Interactions.from_codes(*frame_events(frame, asked, path))


def frame_events(
    frame: pl.LazyFrame, asked: dict[str, str | None], path: Path | None, first: int = 0
) -> tuple[Events, Shaped[np.ndarray, " users"], Shaped[np.ndarray, " items"]]:
    """The events of a frame before they are summed, and the ascending ids of its users and items.

    Args:
        frame: The events.
        asked: Name of the column of each role, or None.
        path: The file, for messages.
        first: Rows of the file that lie before the frame's.

    Raises:
        InputError: Names the row, counted from 1, and the column of what cannot be used.
    """
    schema = frame.collect_schema()
    roles = find_columns(schema.names(), asked, path)
    columns = [_typed_column(role, name, schema, path) for role, name in roles.items()]
    found = frame.select(columns).collect(engine="streaming")
    if not found.height:
        raise InputError("there are columns, but no rows", path=path)
    return _encoded(found, path, names=roles, first=first)


def _typed_column(role: str, name: str, schema: Mapping[str, Any], path: Path | None) -> pl.Expr:
    column, dtype = pl.col(name).alias(role), schema[name]
    if role in ("user", "item"):
        if dtype.is_integer():
            return column
        if isinstance(dtype, pl.String | pl.Categorical | pl.Enum):
            return column.cast(pl.String).cast(pl.Categorical(pl.Categories.random(name)))
        raise InputError(f"column {name!r} holds {dtype}; {role} ids are integers or text", path=path)
    if role == "timestamp" and isinstance(dtype, pl.Date | pl.Datetime):
        return _seconds(column.cast(pl.Datetime("us")))
    if dtype.is_numeric() or dtype == pl.Boolean:
        return column.cast(pl.Float64)
    kinds = "numbers or dates" if role == "timestamp" else "numbers"
    raise InputError(f"column {name!r} holds {dtype}; {kinds} are needed", path=path)


def _unusable(column: pl.Series) -> pl.Series:
    """Missing, or no finite number."""
    if column.dtype == pl.Float64:
        return ~column.is_finite().fill_null(False)
    return column.is_null()


def _encoded(
    columns: pl.DataFrame, path: Path | None, *, names: Roles | None = None, first: int = 0
) -> tuple[Events, np.ndarray, np.ndarray]:
    for role in columns.columns:
        bad = _unusable(columns[role])
        if bad.any():
            row = first + int(bad.arg_max() or 0)
            value = columns[role][row - first]
            what = "a missing value" if value is None else repr(value)
            name = (names or {}).get(role, role)
            row_at = f"row {row + 1}: " if path is None else ""
            raise InputError(f"{row_at}column {name!r} holds {what}", path=path, line=row + 1 if path else None)
    ids, codes = {}, {}
    for role in ("user", "item"):
        ids[role], codes[role] = _codes(columns[role], role, path)
    values = np.ones(columns.height, dtype=np.float32)
    if "value" in columns.columns:
        with np.errstate(over="ignore"):
            values = columns["value"].to_numpy().astype(np.float32)
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            raise InputError(f"value {columns['value'][row]} of event {first + row + 1} is beyond float32", path=path)
    times = columns["timestamp"].to_numpy() if "timestamp" in columns.columns else None
    return Events(codes["user"], codes["item"], values, times), ids["user"], ids["item"]


def _codes(column: pl.Series, role: str, path: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Sorted distinct ids, and the position of each event's id."""
    if not isinstance(column.dtype, pl.Categorical):
        try:
            return encode_ids(column.to_numpy(), f"{role} ids")
        except ValueError as error:
            raise InputError(str(error), path=path) from error
    present = column.unique()
    numbers = present.to_physical().to_numpy()
    names = [name.strip() for name in present.cast(pl.String).to_list()]
    if "" in names:
        raise InputError(f"a {role} id is empty or blank; every event needs one", path=path)
    try:
        table = (
            np.array(names, dtype=np.int64)
            if all(INTEGER.fullmatch(name) for name in names)
            else string_table(names, f"{role} ids")
        )
    except ValueError as error:
        raise InputError(str(error), path=path) from error
    ids, places = np.unique(table, return_inverse=True)
    moved = np.empty(int(numbers.max()) + 1, dtype=index_type(len(ids)))
    moved[numbers] = places
    return ids, moved[column.to_physical().to_numpy()]


def _name_fault(path: Path, dialect: delimited.Dialect, roles: Roles, *, first: int = 0) -> None:
    """Raises an InputError at the first record, from number ``first``, that cannot be used, with its line."""
    places = {role: dialect.names.index(name) for role, name in roles.items()}
    for line, cells in islice(delimited.body(path, dialect), first, None):
        for role, place in places.items():
            cell, name = cells[place].strip(), dialect.names[place]
            if cell == "" or (role in ("value", "timestamp") and cell.lower() in delimited.MISSING):
                shown = f" ({cell!r})" if cell else ""
                raise InputError(
                    f"column {name!r} has a missing value{shown}; every event needs its {role}", path=path, line=line
                )
            number = delimited.number(cell, dialect.decimal_comma)
            shown = cell if len(cell) <= 40 else cell[:37] + "..."
            if role == "value" and number is None:
                raise InputError(f"column {name!r} holds text ({shown!r}); numbers are needed", path=path, line=line)
            if role in ("value", "timestamp") and number is not None and not np.isfinite(number):
                raise InputError(f"column {name!r} holds {shown!r}; finite numbers are needed", path=path, line=line)
            if role == "timestamp" and number is None and not _is_date(cell):
                raise InputError(
                    f"column {name!r} holds {shown!r}; numbers, or ISO dates throughout, are needed",
                    path=path,
                    line=line,
                )


def _is_date(cell: str) -> bool:
    moment = pl.Series([cell]).str.to_datetime(strict=False, time_unit="us", time_zone="UTC")
    return not moment.has_nulls()
