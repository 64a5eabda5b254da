import gzip
import io

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenfold.errors import InputError
from tenfold.files import delimited, read_array, read_frame, read_table, row_error, write_table

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("content", "names", "values"),
    [
        ("a,b\n1,2\n3,4\n", ("a", "b"), [[1, 2], [3, 4]]),
        ("a;b\r\n1;2\r\n3;4\r\n", ("a", "b"), [[1, 2], [3, 4]]),
        ("a\tb\n1\t2\n3\t4", ("a", "b"), [[1, 2], [3, 4]]),
        ("1,2\n3,4\n", ("column_1", "column_2"), [[1, 2], [3, 4]]),
        ("\ufeffa,b\n1,2\n3,4\n", ("a", "b"), [[1, 2], [3, 4]]),
        ("\ufeff1,2\n3,4\n", ("column_1", "column_2"), [[1, 2], [3, 4]]),
        ('"a, of all","b ""q"""\n"1",2\n3,"4"\n', ("a, of all", 'b "q"'), [[1, 2], [3, 4]]),
        ("Größe,x y\n 1 , 2\n3,4\n\n\n", ("Größe", "x y"), [[1, 2], [3, 4]]),
        ("a;b\n1,5;2,25\n3;4\n", ("a", "b"), [[1.5, 2.25], [3, 4]]),
        ("a\rb\r".replace("\rb", ",b") + "1,2\r3,4\r", ("a", "b"), [[1, 2], [3, 4]]),
        ("a\n1\n2\n", ("a",), [[1], [2]]),
        ("-1e3\n+.5\n", ("column_1",), [[-1000], [0.5]]),
        (",a\n1,2\n3,4\n", ("column_1", "a"), [[1, 2], [3, 4]]),
    ],
)
def test_a_text_table_is_read_as_it_was_meant(tmp_path, content, names, values):
    for name, raw in {"my täble.csv": content.encode(), "t.csv.gz": gzip.compress(content.encode())}.items():
        table = read_table(written(tmp_path, name, raw))
        assert table.names == names
        np.testing.assert_array_equal(table.values, values)
        assert table.values.dtype == np.float64


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n3,x\n", "t.csv:3: column 'b' holds text ('x'); numbers are needed"),
        ("a,b\n1,2\n\n3,x\n", "t.csv:4: column 'b' holds text"),
        ('a,b\n"1",2\n"\n",x\n', "t.csv:3: column 'a' has a missing value"),
        ("a,b\n1,2\n3,\n", "t.csv:3: column 'b' has a missing value; every"),
        ("a,b\n1,NA\n", "t.csv:2: column 'b' has a missing value ('NA')"),
        ("1,2\n,4\n", "t.csv:2: column 'column_1' has a missing value"),
        ("a,b\n1,2\n3\n", "t.csv:3: this line has 1 value, the first has 2"),
        ("a,b\n1,2\n3,4,5\n", "t.csv:3: this line has 3 values, the first has 2"),
        ("a,b\n1,2\n3,inf\n", "t.csv:3: column 'b' holds 'inf'; finite"),
        ("a,b\n1,1e999\n", "t.csv:2: column 'b' holds '1e999'; finite"),
        ("a,b\n1,nan\n", "t.csv:2: column 'b' has a missing value ('nan')"),
        ("a,b\n1,1_000\n", "t.csv:2: column 'b' holds text ('1_000')"),
        ("a,b\n1,٣\n", "t.csv:2: column 'b' holds text"),
        ("a,b\n", "there is a header, but no row under it"),
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ("a,a\n1,2\n", "t.csv:1: the column name 'a' appears twice"),
        ("a\n1\n\n2\n", "t.csv:3: column 'a' has a missing value"),
        ('a,b\n1,"2\n', "t.csv:2: the quotes or the length"),
        (b"a,b\n1,2\n1,\xff\n", "t.csv:3: byte 0xff is no UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16"),
    ],
)
def test_a_fault_in_a_text_table_is_named_by_line_and_column(tmp_path, content, message):
    with pytest.raises(InputError) as caught:
        read_table(written(tmp_path, "t.csv", content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fault_deep_in_a_long_file_is_named_by_its_line(tmp_path):
    lines = ["x,y"] + [f"{i},{i}" for i in range(20_000)]
    lines[15_000] = "1,oops"
    with pytest.raises(InputError, match=r"t\.csv:15001: column 'y' holds text \('oops'\)"):
        read_table(written(tmp_path, "t.csv", "\n".join(lines)))


def test_chosen_columns_come_in_the_order_asked_and_others_may_hold_text(tmp_path):
    path = written(tmp_path, "t.csv", "name,age,height\nann,31,1.75\nbob,44,1.62\n")
    table = read_table(path, columns=["height", "age"])
    assert table.names == ("height", "age")
    np.testing.assert_array_equal(table.values, [[1.75, 31], [1.62, 44]])
    with pytest.raises(InputError, match=r"no column 'weight'; the columns are name, age, height"):
        read_table(path, columns=["weight"])
    with pytest.raises(InputError, match=r":3: this line has 2 values"):
        read_table(written(tmp_path, "u.csv", "name,age,height\nann,31,1.75\nbob,44\n"), columns=["age"])


def test_unknown_suffix_missing_file_and_folder_are_named(tmp_path):
    for path, message in [
        (written(tmp_path, "t.xlsx", b"PK"), "known are .csv"),
        (tmp_path / "gone.csv", "no such file"),
        (tmp_path / "gone.npy", "no such file"),
    ]:
        with pytest.raises(InputError, match=message):
            read_table(path)
    (tmp_path / "f.csv").mkdir()
    with pytest.raises(InputError, match="this is a folder"):
        read_table(tmp_path / "f.csv")
    with pytest.raises(InputError, match=r"gzip compression is damaged|cannot be read"):
        read_table(written(tmp_path, "t.csv.gz", b"no gzip"))


def test_a_frame_keeps_types_and_empty_cells(tmp_path):
    frame = read_frame(written(tmp_path, "t.csv", "name,plays,loved,share\nPärt,3,true,0.5\n,,false,\n"))
    assert frame.dtypes == [pl.String, pl.Int64, pl.Boolean, pl.Float64]
    assert frame.rows() == [("Pärt", 3, True, 0.5), (None, None, False, None)]
    for content in ("a,b\nx,y\nz\n", "a,b\nx,y\nz,u,v\n"):
        with pytest.raises(InputError, match=r"t\.csv:3: this line has"):
            read_frame(written(tmp_path, "t.csv", content))


def test_parquet_columns_become_numbers(tmp_path):
    path = tmp_path / "t.parquet"
    pl.DataFrame({"a": [1, 2], "b": [True, False], "c": [0.5, 1.5]}).write_parquet(path)
    assert read_table(path).values.tolist() == [[1, 1, 0.5], [2, 0, 1.5]]
    pl.DataFrame({"a": pl.Series([1.5], dtype=pl.Float32)}).write_parquet(path)
    assert read_table(path).values.dtype == np.float32


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pl.DataFrame({"a": [1, None]}), r"t\.parquet: row 2: column 'a' has a missing value"),
        (pl.DataFrame({"a": [1.0, 2.0, float("nan")]}), r"t\.parquet: row 3: column 'a' holds nan"),
        (pl.DataFrame({"a": ["x"]}), r"column 'a' holds String \('x'\)"),
        (pl.DataFrame({"a": [[1.0, 2.0]]}), r"column 'a' holds List"),
        (pl.DataFrame({"a": []}), "the table is empty"),
    ],
)
def test_a_fault_in_parquet_is_named_by_row_and_column(tmp_path, frame, message):
    frame.write_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=message):
        read_table(tmp_path / "t.parquet")


