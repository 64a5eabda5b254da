"""Event logs in files and frames: ids kept as they are written, columns found, faults named by file and line."""

import csv
import gzip

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenfold.errors import InputError
from tenfold.recommend.data import read_interactions
from tenfold.recommend.interactions import Interactions


@pytest.fixture
def write(tmp_path):
    def written(text, name="plays.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


def cells(plays):
    """{(user, item): value}"""
    found = plays.matrix.tocoo()
    users, items = plays.user_ids[found.row].tolist(), plays.item_ids[found.col].tolist()
    return dict(zip(zip(users, items, strict=True), found.data.tolist(), strict=True))


# --- what is read ------------------------------------------------------------------------------------------------------


def test_integer_ids_become_integers_and_others_stay_text(write):
    plays = Interactions.from_csv(write("user_id,item_id,plays\n10,007,1\n9,7,2\n10,7,3\n10,7,4\n"))
    assert plays.user_ids.tolist() == [9, 10]
    assert plays.item_ids.tolist() == ["007", "7"]  # two ids, not one
    assert cells(plays) == {(9, "7"): 2, (10, "007"): 1, (10, "7"): 7}


@pytest.mark.parametrize("id_", ["+1", "1.0", "1e3", "-0", "１", "99999999999999999999"])
def test_ids_that_are_not_plainly_integers_stay_text(write, id_):
    assert Interactions.from_csv(write(f"user,item\n5,a\n{id_},a\n")).user_ids.tolist() == sorted(["5", id_])


@pytest.mark.parametrize(
    ("header", "roles"),
    [
        ("userId,movieId,rating,timestamp", None),
        ("user_id:token,item_id:token,rating:float,timestamp:float", None),
        ("Customer ID,ASIN,Quantity,Date", None),
        ("when,uid,track,plays", {"timestamp": "when"}),
        ("who,what,much,when", {"user": "who", "item": "what", "value": "much", "timestamp": "when"}),
    ],
)
def test_columns_are_found_by_usual_names_or_named(write, header, roles):
    row = {"when,uid,track,plays": "5,1,2,3"}.get(header, "1,2,3,5")
    plays = Interactions.from_csv(write(f"{header}\n{row}\n"), **(roles or {}))
    assert cells(plays) == {(1, 2): 3}
    assert plays.events.timestamps.tolist() == [5]


def test_columns_that_cannot_be_found_are_an_error_that_lists_them(write):
    path = write("who,what,stars\n1,2,3\n")
    with pytest.raises(
        InputError,
        match=r"plays.csv: no column has a usual name for the user; name it .*, or --user-column.: .* who, what, stars",
    ):
        Interactions.from_csv(path)
    with pytest.raises(InputError, match="there is no column 'film' for item; the columns are who, what, stars"):
        Interactions.from_csv(path, user="who", item="film")
    with pytest.raises(InputError, match="one column cannot be two things"):
        Interactions.from_csv(path, user="who", item="who")


def test_every_event_counts_one_where_there_are_no_values(write):
    assert cells(Interactions.from_csv(write("user,item\na,x\na,x\nb,x\n"))) == {("a", "x"): 2, ("b", "x"): 1}


def test_other_columns_may_hold_anything(write):
    text = 'user,note,item,rating\nann,"a, ""b""\nc",x,1.5\nbob,,y,2\n'
    assert cells(Interactions.from_csv(write(text))) == {("ann", "x"): 1.5, ("bob", "y"): 2}


def test_separators_decimal_commas_compression_and_old_line_ends(write):
    expected = {("ann", "x"): 1.5, ("bob", "y"): 2}
    table = "user,item,rating\nann,x,1.5\nbob,y,2\n"
    assert cells(Interactions.from_csv(write(table.replace(",", "\t"), "plays.tsv"))) == expected
    assert cells(Interactions.from_csv(write(table.replace(",", ";").replace(".", ",")))) == expected
    assert cells(Interactions.from_csv(write(gzip.compress(table.encode()), "plays.csv.gz"))) == expected
    assert cells(Interactions.from_csv(write(table.replace("\n", "\r\n")))) == expected
    assert cells(Interactions.from_csv(write(table.replace("\n", "\r")))) == expected
    assert cells(Interactions.from_csv(write("\ufeff" + table))) == expected


def test_blank_lines_are_no_events(write):
    assert cells(Interactions.from_csv(write("user,item,rating\n\na,x,1\n\n\nb,y,2\n\n"))) == {
        ("a", "x"): 1,
        ("b", "y"): 2,
    }
    with pytest.raises(InputError, match=r"plays.csv:4: column 'user' has a missing value"):
        Interactions.from_csv(write("user,item,rating\na,x,1\n\n,,\n"))
    with pytest.raises(InputError, match=r"plays.csv:5: column 'rating' holds text"):
        Interactions.from_csv(write("user,item,rating\n\na,x,1\n\nb,y,q\n"))


def test_a_table_without_header_is_read_by_numbered_columns(write):
    plays = Interactions.from_csv(
        write("1\t2\t3\n4\t5\t6\n", "u.tsv"), user="column_1", item="column_2", value="column_3"
    )
    assert cells(plays) == {(1, 2): 3, (4, 5): 6}


def test_dates_become_seconds(write):
    plays = Interactions.from_csv(write("user,item,date\n1,2,1970-01-02\n1,3,1970-01-01T00:00:01\n"))
    assert plays.events.timestamps.tolist() == [86400, 1]


def test_parquet_and_frames_give_the_same_as_text(write, tmp_path):
    frame = pl.DataFrame(
        {
            "user": ["b", "a", "b"],
            "item": [3, 1, 3],
            "count": [1, 2, 3],
            "time": pl.Series([0, 1, 2], dtype=pl.Int64).cast(pl.Datetime("ms")),
        }
    )
    frame.write_parquet(tmp_path / "plays.parquet")
    expected = {("a", 1): 2, ("b", 3): 4}
    for plays in (
        Interactions.from_csv(tmp_path / "plays.parquet"),
        Interactions.from_frame(frame),
        Interactions.from_frame(frame.lazy()),
        Interactions.from_frame(frame.with_columns(pl.col("user").cast(pl.Categorical))),
    ):
        assert cells(plays) == expected
        assert plays.events.timestamps.tolist() == [0, 0.001, 0.002]


def test_pandas_frames_are_read():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"user": ["b", "a", "b"], "item": [3, 1, 3], "rating": [1.0, 2.0, 3.0]})
    assert cells(Interactions.from_frame(frame)) == {("a", 1): 2, ("b", 3): 4}
    frame["date"] = pandas.to_datetime(["1970-01-02"] * 3)
    assert Interactions.from_frame(frame).events.timestamps.tolist() == [86400] * 3
    frame.loc[1, "user"] = None
    with pytest.raises(InputError, match="row 2: column 'user' holds a missing value"):
        Interactions.from_frame(frame)
    frame.loc[:, "user"] = "b"
    frame.loc[2, "rating"] = np.nan
    with pytest.raises(InputError, match="row 3: column 'rating' holds nan"):
        Interactions.from_frame(frame)


