"""How commands show results: a table or a record, for a person at a terminal, for a pipe, or as JSON.

At a terminal, text wraps to the width, and a table that is too wide for it becomes one block of lines a row. In a pipe,
one row is one line, whatever its width, without title, colours or lines around it. JSON keeps numbers as numbers; NaN
and infinities, which JSON does not have, become ``null``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from json import dumps
from pathlib import PurePath
from typing import TYPE_CHECKING

from tenfold.console.terminal import is_terminal, results

if TYPE_CHECKING:
    from rich.console import Console

GAP = 2  # blanks between columns
LONGEST_WORD = 24  # a longer word may be broken before a table gives up being a table


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, json: bool = False) -> None:
    """Write a table to standard output.

    Args:
        title: What the table shows; written at a terminal only.
        columns: Names of the columns; the keys of the JSON objects.
        rows: One sequence of values a row, as long as ``columns``. None is "nothing known".
        json: Write a JSON list with one object a row.

    Raises:
        ValueError: A row is not as long as ``columns``.

    >>> show_table("Scores", ["method", "nats", "runs"], [["quantile", -1.25, 5], ["score", None, 12]])
    method     nats  runs
    quantile  -1.25     5
    score         -    12
    >>> show_table("Scores", ["method", "nats"], [["quantile", -1.25]], json=True)
    [
      {
        "method": "quantile",
        "nats": -1.25
      }
    ]
    """
    values = [[plain_value(value) for value in row] for row in rows]
    for row in values:
        if len(row) != len(columns):
            raise ValueError(f"a row of {title!r} has {len(row)} values for {len(columns)} columns: {row}")
    if json:
        write_json([dict(zip(columns, row, strict=True)) for row in values])
        return
    cells = [[cell_text(value) for value in row] for row in values]
    right = [bool(values) and all(is_number(row[j]) for row in values) for j in range(len(columns))]
    if not is_terminal(sys.stdout):
        write_lines(aligned(columns, cells, right))
        return
    console = results()
    if sum(narrowest(columns, cells)) + GAP * (len(columns) - 1) <= console.width:
        print_table(console, title, columns, cells, right)
    else:
        print_blocks(console, title, columns, cells)


def show_record(title: str, record: Mapping[str, object], *, json: bool = False) -> None:
    """Write named values to standard output, one a line.

    Args:
        title: What the values belong to; written at a terminal only.
        record: The values by name; units belong into the name.
        json: Write one JSON object.

    >>> show_record("Evaluation", {"ELBO (nats)": -98.5, "rows": 1797})
    ELBO (nats)  -98.5
    rows         1797
    """
    values = {key: plain_value(value) for key, value in record.items()}
    if json:
        write_json(values)
    elif not is_terminal(sys.stdout):
        cells = [[key, cell_text(value)] for key, value in values.items()]
        write_lines(aligned(None, cells, [False, False]))
    else:
        print_blocks(results(), title, list(values), [[cell_text(value) for value in values.values()]])


def plain_value(value: object) -> object:
    """The value in Python's own types: numpy and torch scalars as numbers, paths as text, NaN and infinities kept.

    >>> plain_value(PurePath("a.csv")), plain_value((1, 2.5)), plain_value({"x": None})
    ('a.csv', [1, 2.5], {'x': None})
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_value(item) for item in value]
    scalar = getattr(value, "item", None)  # numpy and torch, which are not imported here
    return plain_value(scalar()) if callable(scalar) else str(value)


def cell_text(value: object) -> str:
    r"""One line of text for a plain value: six digits of a number, words for true, false and nothing.

    >>> [cell_text(value) for value in (None, True, 0.123456789, 12345678, ["a", "b"], {"x": 1}, "two\nlines")]
    ['-', 'yes', '0.123457', '12345678', 'a, b', 'x 1', 'two lines']
    """
    if value is None or value == [] or value == {}:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(cell_text(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {cell_text(item)}" for key, item in value.items())
    return " ".join(str(value).split()) or "-"


def is_number(value: object) -> bool:
    """Whether a cell belongs into a column of numbers; a missing value does."""
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def write_json(value: object) -> None:
    """Write a value of :func:`plain_value`'s types as JSON to standard output."""
    ascii_only = (sys.stdout.encoding or "utf-8").lower().replace("-", "") != "utf8"
    write_lines([dumps(finite(value), indent=2, ensure_ascii=ascii_only, allow_nan=False)])


def finite(value: object) -> object:
    """The value with every NaN and infinity replaced by None.

    >>> finite({"x": [1.0, float("nan")]})
    {'x': [1.0, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return value


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to standard output as they are."""
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def aligned(columns: Sequence[str] | None, cells: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Lines of columns set side by side, as wide as they need to be."""
    from rich.cells import cell_len

    lines = [list(columns), *cells] if columns is not None else list(cells)
    widths = [max((cell_len(line[j]) for line in lines), default=0) for j in range(len(right))]
    texts = []
    for line in lines:
        blanks = [" " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)]
        padded = [b + c if r else c + b for c, b, r in zip(line, blanks, right, strict=True)]
        texts.append((" " * GAP).join(padded).rstrip())
    return texts


def narrowest(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    """The width of each column when its text wraps between words."""
    from rich.cells import cell_len

    def longest_word(text: str) -> int:
        return max((cell_len(word) for word in text.split()), default=0)

    return [
        max(longest_word(name), *(min(longest_word(row[j]), LONGEST_WORD) for row in cells), 1)
        for j, name in enumerate(columns)
    ]


def print_table(
    console: Console, title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]
) -> None:
    """Print a table that wraps its text to the terminal's width."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold cyan", pad_edge=False, padding=(0, GAP, 0, 0), collapse_padding=True)
    for name, least, numeric in zip(columns, narrowest(columns, cells), right, strict=True):
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold", min_width=least)
    wraps = any(sum(map(len, row)) + GAP * (len(row) - 1) > console.width for row in cells)
    for row in cells:
        table.add_row(*map(Text, row), end_section=False)
        if wraps and row is not cells[-1]:
            table.add_row()
    console.print(Text(title, style="bold"))
    console.print(table if cells else Text("nothing to show", style="dim"))


def print_blocks(console: Console, title: str, columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print each row as lines of name and value, names in one column where the terminal has the width."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    console.print(Text(title, style="bold"))
    beside = max(map(cell_len, columns), default=0) + GAP <= console.width // 2
    for i, row in enumerate(cells):
        if i:
            console.print()
        block = Table(box=None, show_header=False, pad_edge=False, padding=(0, GAP, 0, 0), collapse_padding=True)
        if beside:
            block.add_column(style="cyan", no_wrap=True)
        block.add_column(overflow="fold")
        for name, cell in zip(columns, row, strict=True):
            if beside:
                block.add_row(Text(name), Text(cell))
            else:
                block.add_row(Text(name, style="cyan"))
                block.add_row(Text(f"  {cell}"))
        console.print(block)
