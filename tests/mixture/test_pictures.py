"""Pictures are what they say: the pixels of a grid, the files of a map."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from tenfold.errors import InputError
from tenfold.mixture.pictures import GAP, image_grid, latent_map, write_picture


def codes_and_probs(rows=40, dims=2, components=3):
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, dims)), rng.dirichlet(np.ones(components), rows)


def test_grid_shows_each_image_once_in_reading_order():
    values = np.arange(5)[:, None].repeat(4, 1) / 4
    grid = image_grid(values, (2, 2))
    side = 64
    for i in range(5):
        top, left = (i // 3) * (side + GAP), (i % 3) * (side + GAP)
        assert (grid[top : top + side, left : left + side] == round(255 * i / 4)).all()
    assert (grid[side + GAP :, 2 * (side + GAP) :] == 255).all()  # the empty place is white


def test_grid_of_colours_keeps_channels():
    grid = image_grid(np.tile([1.0, 0.0, 0.5], (1, 4)).reshape(1, 12), (2, 2, 3))
    assert grid.shape == (64, 64, 3)
    assert (grid == [255, 0, 128]).all()


def test_large_images_are_not_enlarged_and_intensities_are_cut():
    grid = image_grid(np.linspace(-1, 2, 100 * 100).reshape(1, -1), (100, 100))
    assert grid.shape == (100, 100)
    assert (grid.min(), grid.max()) == (0, 255)


def test_picture_is_a_png_of_these_pixels(tmp_path):
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    write_picture(tmp_path / "new" / "x.png", pixels)
    with Image.open(tmp_path / "new" / "x.png") as image:
        assert (np.asarray(image) == pixels).all()


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_map_is_written_in_the_kind_of_its_suffix(tmp_path, kind, start):
    latent_map(tmp_path / f"map.{kind}", *codes_and_probs())
    assert (tmp_path / f"map.{kind}").read_bytes().startswith(start)


@pytest.mark.parametrize(("rows", "dims", "components"), [(1, 1, 1), (1, 3, 2), (30, 1, 4), (30, 5, 12), (2, 2, 60)])
def test_map_of_every_size_of_code_is_drawn(tmp_path, rows, dims, components):
    latent_map(tmp_path / "map.png", *codes_and_probs(rows, dims, components))
    with Image.open(tmp_path / "map.png") as image:
        assert image.size[0] > 500


def test_map_names_labels_and_their_shares(tmp_path):
    latent_map(tmp_path / "map.svg", *codes_and_probs(4), labels=["cat", "dog", "dog", "<b>&$x"])
    drawn = (tmp_path / "map.svg").read_text()
    for comment in ("cat (25%)", "dog (50%)", "Latent map of 4 rows by label"):
        assert f"<!-- {comment} -->" in drawn


def test_map_names_an_empty_component_too(tmp_path):
    probs = np.zeros((200, 3), np.float32)
    probs[:, 0] = 1
    probs[0] = (0, 0, 1)
    latent_map(tmp_path / "map.svg", codes_and_probs(200)[0], probs)
    drawn = (tmp_path / "map.svg").read_text()
    for comment in ("1 (100%)", "2 (none)", "3 (&lt;1%)"):
        assert f"<!-- {comment} -->" in drawn


@pytest.mark.parametrize("dims", [2, 3])
def test_both_axes_of_a_map_have_one_scale(tmp_path, monkeypatch, dims):
    scales = []
    save = Figure.savefig

    def noting(figure, *arguments, **options):
        save(figure, *arguments, **options)
        place = figure.axes[0].transData.transform
        scales.append(place([(1, 0), (0, 1)]) - place((0, 0)))

    monkeypatch.setattr(Figure, "savefig", noting)
    codes, probs = codes_and_probs(50, dims)
    latent_map(tmp_path / "map.png", codes * ([10] + [1] * (dims - 1)), probs)
    assert scales[0][0, 0] == pytest.approx(scales[0][1, 1])


def test_same_codes_give_the_same_file(tmp_path):
    for kind in ("png", "svg", "pdf"):
        for name in ("a", "b"):
            latent_map(tmp_path / f"{name}.{kind}", *codes_and_probs())
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes(), kind


def test_map_of_another_suffix_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"x\.bmp: a map is written as \.png, \.svg or \.pdf"):
        latent_map(tmp_path / "x.bmp", *codes_and_probs())
    assert list(tmp_path.iterdir()) == []
