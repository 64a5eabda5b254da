"""Reading of what users have: tables, arrays and folders of images become rows of features, or one line says why not."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tenfold.errors import InputError
from tenfold.mixture.data import DIM, read_features, read_features_like


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def images(folder: Path, *sizes: tuple[int, int], mode: str = "L") -> Path:
    for i, size in enumerate(sizes):
        place = folder / ("cat" if i % 2 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, 51 * i if mode == "L" else (51 * i, 0, 255)).save(place / f"{i}.png")
    return folder


def test_csv_and_parquet_give_the_same_rows(tmp_path):
    frame = pl.DataFrame({"height": [1.5, 1.75], "weight": [60, 75], "smokes": [True, False]})
    frame.write_parquet(tmp_path / "people.parquet")
    frame.with_columns(pl.col("smokes").cast(int)).write_csv(tmp_path / "people.csv")
    for name in ("people.csv", "people.parquet"):
        features = read_features(tmp_path / name)
        assert features.values.tolist() == [[1.5, 60, 1], [1.75, 75, 0]]
        assert features.names == ("height", "weight", "smokes")
        assert features.rows == ("1", "2")
        assert features.image_shape is None
        assert not features.binary_or_intensity


def test_constant_columns_are_named(tmp_path):
    assert read_features(write(tmp_path / "a.csv", "a,b,c\n1,2,0.1\n1,3,0.1\n")).constant == ("a", "c")


def test_folder_of_images_gives_intensities_names_and_labels(tmp_path):
    features = read_features(images(tmp_path / "pets", (3, 2), (3, 2), (3, 2)))
    assert features.rows == ("cat/1.png", "dog/0.png", "dog/2.png")
    assert features.labels == ("cat", "dog", "dog")
    assert features.image_shape == (2, 3)
    torch.testing.assert_close(features.values, torch.tensor([[0.2], [0.0], [0.4]]).expand(3, 6))
    assert features.binary_or_intensity


def test_colours_stay_beside_each_other(tmp_path):
    features = read_features(images(tmp_path / "pets", (2, 2), mode="RGB"))
    assert features.image_shape == (2, 2, 3)
    assert features.values.tolist() == [[0.0, 0.0, 1.0] * 4]
    assert read_features(tmp_path / "pets", grayscale=True).image_shape == (2, 2)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["uint8", "int64", "float32", "bool"]),
    st.sampled_from([(3, 4, 5), (3, 4, 5, 1), (3, 4, 5, 3), (3, 3, 4, 5)]),
    st.integers(0, 1000),
)
def test_arrays_of_images_of_every_type_and_layout_are_intensities(tmp_path_factory, dtype, shape, seed):
    x = np.random.default_rng(seed).integers(0, 256, shape)
    x.flat[0] = 255
    stored = {"float32": x / 255, "bool": x > 127}.get(dtype, x).astype(dtype)
    path = tmp_path_factory.mktemp("arrays") / "x.npy"
    np.save(path, stored)
    features = read_features(path)
    expected = stored.astype(float) / (1 if dtype in ("float32", "bool") else 255)
    if len(shape) == 4 and shape[3] == 5:
        expected = np.moveaxis(expected, 1, 3)
    np.testing.assert_allclose(features.values, expected.reshape(3, -1), atol=0.002)
    assert features.image_shape == ((4, 5, 3) if 3 in shape[1:] else (4, 5))
    assert features.labels is None


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 255), st.one_of(st.none(), st.integers(1, 255)))
def test_white_is_what_the_user_says_and_never_darker_than_the_data(tmp_path_factory, brightest, white):
    path = tmp_path_factory.mktemp("arrays") / "x.npy"
    x = np.zeros((2, 3, 3), np.uint8)
    x[1, 1, 1] = brightest
    np.save(path, x)
    if (white is None and brightest < DIM) or (white is not None and white < brightest):
        with pytest.raises(InputError, match=str(brightest)):
            read_features(path, white=white)
    else:
        assert read_features(path, white=white).values.max().item() == pytest.approx(brightest / (white or 255))


def test_table_of_small_whole_numbers_is_a_table(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.uint8).reshape(3, 2))
    features = read_features(tmp_path / "x.npy")
    assert features.values.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert features.names == ("column_1", "column_2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,x\n", r"t.csv:3: .*'b'.*'x'"),
        ("a,b\n1,2\n3,\n", r"t.csv:3: .*'b'.*missing"),
        ("a,b\n1,2\n3\n", r"t.csv:3: .*1 value"),
        ("a,b\n1,2\n3,4,5\n", r"t.csv:3: .*3 values"),
        ("a,b\n1,2\n3,inf\n", r"t.csv:3: .*'b'"),
        ("a,b\n1,2\n3,1e300\n", r"t.csv:3: column 'b' is too large"),
        ("", "t.csv: the file is empty"),
    ],
)
def test_bad_tables_are_named_by_file_and_row(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as error:
        read_features(write(tmp_path / "t.csv", text))
    assert "\n" not in str(error.value)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 30), st.integers(2, 4), st.data(), st.sampled_from(["", "n/a", "nan", "inf", "one"]))
def test_any_bad_cell_is_found_in_its_line(tmp_path_factory, rows, columns, data, bad):
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    cells = [[f"{i}.{j}" for j in range(columns)] for i in range(rows)]
    cells[row][column] = bad
    lines = [",".join(f"c{j}" for j in range(columns)), *(",".join(line) for line in cells)]
    path = write(tmp_path_factory.mktemp("tables") / "t.csv", "\n".join(lines) + "\n")
    with pytest.raises(InputError, match=rf"t\.csv:{row + 2}: "):
        read_features(path)


def test_missing_value_in_parquet_is_named(tmp_path):
    pl.DataFrame({"a": [1.0, 2.0, None]}).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"t\.parquet: row 3: .*'a'"):
        read_features(tmp_path / "t.parquet")


def test_unreadable_image_is_named(tmp_path):
    folder = images(tmp_path / "pets", (4, 4), (4, 4))
    bad = folder / "cat" / "1.png"
    bad.write_bytes(bad.read_bytes()[:40])
    with pytest.raises(InputError, match=r"cat/1\.png: the image cannot be read"):
        read_features(folder)


def test_images_of_several_sizes_need_a_size(tmp_path):
    folder = images(tmp_path / "pets", (4, 4), (5, 4))
    with pytest.raises(InputError, match=r"0\.png: has 4 x 4 pixels, 1\.png has 5 x 4; give a size"):
        read_features(folder)
    assert read_features(folder, size=3).image_shape == (3, 3)


@pytest.mark.parametrize("option", [{"size": 8}, {"grayscale": True}, {"white": 16}])
def test_options_of_images_are_refused_for_tables(tmp_path, option):
    with pytest.raises(InputError, match="this is a table"):
        read_features(write(tmp_path / "t.csv", "a\n1\n2\n"), **option)


def test_white_is_refused_where_it_means_nothing(tmp_path):
    with pytest.raises(InputError, match="in image files it is known"):
        read_features(images(tmp_path / "pets", (4, 4)), white=16)
    np.save(tmp_path / "x.npy", np.ones((2, 3, 3)))
    with pytest.raises(InputError, match="holds float64"):
        read_features(tmp_path / "x.npy", white=16)


def test_nothing_there_is_said(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no images"):
        read_features(tmp_path / "empty")
    with pytest.raises(InputError, match="no such file"):
        read_features(tmp_path / "absent.csv")


MODEL = {"num_features": 2, "image_shape": None, "names": ("a", "b"), "intensities": False}


@pytest.mark.parametrize(
    ("text", "model", "message"),
    [
        ("a,b,c\n1,2,3\n", {"names": None}, "has 3 features a row; the model was trained on 2"),
        ("a,c\n1,2\n", {}, "t.csv: there is no column 'b'; the columns are a, c"),
        ("1,2\n3,4\n", {}, "t.csv: there is no column 'a'; the columns are column_1, column_2"),
        ("a,b\n0,1\n0,1.5\n", {"intensities": True}, "t.csv:3: column 'b' is 1.5; the model takes values from 0 to 1"),
    ],
)
def test_data_of_another_kind_than_the_model_is_named(tmp_path, text, model, message):
    with pytest.raises(InputError, match=message):
        read_features_like(write(tmp_path / "t.csv", text), **(MODEL | model))


def test_a_model_finds_its_columns_by_name_in_a_wider_table_of_any_order(tmp_path):
    wide = write(tmp_path / "t.csv", "b,note,a\n2,x,1\n4,,3\n")
    features = read_features_like(wide, **MODEL)
    assert features.names == ("a", "b")
    assert features.values.tolist() == [[1, 2], [3, 4]]


def test_columns_are_of_tables_and_images_not_of_their_models(tmp_path):
    folder = images(tmp_path / "pets", (4, 4))
    with pytest.raises(InputError, match="columns are chosen in tables; these are images"):
        read_features(folder, exclude=["a"])
    with pytest.raises(InputError, match="these are images; the model was trained on a table"):
        read_features_like(folder, **MODEL)


def test_images_are_brought_to_the_size_and_colours_of_the_model(tmp_path):
    gray = images(tmp_path / "gray", (8, 6), (5, 9))
    colour = images(tmp_path / "colour", (8, 6), mode="RGB")
    model = {"names": None, "intensities": True}
    for folder, shape in ((gray, (2, 3)), (gray, (2, 3, 3)), (colour, (2, 3)), (colour, (2, 3, 3))):
        features = read_features_like(folder, num_features=int(np.prod(shape)), image_shape=shape, **model)
        assert features.image_shape == shape
        assert features.values.shape[1] == np.prod(shape)
    features = read_features_like(gray, num_features=18, image_shape=(2, 3, 3), **model)
    assert torch.equal(features.values[:, 0::3], features.values[:, 2::3])
