"""Reads what users have, a table of numbers or a folder or array of images, into rows of features for the autoencoder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tenfold.errors import InputError
from tenfold.files import read_array, read_images, read_table
from tenfold.files.arrays import split_member


@dataclass(frozen=True)
class Features:
    """Rows of features.

    Args:
        values: (rows, features) in float32; images as intensities from 0 to 1.
        rows: A name for each row: the image's file, or its number in the table, counted from 1.
        names: Names of a table's columns; None for images.
        image_shape: (height, width) or (height, width, channels) of images; None for tables.
    """

    values: Float[Tensor, "rows features"]
    rows: tuple[str, ...]
    names: tuple[str, ...] | None = None
    image_shape: tuple[int, ...] | None = None

    @property
    def binary_or_intensity(self) -> bool:
        """Whether every value lies between 0 and 1, so that a Bernoulli likelihood is possible."""
        return bool(((self.values >= 0) & (self.values <= 1)).all())


def read_features(path: str | Path, *, size: int | None = None, grayscale: bool = False) -> Features:
    r"""Rows of features from a file or folder.

    Args:
        path: A table (``.csv``, ``.tsv``, ``.parquet``, or a 2-D array in ``.npy``/``.npz``), a folder of images, an image,
            or an array of images (3-D or 4-D, in ``.npy``/``.npz``).
        size: Height and width to which images are scaled and cut; None: all must have one size.
        grayscale: Read images with one channel.

    Raises:
        InputError: What cannot be read, with the file, row and column or image at fault.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = Path(folder, "heights.csv")
    ...     _ = place.write_text("height,weight\\n1.8,75\\n1.6,60\\n")
    ...     features = read_features(place)
    >>> features.names, features.values.shape
    (('height', 'weight'), torch.Size([2, 2]))
    """
    file, _ = split_member(path)
    if file.is_dir() or file.suffix.lower() not in (".csv", ".tsv", ".gz", ".parquet", ".npy", ".npz"):
        return _images(path, size, grayscale)
    if file.suffix.lower() in (".npy", ".npz") and read_array(path).ndim > 2:
        return _images(path, size, grayscale)
    if size is not None or grayscale:
        raise InputError("size and grayscale are for images; this is a table", path=path)
    table = read_table(path)
    values = table.values.astype(np.float32)
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise InputError(f"row {row + 1}: {table.names[column]!r} is too large for float32", path=path)
    return Features(torch.from_numpy(values), tuple(str(i + 1) for i in range(len(values))), names=table.names)


def _images(path: str | Path, size: int | None, grayscale: bool) -> Features:
    stack = read_images(path, size=size, grayscale=grayscale)
    count, height, width, channels = stack.pixels.shape
    values = torch.from_numpy(stack.pixels.reshape(count, -1).astype(np.float32) / 255)
    shape = (height, width) if channels == 1 else (height, width, channels)
    rows = tuple(stack.names) if stack.names else tuple(str(i + 1) for i in range(count))
    return Features(values, rows, image_shape=shape)