def test_arrays_keep_single_precision_and_name_their_faults(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((3, 2), np.float32))
    assert read_table(tmp_path / "a.npy").values.dtype == np.float32
    np.save(tmp_path / "a.npy", np.array([1.0, np.nan, 2.0]))
    with pytest.raises(InputError, match=r"a\.npy: row 2: column 'column_1' holds nan"):
        read_table(tmp_path / "a.npy")
    for values, message in [
        (np.array([{"a": 1}], dtype=object), "never unpickled"),
        (np.array(["x"]), "real numbers are needed"),
        (np.ones(3, complex), "real numbers are needed"),
        (np.ones((2, 3, 4)), r"shape \(2, 3, 4\); a table has"),
        (np.ones((0, 3)), "empty"),
    ]:
        np.save(tmp_path / "a.npy", values, allow_pickle=True)
        with pytest.raises(InputError, match=message):
            read_table(tmp_path / "a.npy")


def test_of_several_arrays_one_is_named(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=np.ones((4, 2)), z=np.zeros((4, 3)), y=np.arange(4))
    with pytest.raises(InputError, match=r"several arrays \(x \(4, 2\), z \(4, 3\), y \(4,\)\); name one: d\.npz:x"):
        read_table(path)
    assert read_table(f"{path}:z").values.shape == (4, 3)
    assert read_array(path, array="y").shape == (4,)
    with pytest.raises(InputError, match="holds no array 'w'"):
        read_array(path, array="w")


def test_a_header_that_promises_more_than_the_file_has_is_refused(tmp_path):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with pytest.raises(InputError, match="damaged: shape"):
        read_table(written(tmp_path, "a.npy", stream.getvalue() + bytes(80)))


@QUICK
@given(
    values=st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=20),
    suffix=st.sampled_from([".csv", ".tsv", ".parquet"]),
)
def test_numbers_come_back_exactly(tmp_path, values, suffix):
    x, y = map(np.array, zip(*values, strict=True))
    table = read_table(write_table(tmp_path / f"t{suffix}", {"x": x, "größe y": y}))
    assert table.names == ("x", "größe y")
    np.testing.assert_array_equal(table.values, np.stack([x, y], 1))


