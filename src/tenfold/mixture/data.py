"""Reads what users have, a table of numbers or a folder or array of images, into rows of features for the autoencoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tenfold.errors import InputError
from tenfold.files import read_array, read_images, read_table, row_error
from tenfold.files.arrays import split_member
from tenfold.files.images import SUFFIXES

TABLES = (".csv", ".tsv", ".gz", ".parquet", ".pq", ".npy", ".npz")
DIM = 64  # an array of bytes whose brightest pixel is darker than this was not meant as 0 to 255


@dataclass(frozen=True)
class Features:
    """Rows of features.

    Args:
        values: (rows, features) in float32; images as intensities from 0 to 1.
        rows: A name for each row: the image's file, or its number in the table, counted from 1.
        names: Names of a table's columns; None for images.
        image_shape: (height, width) or (height, width, channels) of images; None for tables.
        labels: The sub-folder of each image; None where there are none.
    """

    values: Float[Tensor, "rows features"]
    rows: tuple[str, ...]
    names: tuple[str, ...] | None = None
    image_shape: tuple[int, ...] | None = None
    labels: tuple[str, ...] | None = None

    @property
    def binary_or_intensity(self) -> bool:
        """Whether every value lies between 0 and 1, so that a Bernoulli likelihood is possible."""
        return bool(((self.values >= 0) & (self.values <= 1)).all())

    @property
    def constant(self) -> tuple[str, ...]:
        """Names of a table's columns that hold one value only: nothing can be learned from them."""
        same = (self.values.amax(0) == self.values.amin(0)).tolist()
        return tuple(name for name, equal in zip(self.names or (), same, strict=False) if equal)


def read_features(
    path: str | Path,
    *,
    columns: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    size: int | tuple[int, int] | None = None,
    grayscale: bool = False,
    white: int | None = None,
) -> Features:
    r"""Rows of features from a file or folder.

    Args:
        path: A table (``.csv``, ``.tsv``, ``.parquet``, or a 2-D array in ``.npy``/``.npz``), a folder of images, an image,
            or an array of images (3-D or 4-D, in ``.npy``/``.npz``).
        columns: Names of the table's columns to read, in this order; None: all. The others may hold anything.
        exclude: Names of the table's columns to leave out.
        size: (height, width), or one number for both, to which images are scaled and cut; None: all must have one size.
        grayscale: Read images with one channel.
        white: Value of white in an array of whole numbers; 255, unless given.

    Raises:
        InputError: What cannot be read, with the file, row and column or image at fault.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = Path(folder, "heights.csv")
    ...     _ = place.write_text("height,weight\n1.8,75\n1.6,60\n")
    ...     features = read_features(place)
    >>> features.names, features.values.shape
    (('height', 'weight'), torch.Size([2, 2]))
    """
    file, _ = split_member(path)
    array = _array(path)
    images = _holds_images(path, array)
    if images and (columns is not None or exclude is not None):
        raise InputError("columns are chosen in tables; these are images", path=path)
    if array is not None and images:
        return _images(path, size, grayscale, _white(array, white, path))
    if images:
        if white is not None:
            raise InputError("white is for arrays of whole numbers; in image files it is known", path=path)
        if file.is_file() and file.suffix.lower() not in SUFFIXES:
            raise InputError(f"neither a table ({', '.join(TABLES)}) nor an image ({', '.join(SUFFIXES)})", path=path)
        return _images(path, size, grayscale, 255)
    if size is not None or grayscale or white is not None:
        raise InputError("size, grayscale and white are for images; this is a table", path=path)
    table = read_table(path, columns=columns, exclude=exclude)
    with np.errstate(over="ignore"):
        values = table.values.astype(np.float32)
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise row_error(f"column {table.names[column]!r} is too large for float32", path, int(row))
    return Features(torch.from_numpy(values), tuple(str(i + 1) for i in range(len(values))), names=table.names)


def read_features_like(
    path: str | Path,
    *,
    num_features: int,
    image_shape: tuple[int, ...] | None,
    names: tuple[str, ...] | None,
    intensities: bool,
    grayscale: bool = False,
    white: int | None = None,
) -> Features:
    """Rows of features for a trained model: the table's columns that have its names, wherever they stand and whatever
    else the table holds; images in files scaled to the size on which it was trained.

    Args:
        path: As for `read_features`.
        num_features: Features a row.
        image_shape: Shape of the model's images, or None.
        names: Names of the model's columns, or None.
        intensities: Whether the model takes values from 0 to 1 only.
        grayscale: As for `read_features`.
        white: As for `read_features`.

    Raises:
        InputError: What cannot be read or does not fit the model, with the row or column at fault.
    """
    file, _ = split_member(path)
    if image_shape is not None and (file.is_dir() or file.suffix.lower() not in TABLES):
        size = (image_shape[0], image_shape[1])
        features = read_features(path, size=size, grayscale=grayscale or len(image_shape) == 2, white=white)
        if len(image_shape) == 3 and features.image_shape == size:  # gray images for a model of colours
            values = features.values.unsqueeze(-1).expand(-1, -1, image_shape[2]).flatten(1)
            features = replace(features, values=values, image_shape=image_shape)
    elif names and _holds_images(path, _array(path)):
        raise InputError("these are images; the model was trained on a table", path=path)
    else:
        features = read_features(path, columns=names, grayscale=grayscale, white=white)
    given = features.values.shape[1]
    if given != num_features:
        raise InputError(f"has {given} features a row; the model was trained on {num_features}", path=path)
    if intensities and not features.binary_or_intensity:
        row, column = ((features.values < 0) | (features.values > 1)).nonzero()[0].tolist()
        value = f"{features.values[row, column]:g}; the model takes values from 0 to 1"
        if features.names:
            raise row_error(f"column {features.names[column]!r} is {value}", path, row)
        raise InputError(f"image {row + 1}: feature {column + 1} is {value}", path=path)
    return features


def _array(path: str | Path) -> np.ndarray | None:
    file, _ = split_member(path)
    return read_array(path) if file.suffix.lower() in (".npy", ".npz") and not file.is_dir() else None


def _holds_images(path: str | Path, array: np.ndarray | None) -> bool:
    if array is not None:
        return array.ndim > 2
    file, _ = split_member(path)
    return file.is_dir() or file.suffix.lower() not in TABLES


def _white(array: np.ndarray, white: int | None, path: str | Path) -> int:
    """The value of white; an array that is all but black at 255 was meant otherwise, such as digits from 0 to 16."""
    if array.dtype.kind not in "iu":
        if white is not None:
            raise InputError(f"white is for arrays of whole numbers; this one holds {array.dtype}", path=path)
        return 255
    brightest = int(array.max(initial=0))
    if white is None and 0 < brightest < DIM:
        raise InputError(
            f"the brightest pixel of all images is {brightest} of 255; if that is white, say so (--white {brightest}), "
            "and if these are images indeed so dark, --white 255",
            path=path,
        )
    if white is not None and not max(1, brightest) <= white <= 255:
        raise InputError(f"white={white} must be from {max(1, brightest)}, the brightest pixel, to 255", path=path)
    return white or 255


def _images(path: str | Path, size: int | tuple[int, int] | None, grayscale: bool, white: int) -> Features:
    stack = read_images(path, size=size, grayscale=grayscale)
    count, height, width, channels = stack.pixels.shape
    values = torch.from_numpy(stack.pixels.reshape(count, -1).astype(np.float32) / white)
    shape = (height, width) if channels == 1 else (height, width, channels)
    return Features(values, stack.names, image_shape=shape, labels=stack.labels)