def test_what_is_no_frame_is_refused():
    with pytest.raises(TypeError, match="frame is a list"):
        Interactions.from_frame([1, 2])


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zs", "Zl", "Zp"]), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(TEXTS, st.integers(-(10**9), 10**9), st.integers(-50, 50)), min_size=1, max_size=20))
def test_a_file_gives_what_its_arrays_give(tmp_path_factory, events):
    path = tmp_path_factory.mktemp("plays") / "plays.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("user", "item", "value"), *events])
    found = read_interactions(path)
    expected = Interactions(*(list(column) for column in zip(*events, strict=True)))
    assert found.user_ids.astype(str).tolist() == sorted(expected.user_ids.tolist(), key=_id_order(found))
    assert {(str(u), i): v for (u, i), v in cells(found).items()} == cells(expected)


def _id_order(found):
    return int if found.user_ids.dtype.kind == "i" else str


# --- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "user,item,rating\na,x,1\nb,y,many\n",
            r"plays.csv:3: column 'rating' holds text \('many'\); numbers are needed",
        ),
        (
            "user,item,rating\na,x,1\nb,y,\n",
            r"plays.csv:3: column 'rating' has a missing value; every event needs its value",
        ),
        ("user,item,rating\na,x,NA\n", r"plays.csv:2: column 'rating' has a missing value \('NA'\)"),
        ("user,item,rating\na,x,nan\n", r"plays.csv:2: column 'rating' has a missing value \('nan'\)"),
        ("user,item,rating\na,x,1\nb,y,inf\n", r"plays.csv:3: column 'rating' holds 'inf'; finite numbers are needed"),
        ("user,item,rating\na,x,1e999\n", r"plays.csv:2: column 'rating' holds '1e999'"),
        (
            "user,item,rating\na,x,1\n,y,2\n",
            r"plays.csv:3: column 'user' has a missing value; every event needs its user",
        ),
        ("user,item\na,x\nb,\n", r"plays.csv:3: column 'item' has a missing value"),
        ("user,item,rating\na,x,1\nb,y\n", r"plays.csv:3: this line has 2 values, the first has 3"),
        ("user,item,rating\na,x,1\nb,y,2,9\n", r"plays.csv:3: this line has 4 values, the first has 3"),
        ('user,item,note,rating\na,x,"1\n2",1\nb,y,z,?\n', r"plays.csv:4: column 'rating' has a missing value"),
        ("user,item,date\na,x,2020-01-01\nb,y,soon\n", r"plays.csv:3: column 'date' holds 'soon'"),
        ("user,item,time\na,x,1\nb,y,soon\n", r"plays.csv:3: column 'time' holds 'soon'"),
        ("user,item,rating\n", "there is a header, but no row under it"),
        ("user,item,rating\n\r\n", "there is a header, but no row under it"),
        ("", "the file is empty"),
        ("user,item,user\na,b,c\n", "appears twice"),
        (b"user,item\n\xff,b\n", "is no UTF-8 text"),
    ],
)
def test_faults_are_named_by_file_and_line(write, text, message):
    with pytest.raises(InputError, match=message):
        Interactions.from_csv(write(text))


