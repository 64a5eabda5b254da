"""Reads labelled examples that users have: a folder of images with a sub-folder a class, a table or arrays with labels.

What is read becomes inputs, (N, C, H, W) for images and (N, F) for tables, and a class for each; what cannot be used is
named by file and line. Values stay as they are in the file until they are split: then each channel, or column, is
brought to mean 0 and deviation 1 by what the training part shows of it.
"""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import polars as pl
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from tenfold.errors import InputError
from tenfold.files import ImageStack, read_array, read_frame, read_images, read_table
from tenfold.files.arrays import split_member
from tenfold.files.delimited import body, find_dialect
from tenfold.files.limits import require_memory
from tenfold.files.tables import TEXT
from tenfold.training import seeded_generator

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".pq")
LABEL_NAMES = ("label", "labels", "class", "target", "y")
MOST_CLASSES = 1000  # as many as ImageNet has; more were hardly meant as classes
DATASETS = ("digits", "mnist", "mnist_5k")


@dataclass(frozen=True)
class LabelledData:
    """Examples with a class each.

    Args:
        inputs: Images (N, C, H, W), or rows of a table (N, F); finite.
        labels: The class of each, from 0 up.
        classes: Their names, at least two.
        name: What the data are called in titles.
        test: Examples that were published as the test set; None where a part has to be held out.
    """

    inputs: Float32[Tensor, "examples ..."]
    labels: Int64[Tensor, " examples"]
    classes: tuple[str, ...]
    name: str
    test: LabelledData | None = None


@dataclass(frozen=True)
class Parts:
    """What is trained on and what is tested on, each channel standardised by the training part.

    Args:
        inputs: To train on.
        labels: Their classes.
        test_inputs: To test on.
        test_labels: Their classes.
    """

    inputs: Float32[Tensor, "train ..."]
    labels: Int64[Tensor, " train"]
    test_inputs: Float32[Tensor, "test ..."]
    test_labels: Int64[Tensor, " test"]


def read_labelled(
    path: str | os.PathLike[str],
    *,
    label: str | None = None,
    size: int | tuple[int, int] | None = None,
    grayscale: bool = False,
) -> LabelledData:
    r"""Labelled examples from a folder or file.

    Args:
        path: A folder of images with a sub-folder a class; a table ``.csv``, ``.tsv`` (or with ``.gz``), ``.parquet`` with
            one column of labels and numbers in all others; or an ``.npz`` with an array of labels beside one of rows (N, F)
            or images (N, H, W), (N, C, H, W), or (N, H, W, C) with C = 1 or 3 (``data.npz:x_train`` names the latter).
        label: Name of the column, or array, of labels. None takes the only one called label, labels, class, target or y,
            and in an ``.npz`` otherwise the only array of one axis.
        size: (height, width), or one number for both, to which image files are scaled and cut; None: all must agree.
        grayscale: Read image files with one channel.

    Raises:
        InputError: What cannot be read or used, with the file, and line or row, at fault.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = Path(folder, "iris.csv")
    ...     _ = place.write_text("length,species\n1.4,setosa\n4.7,versicolor\n1.3,setosa\n4.5,versicolor\n")
    ...     data = read_labelled(place, label="species")
    >>> data.inputs.shape, data.labels.tolist(), data.classes
    (torch.Size([4, 1]), [0, 1, 0, 1], ('setosa', 'versicolor'))
    """
    file, _ = split_member(path)
    if file.is_dir():
        if label is not None:
            raise InputError("in a folder of images the sub-folders are the labels; leave out the label", path=file)
        return _from_folder(file, size, grayscale)
    if size is not None or grayscale:
        raise InputError("size and grayscale are for folders of images", path=file)
    name = file.name.lower()
    if name.endswith(".npz"):
        return _from_arrays(path, file, label)
    if name.endswith(TABLES):
        return _from_table(file, label)
    if not file.exists():
        raise InputError("there is no such file or folder", path=file)
    raise InputError(
        "labelled examples are a folder of images with a sub-folder a class, a table "
        f"({', '.join(TABLES)}), or an .npz with arrays of inputs and of labels",
        path=file,
    )


