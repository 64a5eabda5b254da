"""Images that users have, as one stack of pixels: a folder, a single image, or an array in ``.npy`` or ``.npz``.

Every image is brought to one form: turned as its EXIF tag says, palettes looked up, transparent pixels laid on white,
16 bits a channel reduced to 8, CMYK to RGB. What cannot be meant as one picture, such as an animation, is refused.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from tenfold.errors import InputError
from tenfold.files.arrays import read_array, split_member
from tenfold.files.limits import DAMAGE, in_units, require_file, require_memory

Location = str | os.PathLike[str]

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".pgm", ".ppm")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # nothing that starts another program
GRAY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")
COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV")

MOST_PIXELS = 100_000_000  # of one image: a 10,000 x 10,000 scan
MOST_FILES = 1_000_000
MOST_BYTES = 512_000_000  # of one file


@dataclass(frozen=True)
class ImageStack:
    """Images of one size.

    Args:
        pixels: uint8, (N, H, W, C), at least one; C is 3 (RGB), or 1 (gray).
        names: N paths below the folder, with ``/``, in sorted order; for arrays the row numbers from 1.
        labels: N names of the sub-folders, the first below the folder, that the images lie in; None without any.
    """

    pixels: UInt8[np.ndarray, "n height width channels"]
    names: tuple[str, ...]
    labels: tuple[str, ...] | None


def read_images(
    path: Location, *, size: int | tuple[int, int] | None = None, grayscale: bool = False, array: str | None = None
) -> ImageStack:
    """Reads images into one stack.

    Args:
        path: A folder (hidden files and what has no suffix of an image are passed over; sub-folders are labels), an
            image, or ``.npy``/``.npz`` of shape (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3: uint8, other
            integers from 0 to 255, floats from 0 to 1, or booleans. ``digits.npz:x_train`` names the array.
        size: (height, width), or one number for both: images are scaled to cover it and the rest is cut off around the
            centre. None: all must have the same size.
        grayscale: True gives one channel. False gives three, unless every image is gray.
        array: Which array of an ``.npz``, as :func:`tenfold.files.read_array` says.

    Raises:
        InputError: Names the image that cannot be read, is an animation, or has another size than the first; folders
            without images, or with images both beside and in sub-folders; more pixels, files or bytes than the limits.
        ValueError: A size below 1.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for label in "cat", "dog":
    ...         Path(folder, label).mkdir()
    ...         Image.new("RGB", (32, 24)).save(Path(folder, label, "a photo.png"))
    ...     stack = read_images(folder, size=16)
    >>> stack.pixels.shape, stack.names, stack.labels
    ((2, 16, 16, 3), ('cat/a photo.png', 'dog/a photo.png'), ('cat', 'dog'))
    """
    shape = (size, size) if isinstance(size, int) else size
    if shape is not None and min(shape) < 1:
        raise ValueError(f"size={size} must be at least 1 pixel")
    file, _ = split_member(path)
    if file.suffix.lower() in (".npy", ".npz"):
        return _from_array(path, file, array, shape, grayscale)
    if file.is_dir():
        names, labels = _images_below(file)
        return ImageStack(_stack([file / name for name in names], shape, grayscale), names, labels)
    require_file(file)
    if file.suffix.lower() not in SUFFIXES:
        raise InputError(f"no image, folder or array; images end in {', '.join(SUFFIXES)}", path=file)
    return ImageStack(_stack([file], shape, grayscale), (file.name,), None)


def _images_below(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Names and labels of the images in a folder; links to folders are not followed, so there are no circles."""
    names = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                names.append((Path(place) / name).relative_to(folder).as_posix())
                if len(names) > MOST_FILES:
                    raise InputError(f"holds more than {MOST_FILES:,} images; give a part of them", path=folder)
    if not names:
        raise InputError(f"holds no images ({', '.join(SUFFIXES)})", path=folder)
    names.sort()
    within = [name for name in names if "/" in name]
    if within and len(within) < len(names):
        beside = next(name for name in names if "/" not in name)
        raise InputError(
            f"images lie both in it ({beside}) and in sub-folders ({within[0]}); use one or the other", path=folder
        )
    return tuple(names), tuple(name.split("/")[0] for name in names) if within else None


def _stack(paths: list[Path], shape: tuple[int, int] | None, grayscale: bool) -> UInt8[np.ndarray, "n h w c"]:
    """Reads the images one after another into memory that is taken once, when the first has shown its size."""
    gray = grayscale or all(_is_gray(path) for path in paths)
    pixels: np.ndarray | None = None
    for index, path in enumerate(paths):
        with _opened(path) as image:
            image = _upright(image, gray)
            if shape is not None:
                image = ImageOps.fit(image, (shape[1], shape[0]), Image.Resampling.LANCZOS)
            values = np.asarray(image)
        values = values[:, :, None] if gray else values
        if pixels is None:
            require_memory(len(paths) * values.size, path.parent, "give a smaller size, or fewer images")
            pixels = np.empty((len(paths), *values.shape), np.uint8)
        elif values.shape != pixels.shape[1:]:
            sizes = [f"{width} x {height}" for height, width in (values.shape[:2], pixels.shape[1:3])]
            raise InputError(f"has {sizes[0]} pixels, {paths[0].name} has {sizes[1]}; give a size for all", path=path)
        pixels[index] = values
    assert pixels is not None  # there is a path at least
    return pixels


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """An image whose header has been judged; whatever damage shows later is named by its file."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"the file has more than {in_units(MOST_BYTES)}", path=path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, on damaged tags; what matters comes as an exception
            with Image.open(path, formats=FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise InputError(f"{image.width} x {image.height} pixels are more than {MOST_PIXELS:,}", path=path)
                frames = getattr(image, "n_frames", 1)
                if frames > 1 and image.format != "MPO":  # MPO: a photograph with its preview or depth map
                    raise InputError(
                        f"holds {frames} pictures; save the one you mean as an image of its own", path=path
                    )
                yield image
    except InputError:
        raise
    except Image.DecompressionBombError as error:
        raise InputError(f"more than {MOST_PIXELS:,} pixels", path=path) from error
    except DAMAGE as error:
        reason = "unknown or damaged format" if isinstance(error, UnidentifiedImageError) else str(error).split("\n")[0]
        raise InputError(f"the image cannot be read ({reason[:200] or type(error).__name__})", path=path) from error


def _is_gray(path: Path) -> bool:
    with _opened(path) as image:
        return image.mode in GRAY_MODES


def _upright(image: Image.Image, gray: bool) -> Image.Image:
    """8 bits a channel, one or three channels, turned as the camera was held."""
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits a channel, in 16 or 32 bits of memory
        deep = np.asarray(image).astype(np.int64)
        if deep.min() < 0 or deep.max() > 65535:
            raise ValueError(f"gray values from {deep.min()} to {deep.max()}; at most 16 bits are read")
        image = Image.fromarray((deep // 257).astype(np.uint8))
    elif image.mode not in GRAY_MODES + COLOUR_MODES:
        raise ValueError(f"colour mode {image.mode} is not known here; save it as RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("L" if gray else "RGB")


def _from_array(
    path: Location, file: Path, array: str | None, shape: tuple[int, int] | None, grayscale: bool
) -> ImageStack:
    values = read_array(path, array=array)
    given = values.shape
    if values.ndim == 3:
        values = values[..., None]
    elif values.ndim == 4 and given[3] not in (1, 3) and given[1] in (1, 3):
        values = np.moveaxis(values, 1, 3)
    if values.ndim != 4 or values.shape[3] not in (1, 3):
        raise InputError(
            f"the array has shape {given}; (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3 is needed", path=file
        )
    pixels = _as_bytes(values, file)
    if (shape is not None and shape != pixels.shape[1:3]) or (grayscale and pixels.shape[3] == 3):
        gray = grayscale or pixels.shape[3] == 1
        height, width = shape or pixels.shape[1:3]
        require_memory(len(pixels) * height * width * (1 if gray else 3), file, "give a smaller size")
        resized = np.empty((len(pixels), height, width, 1 if gray else 3), np.uint8)
        for index, one in enumerate(pixels):
            image = Image.fromarray(np.ascontiguousarray(one[:, :, 0] if one.shape[2] == 1 else one))
            image = ImageOps.fit(image.convert("L" if gray else "RGB"), (width, height), Image.Resampling.LANCZOS)
            resized[index] = np.asarray(image).reshape(height, width, -1)
        pixels = resized
    return ImageStack(np.ascontiguousarray(pixels), tuple(str(row) for row in range(1, len(pixels) + 1)), None)


def _as_bytes(values: np.ndarray, file: Path) -> np.ndarray:
    """Bytes from 0 to 255; floats are taken as from 0 to 1."""
    if values.dtype == np.uint8:
        return values
    if values.dtype.kind == "b":
        return values.astype(np.uint8) * np.uint8(255)
    low, high = values.min(), values.max()
    top = 1 if values.dtype.kind == "f" else 255
    if not (low >= 0 and high <= top):
        raise InputError(f"pixels of type {values.dtype} lie between {low} and {high}; 0 to {top} is needed", path=file)
    return np.rint(values * 255).astype(np.uint8) if top == 1 else values.astype(np.uint8)
