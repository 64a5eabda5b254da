"""`tenfold mixture` on real input: in this process where possible, in one of its own where signals matter."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_iris

from tenfold.console.main import main

QUICK = ["--epochs", "2", "--hidden", "8", "--device", "cpu"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Real data as files, and a model of each kind."""
    folder = tmp_path_factory.mktemp("job")
    iris = load_iris()
    table = pl.DataFrame({name: iris.data[:, i] for i, name in enumerate(iris.feature_names)})
    table.write_csv(folder / "iris.csv")
    table.write_parquet(folder / "iris.parquet")
    digits = load_digits()
    np.save(folder / "digits.npy", digits.images.astype(np.uint8))
    for i in range(40):
        image = folder / "digits" / str(digits.target[i]) / f"{i:02}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[i] * 15.9).astype(np.uint8)).save(image)
    for name, data in (("flowers", "iris.csv"), ("images", "digits")):
        assert main(["mixture", "fit", str(folder / data), "-o", str(folder / name), *QUICK]) == 0
    return folder


@pytest.fixture
def tenfold(place, monkeypatch, tmp_path, capfd):
    """Runs a command in the folder of data; returns exit code, standard output and standard error."""
    monkeypatch.chdir(place)

    def run(*words):
        capfd.readouterr()
        code = main(["mixture", *(str(word) for word in words)])
        return code, *capfd.readouterr()

    return run


def test_fit_writes_a_model_folder_and_nothing_else(tenfold, tmp_path):
    code, out, err = tenfold("fit", "iris.parquet", "-o", tmp_path / "m", *QUICK)
    assert code == 0, err
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert "gaussian" in out
    assert "training ELBO [nats a row]" in out
    assert "validation ELBO [nats a row]" in out
    assert err == ""


def test_retraining_says_what_it_replaces_and_resuming_nothing_that_it_starts_anew(tenfold, tmp_path):
    assert tenfold("fit", "iris.csv", "-o", tmp_path / "m", *QUICK)[0] == 0
    before = (tmp_path / "m" / "model.safetensors").read_bytes()
    code, out, err = tenfold("fit", "iris.csv", "-o", tmp_path / "m", "--seed", 1, "--resume", "--json", *QUICK)
    assert code == 0, err
    assert json.loads(out)["replaced"].startswith("a MixtureVAE of 20")
    first, second = err.splitlines()
    assert first.startswith(f"tenfold: {tmp_path / 'm'} holds a MixtureVAE of ")
    assert first.endswith("which the new model replaces when it is done")
    assert "no checkpoint to resume from" in second
    assert (tmp_path / "m" / "model.safetensors").read_bytes() != before