def read_inputs(
    path: str | os.PathLike[str],
    *,
    label: str | None = None,
    size: int | tuple[int, int] | None = None,
    grayscale: bool = False,
) -> Float32[Tensor, "examples ..."]:
    """Inputs alone, for what needs no classes: as `read_labelled`, and a folder of images without sub-folders, or an array.

    Args:
        path: A folder of images, a table of numbers, or an array of rows or images in ``.npy`` or ``.npz``.
        label: A column of a table to leave out.
        size: (height, width), or one number for both, to which image files are scaled and cut; None: all must agree.
        grayscale: Read image files with one channel.

    Returns:
        Images (N, C, H, W), from 0 to 1 where they come from files of images, or rows (N, F).

    Raises:
        InputError: What cannot be read or used, with the file, and line or row, at fault.
    """
    file, _ = split_member(path)
    if file.is_dir():
        return torch.from_numpy(_pixels(file, read_images(file, size=size, grayscale=grayscale)))
    if size is not None or grayscale:
        raise InputError("size and grayscale are for folders of images", path=file)
    if file.suffix.lower() in (".npy", ".npz"):
        return torch.from_numpy(_inputs_of(read_array(path), file))
    names = read_frame(path).columns
    column = _label_of(names, label, file) if label is not None else None
    return torch.from_numpy(_narrowed(file, [name for name in names if name != column], Lines.of_table(file)))


def dataset(name: str, *, size: int | None = None) -> LabelledData:
    """One of the data sets of handwritten digits.

    Args:
        name: ``digits`` (8 x 8, comes with the installation), ``mnist_5k`` or ``mnist`` (fetched at first use).
        size: 28 or 14 for MNIST (means of 2 x 2 pixels), 8 for digits; None takes 14 and 8.

    Raises:
        InputError: Another name or size.

    >>> dataset("digits").inputs.shape
    torch.Size([1797, 1, 8, 8])
    """
    from tenfold import datasets

    known = name.replace("-", "_")
    if known not in DATASETS:
        raise InputError(f"--dataset {name!r} is not one of {', '.join(DATASETS)}")
    sizes = (8,) if known == "digits" else (14, 28)
    if size is not None and size not in sizes:
        raise InputError(f"{name} is to be had in size {' or '.join(str(s) for s in sizes)}, not {size}")
    halve = known != "digits" and size != 28
    if known == "mnist":
        both = datasets.mnist()
        return replace(_digits(both.train, name, halve), test=_digits(both.test, name, halve))
    return _digits(datasets.digits() if known == "digits" else datasets.mnist_5k(), name, halve)


def _digits(data: object, name: str, halve: bool) -> LabelledData:
    images = torch.from_numpy(data.scaled()).unsqueeze(1)  # type: ignore[attr-defined]
    labels = torch.from_numpy(data.labels.astype(np.int64))  # type: ignore[attr-defined]
    inputs = torch.nn.functional.avg_pool2d(images, 2) if halve else images
    return LabelledData(inputs, labels, tuple("0123456789"), name)


