"""Reading of labelled examples: folders of images, tables and arrays become inputs and classes, or one line says why not."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits, load_iris

from tenfold.errors import InputError
from tenfold.normalization.data import LabelledData, dataset, read_inputs, read_labelled, split


def images(folder: Path, classes: dict[str, int], size: tuple[int, int] = (6, 4), mode: str = "L") -> Path:
    for name, count in classes.items():
        for number in range(count):
            place = folder / name / f"{number}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            gray = 10 * number + len(name)
            Image.new(mode, size, gray if mode == "L" else (gray, 0, 255)).save(place)
    return folder


def test_folder_of_images_has_a_class_a_sub_folder(tmp_path):
    data = read_labelled(images(tmp_path / "pets", {"dog": 3, "cat": 2}))
    assert data.inputs.shape == (5, 1, 4, 6)
    assert data.classes == ("cat", "dog")
    assert data.labels.tolist() == [0, 0, 1, 1, 1]
    assert data.name == "pets"
    torch.testing.assert_close(data.inputs[1, 0], torch.full((4, 6), 13 / 255))


def test_colours_come_first_and_size_and_gray_are_as_asked_for(tmp_path):
    folder = images(tmp_path / "pets", {"dog": 2, "cat": 2}, mode="RGB")
    data = read_labelled(folder)
    assert data.inputs.shape == (4, 3, 4, 6)
    assert data.inputs[0, :, 0, 0].tolist() == pytest.approx([3 / 255, 0, 1])
    assert read_labelled(folder, size=(2, 3), grayscale=True).inputs.shape == (4, 1, 2, 3)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_a_table_gives_the_same_from_every_kind_of_file(tmp_path, suffix):
    iris = load_iris()
    frame = pl.DataFrame({name: iris.data[:, i] for i, name in enumerate(iris.feature_names)})
    frame.insert_column(2, pl.Series("Class", [str(iris.target_names[i]) for i in iris.target]))
    path = tmp_path / f"iris.{suffix}"
    if suffix == "parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, separator="\t" if suffix == "tsv" else ",")
    data = read_labelled(path)  # the column called Class is found
    np.testing.assert_array_equal(data.inputs.numpy(), iris.data.astype(np.float32))
    assert data.classes == tuple(iris.target_names)
    assert data.labels.tolist() == iris.target.tolist()


def test_arrays_of_digits_with_labels_beside_them(tmp_path):
    digits = load_digits()
    np.savez(tmp_path / "d.npz", images=digits.images.astype(np.uint8), y=digits.target)
    data = read_labelled(tmp_path / "d.npz")
    np.testing.assert_array_equal(data.inputs[:, 0].numpy(), digits.images)
    assert data.labels.tolist() == digits.target.tolist()
    np.savez(tmp_path / "two.npz", a=digits.images, b=digits.data, first=digits.target, second=digits.target % 2)
    data = read_labelled(f"{tmp_path}/two.npz:b", label="second")
    assert data.inputs.shape == (1797, 64)
    assert data.classes == ("0", "1")


@pytest.mark.parametrize(
    ("shape", "expected"), [((4, 5, 6, 3), (4, 3, 5, 6)), ((4, 3, 5, 6), (4, 3, 5, 6)), ((4, 7), (4, 7))]
)
def test_layouts_of_arrays(tmp_path, shape, expected):
    x = np.random.default_rng(0).normal(size=shape)
    np.savez(tmp_path / "x.npz", x=x, y=np.array([0, 1, 0, 1]))
    data = read_labelled(tmp_path / "x.npz")
    assert data.inputs.shape == expected
    np.testing.assert_allclose(data.inputs.sum().item(), x.sum(), rtol=1e-5)


def test_numbers_as_classes_are_in_the_order_of_their_size(tmp_path):
    text = "y,a\n" + "".join(f"{y},1\n" for y in (10, 9, -1, 10, 9, -1))
    (tmp_path / "t.csv").write_text(text)
    data = read_labelled(tmp_path / "t.csv")
    assert data.classes == ("-1", "9", "10")
    assert data.labels.tolist() == [2, 1, 0, 2, 1, 0]
    (tmp_path / "f.csv").write_text(text.replace("9,", "9.0,").replace("10,", "10.0,").replace("-1,", "-1.0,"))
    assert read_labelled(tmp_path / "f.csv").classes == data.classes


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        ("a,b\n1,2\n3,4\n", None, r"t.csv: which column holds the classes\? name it with --label; there are a, b"),
        ("y,label\n1,2\n3,4\n", None, r"t.csv: which column holds the classes"),
        ("a,y\n1,2\n3,4\n", "z", r"t.csv: there is no column 'z'; the columns are a, y"),
        ("y\n1\n2\n", None, r"t.csv: has no column beside the labels 'y'"),
        ("a,y\n1,u\n2,v\n3,\n4,v\n", None, r"t.csv:4: the label in column 'y' is missing"),
        ("a,y\n1,u\n\n2,v\n3,u\n4,v\n5,w\n", None, r"t.csv:7: class 'w' has one example; two are needed"),
        ("a,y\n1,u\n2,u\n", None, r"t.csv: all labels are 'u'; at least two classes"),
        ("a,y\n1,0.5\n2,1.0\n", None, r"t.csv:2: the label in column 'y' is 0.5; classes are text or whole numbers"),
        ("a,y\n1,1.0\n2,inf\n", None, r"t.csv:3: the label in column 'y' is inf"),
        ("a,y\nx,u\n2,v\n3,u\n4,v\n", None, r"t.csv:2: column 'a' holds text \('x'\)"),
        ("a,y\n1,u\n,v\n3,u\n4,v\n", None, r"t.csv:3: column 'a' has a missing value"),
        ("a,y\n1,u\n1e300,v\n3,u\n4,v\n", None, r"t.csv:3: column 'a' is too large for float32"),
        ("a,y\n1,u\n2,v,9\n3,u\n", None, r"t.csv:3: .*3 values"),
        ("", None, r"t.csv: the file is empty"),
        ("a,y\n", None, r"t.csv: .*no row"),
    ],
)
def test_bad_tables_are_one_line_with_file_and_line(tmp_path, text, label, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=message) as error:
        read_labelled(tmp_path / "t.csv", label=label)
    assert "\n" not in str(error.value)


def test_more_classes_than_could_be_meant(tmp_path):
    pl.DataFrame({"y": list(range(1001)) * 2, "a": [1] * 2002}).write_csv(tmp_path / "t.csv")
    with pytest.raises(InputError, match="has 1001 different labels; at most 1,000 classes are taken"):
        read_labelled(tmp_path / "t.csv")


def test_bad_folders_and_files(tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    Image.new("L", (3, 3)).save(flat / "a.png")
    with pytest.raises(InputError, match="flat: the images lie in no sub-folders"):
        read_labelled(flat)
    with pytest.raises(InputError, match="one: all labels are 'cat'"):
        read_labelled(images(tmp_path / "one", {"cat": 3}))
    with pytest.raises(InputError, match="class 'cat' has one example"):
        read_labelled(images(tmp_path / "two", {"cat": 1, "dog": 2}))
    with pytest.raises(InputError, match="sub-folders are the labels"):
        read_labelled(tmp_path / "one", label="y")
    (tmp_path / "one" / "cat" / "9.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"9.png: the image cannot be read"):
        read_labelled(tmp_path / "one")
    with pytest.raises(InputError, match=r"absent.csv: there is no such file"):
        read_labelled(tmp_path / "absent.csv")
    with pytest.raises(InputError, match="absent: there is no such file or folder"):
        read_labelled(tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("cats")
    with pytest.raises(InputError, match="labelled examples are a folder of images"):
        read_labelled(tmp_path / "notes.txt")
    (tmp_path / "t.csv").write_text("a,y\n1,u\n2,v\n")
    with pytest.raises(InputError, match="size and grayscale are for folders of images"):
        read_labelled(tmp_path / "t.csv", size=3)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((4, 3)), "y": np.zeros(3)}, r"labels 'y' have shape \(3,\), the inputs \(4, 3\)"),
        ({"x": np.zeros((4, 3)), "y": np.array([0, 1, 0, 0.5])}, r"x.npz:4: label 0.5 is no whole number"),
        ({"x": np.array([[1, 2], [3, np.nan]]), "y": np.arange(2)}, r"x.npz:2: an input is not finite"),
        ({"x": np.array([[1.0], [2.0]] * 2), "u": np.arange(4), "v": np.arange(4)}, "which array holds the classes"),
        ({"x": np.zeros((2, 3, 4, 5, 6)), "y": np.arange(2)}, r"\(N, F\), \(N, H, W\) or \(N, C, H, W\) is needed"),
        ({"x": np.zeros((2, 3)), "y": np.array(["a", "b"])}, "real numbers are needed"),
    ],
)
def test_bad_arrays_are_named(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError, match=message):
        read_labelled(tmp_path / "x.npz")


def test_an_array_alone_has_no_labels(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    with pytest.raises(InputError, match=r"an .npz with arrays of inputs and of labels"):
        read_labelled(tmp_path / "x.npy")
    (tmp_path / "x.npz").write_bytes((tmp_path / "x.npy").read_bytes())
    with pytest.raises(InputError, match=r"holds one array; an \.npz of two"):
        read_labelled(tmp_path / "x.npz")


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["t.csv", "t.parquet", "t.npz", "t.tsv.gz"]))
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path_factory, content, name):
    path = tmp_path_factory.mktemp("bytes") / name
    path.write_bytes(content)
    message = refusal(path)
    assert message is None or (name in message and "\n" not in message)


def refusal(path: Path) -> str | None:
    """Why a file was not taken; None if it was, with a label an input."""
    try:
        data = read_labelled(path)
    except InputError as error:
        return str(error)
    assert len(data.inputs) == len(data.labels)
    return None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(2, 30), min_size=2, max_size=6),
    st.floats(0.01, 0.99),
    st.integers(0, 2**32),
)
def test_split_takes_the_same_share_of_each_class_and_one_at_least_on_either_side(sizes, share, seed):
    labels = torch.cat([torch.full((size,), number) for number, size in enumerate(sizes)])
    rows = torch.arange(len(labels), dtype=torch.float32)[:, None]
    data = LabelledData(rows, labels, tuple("abcdef"[: len(sizes)]), "rows")
    parts = split(data, held_out=share, seed=seed)
    for number, size in enumerate(sizes):
        test = int((parts.test_labels == number).sum())
        assert test + int((parts.labels == number).sum()) == size
        assert test == min(max(1, round(share * size)), size - 1)
    # standardising keeps the order, so that the examples can be told from their values
    values = torch.cat([parts.inputs, parts.test_inputs]).squeeze(1)
    together = torch.cat([parts.labels, parts.test_labels])
    assert torch.equal(together[values.argsort()], labels)


def test_split_standardises_by_the_training_part_alone():
    rng = np.random.default_rng(0)
    x = torch.from_numpy((rng.normal(size=(50, 2, 3, 3)) * [[[[5]], [[0]]]] + [[[[1000]], [[7]]]]).astype(np.float32))
    parts = split(LabelledData(x, torch.arange(50) % 2, ("a", "b"), "x"), held_out=0.3, seed=4)
    train = parts.inputs[:, 0].double()
    assert train.mean().abs() < 1e-6
    assert train.square().mean().item() == pytest.approx(1, abs=1e-6)
    assert parts.test_inputs[:, 0].mean().abs() > 1e-3
    assert parts.inputs[:, 1].abs().max() == 0  # a constant channel stays constant


def test_split_depends_on_the_seed_alone():
    data = dataset("digits")
    first, again, other = (split(data, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.test_labels, other.test_labels)
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match=f"held_out={share}"):
            split(data, held_out=share)


def test_a_published_test_set_is_the_test_part():
    digits = dataset("digits")
    train = LabelledData(digits.inputs[:100], digits.labels[:100], digits.classes, "d")
    data = LabelledData(digits.inputs[100:], digits.labels[100:], digits.classes, "d", test=train)
    parts = split(data, seed=3)
    assert torch.equal(parts.test_labels, digits.labels[:100])
    assert len(parts.labels) == 1697


def test_datasets_by_name():
    digits = dataset("digits")
    assert digits.inputs.shape == (1797, 1, 8, 8)
    assert digits.inputs.max() == 1
    np.testing.assert_array_equal(digits.inputs[:, 0].numpy() * 16, load_digits().images)
    with pytest.raises(InputError, match="--dataset 'cifar' is not one of digits, mnist, mnist_5k"):
        dataset("cifar")
    with pytest.raises(InputError, match="digits is to be had in size 8, not 14"):
        dataset("digits", size=14)


def test_inputs_alone_need_no_classes(tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for number in range(3):
        Image.new("L", (4, 2), 51 * number).save(flat / f"{number}.png")
    x = read_inputs(flat)
    assert x.shape == (3, 1, 2, 4)
    assert x[:, 0, 0, 0].tolist() == pytest.approx([0, 0.2, 0.4])
    assert read_inputs(images(tmp_path / "pets", {"dog": 2, "cat": 1}), size=3).shape == (3, 1, 3, 3)
    (tmp_path / "t.csv").write_text("a,kind,b\n1,u,2\n3,v,4\n")
    assert read_inputs(tmp_path / "t.csv", label="kind").tolist() == [[1, 2], [3, 4]]
    np.savez(tmp_path / "x.npz", x=np.ones((2, 4, 5, 3)), y=np.arange(2))
    assert read_inputs(tmp_path / "x.npz").shape == (2, 3, 4, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"t.csv:2: column 'kind' holds text \('u'\)"),
        ({"label": "x"}, r"t.csv: there is no column 'x'; the columns are a, kind, b"),
        ({"size": 3}, "size and grayscale are for folders of images"),
    ],
)
def test_bad_inputs_are_named(tmp_path, options, message):
    (tmp_path / "t.csv").write_text("a,kind,b\n1,u,2\n3,v,4\n")
    with pytest.raises(InputError, match=message):
        read_inputs(tmp_path / "t.csv", **options)
