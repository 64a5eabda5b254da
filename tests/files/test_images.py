import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tenfold.errors import InputError
from tenfold.files import images, read_images


def picture(path, mode="RGB", size=(6, 4), color=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path, **options)
    return path


def test_names_are_sorted_and_sub_folders_are_labels(tmp_path):
    for name in ("kätzchen/b 2.png", "kätzchen/a.png", "hund/z/c.PNG"):
        picture(tmp_path / name)
    (tmp_path / "hund" / "README.txt").write_text("x")
    picture(tmp_path / "hund" / ".hidden.png")
    stack = read_images(tmp_path)
    assert stack.names == ("hund/z/c.PNG", "kätzchen/a.png", "kätzchen/b 2.png")
    assert stack.labels == ("hund", "kätzchen", "kätzchen")
    assert stack.pixels.shape == (3, 4, 6, 3)
    assert stack.pixels.dtype == np.uint8


def test_images_beside_and_in_sub_folders_are_refused(tmp_path):
    picture(tmp_path / "a.png")
    picture(tmp_path / "cat" / "a.png")
    with pytest.raises(InputError, match=r"both in it \(a\.png\) and in sub-folders \(cat/a\.png\)"):
        read_images(tmp_path)


def test_a_folder_without_images_and_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="holds no images"):
        read_images(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InputError, match="no image, folder or array"):
        read_images(tmp_path / "a.txt")
    with pytest.raises(InputError, match="no such file"):
        read_images(tmp_path / "gone.png")


def test_gray_images_have_one_channel_unless_one_has_colour(tmp_path):
    picture(tmp_path / "a.png", "L", color=7)
    assert read_images(tmp_path).pixels.shape == (1, 4, 6, 1)
    picture(tmp_path / "b.png", "RGB", color=(255, 0, 0))
    assert read_images(tmp_path).pixels[:, 0, 0].tolist() == [[7, 7, 7], [255, 0, 0]]
    assert read_images(tmp_path, grayscale=True).pixels[:, 0, 0].tolist() == [[7], [76]]  # 0.299 * 255


@pytest.mark.parametrize(
    ("mode", "color", "suffix", "expected"),
    [
        ("1", 1, ".png", [255]),
        ("I;16", 65535, ".png", [255]),
        ("I;16", 257 * 7, ".tif", [7]),
        ("LA", (9, 255), ".png", [9]),
        ("RGBA", (255, 0, 0, 0), ".png", [255, 255, 255]),
        ("RGBA", (10, 20, 30, 255), ".png", [10, 20, 30]),
        ("CMYK", (0, 0, 0, 255), ".tif", [0, 0, 0]),
        ("YCbCr", (128, 128, 128), ".tif", [128, 128, 128]),
    ],
)
def test_every_colour_mode_becomes_gray_or_rgb(tmp_path, mode, color, suffix, expected):
    assert read_images(picture(tmp_path / f"a{suffix}", mode, color=color)).pixels[0, 0, 0].tolist() == expected


def test_palettes_are_looked_up(tmp_path):
    Image.new("RGB", (4, 4), (0, 128, 255)).quantize(4).save(tmp_path / "a.png")
    assert read_images(tmp_path).pixels[0, 0, 0].tolist() == [0, 128, 255]


def test_floating_point_images_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"a\.tif: the image cannot be read \(colour mode F"):
        read_images(picture(tmp_path / "a.tif", "F", color=0.5))


def test_images_are_turned_as_the_camera_was_held(tmp_path):
    image = Image.new("RGB", (6, 4))
    exif = image.getexif()
    exif[0x0112] = 6  # turn by 90 degrees
    image.save(tmp_path / "a.jpg", exif=exif)
    assert read_images(tmp_path).pixels.shape == (1, 6, 4, 3)


def test_animations_are_refused(tmp_path):
    frames = [Image.new("L", (4, 4), value) for value in (0, 100, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(InputError, match=r"a\.gif: holds 3 pictures"):
        read_images(tmp_path)


def test_different_sizes_need_a_size(tmp_path):
    picture(tmp_path / "a.png", size=(6, 4))
    picture(tmp_path / "b.png", size=(8, 8))
    with pytest.raises(InputError, match=r"b\.png: has 8 x 8 pixels, a\.png has 6 x 4; give a size"):
        read_images(tmp_path)
    assert read_images(tmp_path, size=(5, 3)).pixels.shape == (2, 5, 3, 3)
    with pytest.raises(ValueError, match="at least 1 pixel"):
        read_images(tmp_path, size=0)


def test_a_damaged_image_is_named(tmp_path):
    picture(tmp_path / "good.png")
    content = picture(tmp_path / "torn.png", size=(60, 60)).read_bytes()
    (tmp_path / "torn.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"torn\.png: the image cannot be read"):
        read_images(tmp_path)


def test_huge_images_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MOST_PIXELS", 1000)
    with pytest.raises(InputError, match="100 x 100 pixels are more than 1,000"):
        read_images(picture(tmp_path / "a.png", size=(100, 100)))
    monkeypatch.setattr(images, "MOST_FILES", 1)
    picture(tmp_path / "b.png")
    with pytest.raises(InputError, match="more than 1 images"):
        read_images(tmp_path)


def test_a_real_bomb_is_refused(tmp_path):
    header = b"IHDR" + struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    content = picture(tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:])
    with pytest.raises(InputError, match="pixels"):
        read_images(tmp_path)


def test_arrays_of_images_are_read(tmp_path):
    digits = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4)
    np.savez(tmp_path / "d.npz", x=digits, y=np.arange(2))
    stack = read_images(tmp_path / "d.npz")
    assert stack.names == ("1", "2")
    assert stack.labels is None
    np.testing.assert_array_equal(stack.pixels[..., 0], digits)
    assert read_images(f"{tmp_path / 'd.npz'}:x", size=2).pixels.shape == (2, 2, 2, 1)
    for layout, shape in [((2, 3, 5, 4), (2, 5, 4, 3)), ((2, 5, 4, 3), (2, 5, 4, 3)), ((2, 1, 5, 4), (2, 5, 4, 1))]:
        np.save(tmp_path / "d.npy", np.full(layout, 0.5, np.float32))
        pixels = read_images(tmp_path / "d.npy").pixels
        assert pixels.shape == shape
        assert (pixels == 128).all()
    assert read_images(tmp_path / "d.npy", grayscale=True).pixels.shape == (2, 5, 4, 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.full((1, 2, 2), 256), "lie between 256 and 256; 0 to 255"),
        (np.full((1, 2, 2), 1.5), "0 to 1 is needed"),
        (np.full((1, 2, 2), np.nan), "0 to 1 is needed"),
        (np.zeros((2, 2)), "shape"),
        (np.zeros((2, 5, 5, 4)), "shape"),
    ],
)
def test_arrays_that_are_no_images_are_refused(tmp_path, values, message):
    np.save(tmp_path / "d.npy", values)
    with pytest.raises(InputError, match=message):
        read_images(tmp_path / "d.npy")


FORMATS = {"PNG": ".png", "JPEG": ".jpg", "GIF": ".gif", "BMP": ".bmp", "TIFF": ".tif", "WEBP": ".webp", "PPM": ".ppm"}


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_images_give_nothing_but_input_errors(tmp_path, kind, data):
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (12, 12), np.uint8)).save(stream, kind)
    content = bytearray(stream.getvalue())
    for position, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=10)
    ):
        content[position] = value
    content = content[: data.draw(st.integers(0, len(content)))]
    (tmp_path / f"a{FORMATS[kind]}").write_bytes(content)
    try:
        read_images(tmp_path)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017