def test_folder_of_other_files_is_no_place_for_a_model(tenfold, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    code, _, err = tenfold("fit", "iris.csv", "-o", tmp_path / "photos", *QUICK)
    assert code == 2
    assert "photos: this folder holds other files (cat.png) and no model" in err
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.png"]


@pytest.mark.parametrize(
    "choice", [("--columns", "width,height"), ("--exclude", "note"), ("--exclude", '"a, b"', "--exclude", "note")]
)
def test_chosen_columns_are_found_by_name_in_other_tables(tenfold, tmp_path, choice):
    wide = pl.DataFrame({"note": ["x", "y", "z"] * 5, "a, b": range(15), "height": [i % 7 for i in range(15)]})
    wide = wide.with_columns(width=pl.col("height") ** 2)
    wide = wide if len(choice) != 2 or choice[1] != "note" else wide.drop("a, b")
    wide.write_csv(tmp_path / "wide.csv")
    code, out, err = tenfold("fit", tmp_path / "wide.csv", "-o", tmp_path / "m", "--json", *choice, *QUICK)
    assert code == 0, err
    names = json.loads(out)["columns"]
    assert names == (["width", "height"] if choice[0] == "--columns" else ["height", "width"])
    assert json.loads((tmp_path / "m" / "config.json").read_text())["names"] == names
    wide.select("width", "note", "height").write_csv(tmp_path / "turned.csv")
    wide.select(names).write_csv(tmp_path / "only.csv")
    for name in ("wide", "turned", "only"):
        assert tenfold("embed", tmp_path / "m", tmp_path / f"{name}.csv", "-o", tmp_path / f"{name}_codes.csv")[0] == 0
        assert (tmp_path / f"{name}_codes.csv").read_bytes() == (tmp_path / "wide_codes.csv").read_bytes()
        assert tenfold("evaluate", tmp_path / "m", tmp_path / f"{name}.csv", "--samples", "2")[0] == 0
        assert tenfold("plot", tmp_path / "m", tmp_path / f"{name}.csv", "-o", tmp_path / "map.png")[0] == 0
    wide.drop("width").write_csv(tmp_path / "narrow.csv")
    code, _, err = tenfold("embed", tmp_path / "m", tmp_path / "narrow.csv", "-o", tmp_path / "c.csv")
    assert code == 2
    assert "narrow.csv: there is no column 'width'; the columns are note" in err


def test_fit_repeats_itself_to_the_bit(tenfold, place, tmp_path):
    code, out, err = tenfold("fit", "iris.csv", "-o", tmp_path / "m", "--json", *QUICK)
    assert code == 0, err
    assert json.loads(out)["rows"] == 150
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == (place / "flowers/model.safetensors").read_bytes()


def test_embed_gives_a_row_a_line_with_label_code_and_probabilities(tenfold, tmp_path):
    code, out, err = tenfold("embed", "images", "digits", "-o", tmp_path / "new" / "codes.parquet", "--json")
    assert code == 0, err
    assert sum(row["rows"] for row in json.loads(out)) == 40
    codes = pl.read_parquet(tmp_path / "new" / "codes.parquet")
    assert codes.columns == [
        "row",
        "label",
        "component",
        "code_1",
        "code_2",
        *(f"probability_{k}" for k in range(1, 5)),
    ]
    assert codes["row"][0] == "0/00.png"
    assert codes["label"][0] == "0"
    np.testing.assert_allclose(codes.select(pl.sum_horizontal(pl.col("^probability.*$"))), 1, rtol=1e-5)


def test_embed_of_one_row_is_that_row_of_many(tenfold, tmp_path):
    pl.read_csv("iris.csv").slice(7, 1).write_csv(tmp_path / "one.csv")
    assert tenfold("embed", "flowers", "iris.csv", "-o", tmp_path / "all.csv")[0] == 0
    assert tenfold("embed", "flowers", tmp_path / "one.csv", "-o", tmp_path / "codes.csv")[0] == 0
    everything, one = pl.read_csv(tmp_path / "all.csv")[7], pl.read_csv(tmp_path / "codes.csv")
    np.testing.assert_allclose(one.drop("row").to_numpy(), everything.drop("row").to_numpy(), rtol=1e-4)


def test_sample_of_images_is_a_grid_and_of_a_table_is_a_table(tenfold, tmp_path):
    assert tenfold("sample", "images", "-n", "9", "-o", tmp_path / "s.png")[0] == 0
    with Image.open(tmp_path / "s.png") as image:
        assert image.size == (3 * 64 + 4, 3 * 64 + 4)
    assert tenfold("sample", "flowers", "-n", "9", "-o", tmp_path / "s.csv")[0] == 0
    samples = pl.read_csv(tmp_path / "s.csv")
    assert samples.columns == load_iris().feature_names
    assert samples.height == 9


def test_evaluate_gives_bounds_with_errors(tenfold):
    code, out, err = tenfold("evaluate", "flowers", "iris.csv", "--samples", "8", "--json")
    assert code == 0, err
    bounds = {row["bound"]: row for row in json.loads(out)}
    assert bounds["elbo"]["mean"] < bounds["importance_bound"]["mean"] < 0
    assert all(row["standard error"] > 0 for row in bounds.values())


def test_plot_by_component_and_by_label(tenfold, tmp_path):
    assert tenfold("plot", "flowers", "iris.csv", "-o", tmp_path / "map.svg")[0] == 0
    assert tenfold("plot", "images", "digits", "--by", "label", "-o", tmp_path / "map.png")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.png", "map.svg"]


def test_double_precision_goes_all_the_way(tenfold, tmp_path):
    fit = tenfold("fit", "iris.csv", "-o", tmp_path / "m", "--precision", "64-true", *QUICK)
    assert fit[0] == 0, fit
    assert tenfold("embed", tmp_path / "m", "iris.csv", "-o", tmp_path / "codes.csv")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fit digits.npy", "the brightest pixel of all images is 16 of 255; if that is white, say so (--white 16)"),
        ("fit absent.csv", "absent.csv: there is no such file"),
        ("fit iris.csv --hidden a", "--hidden 'a' must be whole numbers"),
        ("fit iris.csv --hidden 0", "hidden[0]=0 must be at least 1"),
        ("fit iris.csv --likelihood foo", "likelihood='foo' is not one of"),
        ("fit iris.csv --likelihood bernoulli", "use likelihood='gaussian'"),
        ("fit iris.csv --columns petal", "iris.csv: there is no column 'petal'; the columns are sepal length (cm), "),
        ("fit iris.csv --exclude petal", "iris.csv: there is no column 'petal'; the columns are"),
        ("fit iris.csv --columns ,", "',' holds an empty name"),
        ("fit digits --columns a", "digits: columns are chosen in tables; these are images"),
        ("fit iris.csv --objective foo", "objective='foo' is not one of"),
        ("fit iris.csv --precision foo", "--precision 'foo' is not one of 32-true"),
        ("fit iris.csv --logger foo", "logger='foo' must be one of"),
        ("fit iris.csv --learning-rate 0", "learning_rate=0.0 must be a positive number"),
        ("fit iris.csv -k 0", "--components"),
        ("fit iris.csv --size 8", "this is a table"),
        ("embed absent iris.csv", "absent: there is no such model folder"),
        ("embed images iris.csv", "has 4 features a row; the model was trained on 64"),
        ("embed flowers iris.csv -o codes.txt", "codes.txt: a table cannot be written as .txt"),
        ("plot flowers iris.csv -o x.bmp", "a map is written as .png, .svg or .pdf"),
        ("plot flowers iris.csv --by label", "iris.csv: has no labels"),
        ("plot flowers iris.csv --by colour", "--by 'colour' is neither component nor label"),
        ("sample flowers -o x.png", "this model was trained on a table"),
        ("sample images -o x.txt", "samples are written as .png, .csv"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tenfold, place, words, message):
    before = sorted(place.rglob("*"))
    code, out, err = tenfold(*words.split())
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,x\n", "bad.csv:3: column 'b' holds text ('x'); numbers are needed; --exclude leaves columns out"),
        ("a,b\n1,2\n3,\n", "bad.csv:3: "),
        ("a,b\n1,2\n3\n", "bad.csv:3: "),
        ("a,b\n1,2\n", "bad.csv: 1 row is too few with validation=0.1: training needs 2"),
    ],
)
def test_bad_table_is_named_with_its_row_and_no_model_is_written(tenfold, tmp_path, text, message):
    (tmp_path / "bad.csv").write_text(text)
    code, _, err = tenfold("fit", tmp_path / "bad.csv", "-o", tmp_path / "m", *QUICK)
    assert code == 2
    assert err.count("\n") == 1
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