def split(data: LabelledData, *, held_out: float = 0.2, seed: int = 0) -> Parts:
    """Splits off a part to test on, the same share of each class, and standardises both parts.

    Args:
        data: Examples; where they come with a test set, that is used as it is.
        held_out: Share that is tested on, between 0 and 1; of each class one example at least on either side.
        seed: Of the choice.

    Raises:
        ValueError: A share out of range.

    >>> parts = split(dataset("digits"), held_out=0.25)
    >>> len(parts.inputs), len(parts.test_inputs), parts.inputs.mean().abs().item() < 1e-6
    (1347, 450, True)
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out={held_out} must lie between 0 and 1")
    if data.test is not None:
        return _standardised(data.inputs, data.labels, data.test.inputs, data.test.labels)
    order = torch.randperm(len(data.labels), generator=seeded_generator(seed, 0))
    shuffled = data.labels[order]
    test = torch.zeros(len(order), dtype=torch.bool)
    for number in range(len(data.classes)):
        members = (shuffled == number).nonzero().squeeze(1)
        test[members[: min(max(1, round(held_out * len(members))), len(members) - 1)]] = True
    train, rest = order[~test], order[test]
    return _standardised(data.inputs[train], data.labels[train], data.inputs[rest], data.labels[rest])


def _standardised(inputs: Tensor, labels: Tensor, test_inputs: Tensor, test_labels: Tensor) -> Parts:
    axes = [axis for axis in range(inputs.dim()) if axis != 1]
    mean = inputs.double().mean(axes, keepdim=True)
    deviation = (inputs.double() - mean).square().mean(axes, keepdim=True).sqrt()
    # what is constant stays constant, and so does what varies by less than float32 can tell
    deviation[deviation <= 1e-6 * mean.abs()] = 1.0
    parts = [((x.double() - mean) / deviation).float() for x in (inputs, test_inputs)]
    return Parts(parts[0], labels, parts[1], test_labels)


def _labelled(inputs: np.ndarray, names: list[str], path: Path, lines: Lines) -> LabelledData:
    """Examples whose classes are numbered in the order of their names, numbers by size."""
    counts = Counter(names)
    if len(counts) < 2:
        raise InputError(f"all labels are {names[0]!r}; at least two classes are needed", path=path)
    if len(counts) > MOST_CLASSES:
        raise InputError(f"has {len(counts)} different labels; at most {MOST_CLASSES:,} classes are taken", path=path)
    single = min((name for name in counts if counts[name] == 1), key=names.index, default=None)
    if single is not None:
        row = names.index(single)
        raise InputError(
            f"class {single!r} has one example; two are needed, one to train and one to test",
            path=path,
            line=lines.of(row),
        )
    classes = sorted(counts, key=lambda name: (0, int(name), name) if name.lstrip("-").isdecimal() else (1, 0, name))
    number = {name: index for index, name in enumerate(classes)}
    labels = torch.tensor([number[name] for name in names])
    return LabelledData(torch.from_numpy(np.ascontiguousarray(inputs, np.float32)), labels, tuple(classes), path.stem)


@dataclass(frozen=True)
class Lines:
    """Where a row stands: the line in a text table, the row in others, nothing in a folder."""

    path: Path | None
    text: bool = False

    @classmethod
    def of_table(cls, path: Path) -> Lines:
        """The lines of a text table, or rows of another."""
        return cls(path, path.name.lower().endswith(TEXT))

    def of(self, row: int) -> int | None:
        """The line, counted from 1, of a row counted from 0."""
        if self.path is None:
            return None
        if not self.text:
            return row + 1
        return next(islice(body(self.path, find_dialect(self.path)), row, None))[0]


def _from_folder(folder: Path, size: int | tuple[int, int] | None, grayscale: bool) -> LabelledData:
    stack = read_images(folder, size=size, grayscale=grayscale)
    if stack.labels is None:
        raise InputError("the images lie in no sub-folders; a sub-folder for each class is needed", path=folder)
    return _labelled(_pixels(folder, stack), list(stack.labels), folder, Lines(None))


def _pixels(folder: Path, stack: ImageStack) -> np.ndarray:
    """Images as float32 from 0 to 1, channels first."""
    require_memory(stack.pixels.size * 8, folder, "give a smaller size")
    return np.ascontiguousarray(np.moveaxis(stack.pixels, 3, 1), np.float32) / np.float32(255)


def _from_table(path: Path, label: str | None) -> LabelledData:
    frame = read_frame(path)
    column = _label_of(frame.columns, label, path)
    others = [name for name in frame.columns if name != column]
    if not others:
        raise InputError(f"has no column beside the labels {column!r}", path=path)
    lines = Lines.of_table(path)
    if lines.text:  # blank lines, which have become rows of nulls; a row of empty cells is refused further down
        frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))
    labels = frame[column]
    if labels.null_count():
        row = int(labels.is_null().arg_max() or 0)
        raise InputError(f"the label in column {column!r} is missing", path=path, line=lines.of(row))
    if labels.dtype.is_float():
        wrong = ~((labels == labels.round()) & labels.is_finite())
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            raise InputError(
                f"the label in column {column!r} is {labels[row]}; classes are text or whole numbers",
                path=path,
                line=lines.of(row),
            )
        labels = labels.cast(pl.Int64)
    elif not (labels.dtype.is_integer() or labels.dtype in (pl.String, pl.Boolean, pl.Categorical)):
        raise InputError(
            f"the labels in column {column!r} are {labels.dtype}; text or whole numbers are needed", path=path
        )
    inputs = _narrowed(path, others, lines)
    return _labelled(inputs, [str(value).strip() for value in labels.to_list()], path, lines)


def _narrowed(path: Path, columns: list[str], lines: Lines) -> np.ndarray:
    """The columns as float32."""
    values = read_table(path, columns=columns).values
    with np.errstate(over="ignore"):
        inputs = values.astype(np.float32)
    if not np.isfinite(inputs).all():
        row, place = (int(i) for i in np.argwhere(~np.isfinite(inputs))[0])
        raise InputError(f"column {columns[place]!r} is too large for float32", path=path, line=lines.of(row))
    return inputs


def _label_of(names: list[str], label: str | None, path: Path) -> str:
    if label is not None:
        if label not in names:
            raise InputError(f"there is no column {label!r}; the columns are {_listed(names)}", path=path)
        return label
    likely = [name for name in names if name.strip().lower() in LABEL_NAMES]
    if len(likely) != 1:
        raise InputError(f"which column holds the classes? name it with --label; there are {_listed(names)}", path=path)
    return likely[0]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


def _from_arrays(path: str | os.PathLike[str], file: Path, label: str | None) -> LabelledData:
    inputs = read_array(path)
    if not zipfile.is_zipfile(file):
        raise InputError("holds one array; an .npz of two, the inputs and their labels, is needed", path=file)
    column = label if label is not None else _label_array(file)
    labels = read_array(file, array=column)
    if labels.ndim != 1 or len(labels) != len(inputs):
        raise InputError(
            f"the labels {column!r} have shape {labels.shape}, the inputs {inputs.shape}; one label an example is needed",
            path=file,
        )
    if labels.dtype.kind == "f":
        wrong = ~(labels == np.rint(labels)) | ~np.isfinite(labels)
        if wrong.any():
            row = int(wrong.argmax())
            raise InputError(f"label {labels[row]} is no whole number", path=file, line=row + 1)
        labels = labels.astype(np.int64)
    values = _inputs_of(inputs, file)
    return _labelled(values, [str(value) for value in labels.tolist()], file, Lines(file))


def _inputs_of(inputs: np.ndarray, file: Path) -> np.ndarray:
    """An array of rows or images as float32, channels first."""
    require_memory(inputs.size * 8, file, "give a part of the data")
    if inputs.ndim == 3:
        inputs = inputs[:, None]
    elif inputs.ndim == 4 and inputs.shape[3] in (1, 3) and inputs.shape[1] not in (1, 3):
        inputs = np.moveaxis(inputs, 3, 1)
    elif inputs.ndim not in (2, 4):
        raise InputError(
            f"the inputs have shape {inputs.shape}; (N, F), (N, H, W) or (N, C, H, W) is needed", path=file
        )
    with np.errstate(over="ignore"):
        values = inputs.astype(np.float32)
    finite = np.isfinite(values).reshape(len(values), -1).all(1)
    if not finite.all():
        raise InputError("an input is not finite in float32", path=file, line=int(finite.argmin()) + 1)
    return np.ascontiguousarray(values)


def _label_array(file: Path) -> str:
    with zipfile.ZipFile(file) as archive:
        names = [info.filename.removesuffix(".npy") for info in archive.infolist()]
    likely = [name for name in names if name.lower() in LABEL_NAMES]
    if len(likely) != 1:
        likely = [name for name in names if read_array(file, array=name).ndim == 1]
    if len(likely) != 1:
        raise InputError(f"which array holds the classes? name it with --label; there are {_listed(names)}", path=file)
    return likely[0]
