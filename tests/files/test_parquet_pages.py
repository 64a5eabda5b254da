import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenfold.errors import InputError
from tenfold.files import read_table
from tenfold.files.parquet_pages import pages_agree

SIZE, VALUES = 7, 12  # of the first page in `small`: where its head says how large it is, and how many values it holds


def frame(rows: int) -> pl.DataFrame:
    random = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "whole": random.integers(0, 9, rows),
            "real": random.normal(size=rows),
            "text": [f"name {i % 17} {'x' * (i % 50)}" for i in range(rows)],
            "gaps": [None if i % 7 == 0 else float(i) for i in range(rows)],
            "flag": random.random(rows) < 0.5,
            "lists": [list(range(i % 4)) for i in range(rows)],
            "nested": [{"a": i, "b": [str(i)]} for i in range(rows)],
            "empty": pl.Series([None] * rows, dtype=pl.Float64),
        }
    )


def small(folder: Path) -> bytearray:
    pl.DataFrame({"a": [0.5, 3.0, 1.5, 2.5]}).write_parquet(folder / "small.parquet", compression="uncompressed")
    return bytearray((folder / "small.parquet").read_bytes())


@pytest.mark.parametrize("compression", ["uncompressed", "snappy", "gzip", "brotli", "lz4", "zstd"])
@pytest.mark.parametrize("rows", [0, 1, 900])
def test_the_pages_of_good_files_agree_with_the_footer(tmp_path, compression, rows):
    path = tmp_path / "t.parquet"
    frame(rows).write_parquet(path, compression=compression, row_group_size=300, data_page_size=500)
    assert pages_agree(path)


def test_a_page_that_promises_too_many_values_is_an_input_error(tmp_path):
    content = small(tmp_path)
    content[VALUES] = 63
    path = tmp_path / "t.parquet"
    path.write_bytes(content)
    program = "import sys, polars; polars.read_parquet(sys.argv[1])"
    ended = subprocess.run([sys.executable, "-c", program, path], capture_output=True, check=False).returncode
    assert not pages_agree(path)
    if ended not in (0, 1):  # else polars has learned to say it
        with pytest.raises(InputError, match=r"t\.parquet: this Parquet file is damaged \(its pages do not agree"):
            read_table(path)


@pytest.mark.parametrize("content", [b"PAR1", b"PAR1PAR1", b"PAR1xxxPAR1"])
def test_a_file_too_short_for_a_footer_is_an_input_error(tmp_path, content):
    (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises(InputError, match="no complete Parquet file"):
        read_table(tmp_path / "t.parquet")


def test_a_file_that_is_only_odd_is_read(tmp_path):
    content = small(tmp_path)
    content[SIZE] = 0  # polars does not need to know how large a page is that is not compressed
    path = tmp_path / "t.parquet"
    path.write_bytes(content)
    assert not pages_agree(path)
    assert read_table(path).values.ravel().tolist() == [0.5, 3.0, 1.5, 2.5]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6), end=st.floats(0, 1))
def test_no_bytes_make_the_check_itself_fail(tmp_path, changes, end):
    good = small(tmp_path)
    content = good[4 : 4 + int(end * len(good))]
    for position, value in changes:
        if content:
            content[position % len(content)] = value
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1" + content + good[-8:])
    assert pages_agree(path) in (True, False)