def test_folder_that_is_not_ours_is_refused_before_the_work(tenfold, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "file").write_text("")
    for out, message in (
        (tmp_path, "another program's config.json"),
        (tmp_path / "file", "this is a file"),
        (tmp_path / "file" / "m", "file is a file"),
        (".", "holds the working directory"),
    ):
        code, _, err = tenfold("fit", "iris.csv", "-o", out, "--epochs", "1000000")
        assert code == 2
        assert message in err


def test_interrupted_fit_says_what_was_saved_and_resumes_to_the_same_weights(tenfold, place, tmp_path):
    options = ["--epochs", "15", "--hidden", "8", "--batch-size", "32", "-k", "1", "-d", "1", "--threads", "1"]
    assert tenfold("fit", "iris.csv", "-o", tmp_path / "whole", *options)[0] == 0
    program = [sys.executable, "-m", "tenfold.console.main", "mixture", "fit", "iris.csv", *options]
    for number in (signal.SIGINT, signal.SIGKILL):
        folder = tmp_path / number.name
        with subprocess.Popen([*program, "-o", folder], cwd=place, stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + 120
            while not list(folder.glob("checkpoints/step-*")):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            os.kill(process.pid, number)
            err = process.communicate()[1]
        if number == signal.SIGINT:
            assert process.returncode == 130
            assert str(folder / "checkpoints" / "step-") in err
        assert not (folder / "model.safetensors").exists()
        code, _, err = tenfold("fit", "iris.csv", "-o", folder, *options)
        assert code == 2
        assert "resume" in err
        assert tenfold("fit", "iris.csv", "-o", folder, *options, "--resume")[0] == 0
        weights = (folder / "model.safetensors").read_bytes()
        assert weights == (tmp_path / "whole" / "model.safetensors").read_bytes()
        assert not (folder / "checkpoints").exists()


def test_data_is_never_overwritten_by_what_is_made_from_it(tmp_path):
    from tenfold.errors import InputError
    from tenfold.mixture.cli import _keep_input

    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="data that would be read"):
        _keep_input(table, str(table))
    _keep_input(tmp_path / "codes.csv", str(table))
    assert table.read_text() == "a,b\n1,2\n"
