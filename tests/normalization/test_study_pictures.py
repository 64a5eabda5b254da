"""The study's pictures: they can be drawn of whatever a study may find, and the same study gives the same file."""

import pytest
from PIL import Image

from tenfold.errors import InputError
from tenfold.normalization import study_pictures
from tenfold.normalization.study_folder import write_study
from tenfold.normalization.study_pictures import check_picture_path, draw_curves, draw_errors
from tenfold.normalization.study_table import Cell, StudyTable


def study(errors, sizes=(32, 8, 2), epochs=4, **options):
    """A study of made-up runs: ``{norm: errors by seed}``, or ``{norm: {size: errors by seed}}``."""
    cells = []
    for norm, found in errors.items():
        for size, values in (found if isinstance(found, dict) else {None: found}).items():
            for seed, value in enumerate(values):
                curve = () if value is None else tuple(min(1.0, value * (epochs - k)) for k in range(epochs))
                outcome = "failed" if value is None else "trained"
                exact = value if norm == "batch" else None
                cells.append(Cell(norm, size, seed, outcome, value, exact, curve, curve))
    return StudyTable(tuple(cells), tuple(errors), sizes, **options)


USUAL = {"batch": {32: (0.03, 0.032), 8: (0.04, 0.05), 2: (0.6, 0.7)}, "group": (0.045, 0.05), "instance": (0.9, 0.9)}


@pytest.mark.parametrize(
    "table",
    [
        study(USUAL),
        study(USUAL, settings={"data": "digits", "model": "small-conv", "test_examples": 100}),
        study({"batch": {32: (0.03,), 8: (0.04,), 2: (None,)}, "group": (0.05,)}),
        study({"batch": {2: (None, None)}}, sizes=(2,)),
        study({"none": (0.0, 0.0)}, sizes=(2,)),
        study({"layer": (1.0, 1.0)}, sizes=(2,), epochs=1),
        study({"group": dict.fromkeys((64, 32, 16, 8, 4, 2, 1), (0.1, 0.2))}, sizes=(64, 32, 16, 8, 4, 2, 1), real_batch=True),
    ],
)  # fmt: skip
def test_every_study_has_its_pictures(table, tmp_path):
    files = write_study(table, tmp_path / "s")
    assert sorted(path.name for path in files) == ["curves.png", "errors.png", "study.json", "table.csv"]
    for path in files[2:]:
        with Image.open(path) as image:
            assert min(image.size) > 300
            assert len(image.convert("L").getcolors()) > 10  # not an empty page


def test_an_error_of_zero_has_a_place_on_the_axis(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(study_pictures, "_write", lambda figure, path: figures.append(figure))
    table = study({"batch": {32: (0.0,), 8: (0.05,), 2: (0.6,)}, "group": (0.0,)})
    draw_errors(table, tmp_path / "e.png")
    draw_curves(table, tmp_path / "c.png")
    for axes in (axes for figure in figures for axes in figure.axes):
        bottom, top = axes.get_ylim()
        assert axes.get_yscale() == "symlog"  # a logarithmic axis leaves zero out
        assert bottom < 0 < top
        assert 0.0 in axes.get_yticks()


def test_a_study_gives_the_same_file_twice(tmp_path):
    for suffix in ("svg", "png", "pdf"):
        for number in (1, 2):
            draw_errors(study(USUAL), tmp_path / f"e{number}.{suffix}")
            draw_curves(study(USUAL), tmp_path / f"c{number}.{suffix}")
        for kind in "ec":
            first, second = ((tmp_path / f"{kind}{number}.{suffix}").read_bytes() for number in (1, 2))
            assert first == second


def test_what_is_drawn_is_what_is_said(tmp_path):
    draw_errors(study(USUAL, settings={"data": "digits", "model": "resnet"}), tmp_path / "e.svg")
    draw_errors(study({**USUAL, "batch": {2: (None, None), 8: (0.1, 0.1)}}), tmp_path / "f.svg")
    first, second = ((tmp_path / name).read_text() for name in ("e.svg", "f.svg"))
    for text in ("group (any size)", "batch, exact statistics", "resnet on digits, 2 seeds"):
        assert f"<!-- {text} -->" in first
    assert "samples that statistics are taken over, of 32 a step" in first
    assert "<!-- batch: cannot be trained -->" in second


def test_other_kinds_of_picture_are_refused(tmp_path):
    for path in (tmp_path / "e.bmp", tmp_path / "e"):
        with pytest.raises(InputError, match=r"pictures are written as .png, .svg or .pdf"):
            draw_errors(study(USUAL), path)
        with pytest.raises(InputError, match="pictures are written as"):
            check_picture_path(path)