@QUICK
@given(
    rows=st.lists(
        st.tuples(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1), FINITE), min_size=2
    )
)
def test_text_comes_back_exactly(tmp_path, rows):
    names, values = zip(*rows, strict=True)
    path = write_table(tmp_path / "t.parquet", {"name": list(names), "value": list(values)})
    assert read_frame(path).rows() == rows


@QUICK
@given(
    values=st.lists(st.lists(FINITE, min_size=2, max_size=2), min_size=1, max_size=8),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_both_readers_of_text_agree(tmp_path, values, end):
    path = written(tmp_path, "t.csv", end.join(["a,b", *(",".join(map(repr, row)) for row in values)]))
    dialect = delimited.find_dialect(path)
    slow = [[delimited.number(cell, False) for cell in cells] for _, cells in delimited.body(path, dialect)]
    assert slow == values
    assert read_table(path).values.tolist() == values


SEEDS = {
    ".csv": b"a,b\n1,2\n3,4\n",
    ".tsv": b"1\t2\n3\t4\n",
    ".csv.gz": gzip.compress(b"a,b\n1,2\n"),
}


def seed(suffix, folder):
    if suffix in SEEDS:
        return SEEDS[suffix]
    path = folder / f"seed{suffix}"
    if not path.exists():
        if suffix == ".parquet":
            pl.DataFrame({"a": [1, 2, 3], "b": [0.5, 1.5, None]}).write_parquet(path)
        elif suffix == ".npy":
            np.save(path, np.ones((3, 2)))
        else:
            np.savez_compressed(path, x=np.ones((3, 2)), y=np.ones(3))
    return path.read_bytes()


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz", ".parquet", ".npy", ".npz"])
@QUICK
@given(data=st.data())
def test_damaged_files_give_nothing_but_input_errors(tmp_path, suffix, data):
    good = seed(suffix, tmp_path)
    if suffix == ".parquet":  # bytes changed inside its pages: test_parquet_pages.py
        content = data.draw(
            st.one_of(st.binary(max_size=60), st.integers(0, len(good) - 1).map(lambda end: good[:end]))
        )
        content += b"PAR1" if data.draw(st.booleans()) and len(content) < 100 else b""
    elif data.draw(st.booleans()):
        content = bytearray(good)
        for position, value in data.draw(
            st.lists(st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)), max_size=8)
        ):
            content[position] = value
        content = bytes(content[: data.draw(st.integers(0, len(good)))]) if data.draw(st.booleans()) else bytes(content)
    else:
        content = data.draw(st.binary(max_size=200))
    path = written(tmp_path, f"t{suffix}", content)
    for read in (read_table, read_frame):
        try:
            read(path)
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017


def test_columns_of_different_lengths_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="same length"):
        write_table(tmp_path / "t.csv", {"a": [1], "b": [1, 2]})
    with pytest.raises(ValueError, match="shape"):
        write_table(tmp_path / "t.csv", {"a": np.ones((2, 2, 2))})
    with pytest.raises(ValueError, match="two columns would bear the name 'z_1'"):
        write_table(tmp_path / "t.csv", {"z_1": np.ones(2), "z": np.ones((2, 2))})
    with pytest.raises(InputError, match="cannot be written"):
        write_table(tmp_path / "t.xlsx", {"a": [1]})
    assert list(tmp_path.iterdir()) == []


def test_columns_can_be_left_out_by_name(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,c\n1,x,3\n4,,6\n")
    pl.read_csv(tmp_path / "t.csv").write_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        table = read_table(tmp_path / name, exclude=["b"])
        assert table.names == ("a", "c")
        assert table.values.tolist() == [[1, 3], [4, 6]]
    np.save(tmp_path / "t.npy", np.arange(6).reshape(2, 3))
    assert read_table(tmp_path / "t.npy", exclude=["column_2"]).values.tolist() == [[0, 2], [3, 5]]
    assert read_table(tmp_path / "t.npy", columns=["column_3", "column_1"]).values.tolist() == [[2, 0], [5, 3]]
    for options, message in (
        ({"exclude": ["d"]}, "there is no column 'd'; the columns are a, b, c"),
        ({"exclude": ["a", "b", "c"]}, "every column is excluded"),
        ({"columns": ["a", "a"]}, "the column 'a' is asked for twice"),
    ):
        with pytest.raises(InputError, match=message):
            read_table(tmp_path / "t.csv", **options)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_a_row_of_text_is_named_by_the_line_that_it_starts_in(tmp_path, suffix):
    text = '\n"a","b"\n1,2\n\n"3\n",4\n5,6\n'
    path = tmp_path / f"t{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    assert [str(row_error("bad", path, row)) for row in range(3)] == [f"{path}:{line}: bad" for line in (3, 5, 7)]