def test_faults_in_parquet_are_named_by_row(tmp_path):
    path = tmp_path / "plays.parquet"
    for frame, message in (
        ({"user": ["a", None], "item": [1, 2]}, "parquet:2: column 'user' holds a missing value"),
        ({"user": ["a", "b"], "item": [1, 2], "rating": [1.0, float("nan")]}, "parquet:2: column 'rating' holds nan"),
        ({"user": ["a"], "item": [1.5]}, "column 'item' holds Float64; item ids are integers or text"),
        ({"user": ["a"], "item": [1], "rating": ["x"]}, "column 'rating' holds String; numbers are needed"),
    ):
        pl.DataFrame(frame).write_parquet(path)
        with pytest.raises(InputError, match=message):
            Interactions.from_csv(path)


def test_files_that_are_no_tables_are_refused(tmp_path):
    for name, content, message in (
        ("plays.xlsx", b"x", "xlsx is no kind of table for interactions"),
        ("plays.parquet", b"PAR1 and no more", "damaged"),
        ("plays.csv.gz", b"no gzip", "gz"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message):
            Interactions.from_csv(tmp_path / name)
    with pytest.raises(InputError, match="there is no such file"):
        Interactions.from_csv(tmp_path / "none.csv")


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from('ab1.,;\t\n\r" nai-'), max_size=60))
def test_any_text_is_read_or_refused_in_one_line(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "any.csv"
    path.write_text("user,item,value\n" + text, encoding="utf-8", newline="")
    problem = ""
    try:
        assert np.isfinite(Interactions.from_csv(path).matrix.data).all()
    except InputError as error:
        problem = str(error)
    assert "\n" not in problem


def test_none_as_the_column_of_values_counts_every_event_once(write):
    rows = "ann,tea,5,{0}\nann,tea,-1,{1}\nbob,tea,0,{2}\n"
    for columns, stamps in (("user,item,plays,other", "abc"), ("user,item,plays,time", "123")):
        path = write(columns + "\n" + rows.format(*stamps))
        counted = read_interactions(path, value="none")
        assert counted.matrix.toarray().tolist() == [[2.0], [1.0]]
    path = write("user,item,none\nann,tea,4\n")  # a column may have this name
    assert read_interactions(path, value="none").matrix.toarray().tolist() == [[4.0]]
