"""`tenfold normalization` from end to end on small real input, in this process."""

import csv
import json

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_iris

from tenfold.console.main import main

NET = """
from torch import nn

def build(num_classes=10):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(64, num_classes),
    )

def fails():
    raise RuntimeError("no weights")
"""
QUICK = ["--epochs", "1", "--seeds", "2", "--batch-sizes", "4,16"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Real data as files, a network in a file, and a checkpoint of it after some training."""
    folder = tmp_path_factory.mktemp("job")
    iris, digits = load_iris(), load_digits()
    frame = pl.DataFrame({name: iris.data[:, i] for i, name in enumerate(iris.feature_names)})
    frame.with_columns(pl.Series("species", iris.target)).write_csv(folder / "iris.csv")
    np.savez(folder / "digits.npz", images=digits.images[:400], y=digits.target[:400])
    np.save(folder / "digits.npy", digits.images[:300] / 16)
    for i in range(120):
        image = folder / "digits" / str(digits.target[i]) / f"{i:03}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[i] * 15.9).astype(np.uint8)).save(image)
    (folder / "net.py").write_text(NET)
    scope: dict = {}
    exec(NET, scope)
    torch.manual_seed(0)
    net = scope["build"]()
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    images = torch.from_numpy(digits.images[:300] / 16).float().unsqueeze(1)
    labels = torch.from_numpy(digits.target[:300])
    for x, y in zip(images.split(30), labels.split(30), strict=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    torch.save({"state_dict": net.state_dict(), "epoch": 1}, folder / "net.pt")
    return folder


@pytest.fixture
def tenfold(place, monkeypatch, capfd):
    """Runs a command in the folder of data; returns exit code, standard output and standard error."""
    monkeypatch.chdir(place)

    def run(*words):
        capfd.readouterr()
        code = main(["normalization", *(str(word) for word in words)])
        return code, *capfd.readouterr()

    return run


def built(place):
    scope: dict = {}
    exec((place / "net.py").read_text(), scope)
    return scope["build"]()


def images():
    return torch.from_numpy(load_digits().images[:300] / 16).float().unsqueeze(1)


def weights(path):
    from safetensors.torch import load_file

    return load_file(path)


def test_study_of_images_gives_table_pictures_and_advice(tenfold, tmp_path):
    out = tmp_path / "s"
    code, text, err = tenfold("study", "digits", "--out", out, *QUICK)
    assert code == 0, err
    assert err.startswith("tenfold: 10 runs, ")
    assert "on 1 thread" in err
    lines = text.splitlines()
    assert lines[0].split() == ["norm", "16", "4"]
    assert [line.split()[0] for line in lines[1:5]] == ["batch", "group", "layer", "instance"]
    advice = lines[6]
    assert advice.startswith(("Take ", "These runs do not tell"))
    assert "Instance normalization lets nothing of the input through" in advice
    assert sorted(path.name for path in out.iterdir()) == [
        "curves.png", "errors.png", "runs", "settings.json", "study.json", "table.csv",
    ]  # fmt: skip
    saved = json.loads((out / "study.json").read_text())
    assert saved["advice"] == advice
    with (out / "table.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["error"]) for row in rows] == [row["error"] for row in saved["rows"]]
    means = {
        (norm, size): np.mean(
            [run["error"] for run in saved["runs"] if run["norm"] == norm and run["batch_size"] in (size, None)]
        )
        for norm in ("batch", "group")
        for size in (4, 16)
    }
    for row in saved["rows"][:4]:
        assert row["error"] == pytest.approx(means[row["norm"], row["batch_size"]])


def test_study_of_a_table_in_json_and_again_with_more_seeds(tenfold, tmp_path):
    words = ["study", "iris.csv", "--label", "species", "--out", tmp_path / "s", *QUICK, "--json"]
    code, text, err = tenfold(*words)
    assert code == 0, err
    first = json.loads(text)
    assert [row["norm"] for row in first["rows"]] == ["batch", "batch", "group", "group", "layer", "layer"]
    assert first["settings"]["model"] == "mlp"
    assert not first["settings"]["real_batch"]
    code, _, err = tenfold(*words)
    assert code == 2
    assert "holds an earlier study; --resume goes on with it" in err
    code, text, err = tenfold(*words[:-1], "--seeds", "3", "--resume", "--json")
    assert code == 0, err
    assert "4 runs (8 done before)" in err
    more = json.loads(text)
    kept = [run for run in more["runs"] if run["seed"] < 2]
    assert kept == first["runs"]


def test_study_of_the_users_network_with_real_batches(tenfold, place, tmp_path):
    words = ["study", "digits.npz", "--model", "net.py:build", "--norms", "batch, group", "--real-batch", *QUICK]
    code, text, err = tenfold(*words, "--out", tmp_path / "s", "--json")
    assert code == 0, err
    found = json.loads(text)
    assert found["settings"]["model"].startswith("net.py:build (")
    assert {(run["norm"], run["batch_size"]) for run in found["runs"]} == {
        ("batch", 4), ("batch", 16), ("group", 4), ("group", 16),
    }  # fmt: skip
    (place / "net.py").write_text(NET + "\n# changed\n")
    code, _, err = tenfold(*words, "--out", tmp_path / "s", "--resume")
    (place / "net.py").write_text(NET)
    assert code == 2
    assert "this study was made with model=net.py:build (" in err


def test_study_repeats_itself(tenfold, tmp_path):
    found = []
    for name in "ab":
        code, text, err = tenfold(
            "study", "--dataset", "digits", "--norms", "group", "--out", tmp_path / name, *QUICK, "--json"
        )
        assert code == 0, err
        found.append([{k: v for k, v in run.items() if k != "seconds"} for run in json.loads(text)["runs"]])
    assert found[0] == found[1]


def test_diagnose_names_layers_and_draws(tenfold, place, tmp_path):
    from tenfold.normalization.diagnosis import diagnose

    words = ["diagnose", "net.pt", "--build", "net.py:build", "--data", "digits.npy", "--batch-size", "30"]
    code, text, err = tenfold(*words, "-o", tmp_path / "d.png")
    assert code == 0, err
    assert [line.split()[0] for line in text.splitlines()[1:3]] == ["1", "4"]
    assert (tmp_path / "d.png").stat().st_size > 5000
    net = built(place)
    net.load_state_dict(torch.load(place / "net.pt", weights_only=True)["state_dict"])
    wanted = diagnose(net, images().split(30))
    code, text, err = tenfold(*words, "--json")
    found = json.loads(text)
    assert [layer["gap"] for layer in found["layers"]] == pytest.approx([row.gap for row in wanted.rows])
    assert found["findings"] == wanted.findings


def test_reestimate_writes_the_moments_of_the_data(tenfold, place, tmp_path):
    out = tmp_path / "r.safetensors"
    code, _, err = tenfold("reestimate", "net.pt", "--build", "net.py:build", "--data", "digits.npy", "-o", out)
    assert code == 0, err
    found = weights(out)
    net = built(place)
    net.load_state_dict(torch.load(place / "net.pt", weights_only=True)["state_dict"])
    entering = net[0](images()).detach().double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(found["1.running_mean"].double(), entering.mean(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found["1.running_var"].double(), entering.var(1), rtol=1e-5, atol=1e-6)
    assert torch.equal(found["0.weight"], net[0].weight)


def test_fold_gives_the_same_answers_without_batch_normalization(tenfold, place, tmp_path):
    from tenfold.normalization.folding import fold

    out = tmp_path / "f.safetensors"
    words = ["fold", "net.pt", "--build", "net.py:build", "-o", out, "--json"]
    code, text, err = tenfold(*words, "--data", "digits.npy")
    assert code == 0, err
    record = json.loads(text)
    assert record["folded"] == ["1 into 0", "4 into 3"]
    assert record["largest change of the output"] < 1e-5
    folded = fold(built(place)).model
    folded.load_state_dict(weights(out))
    net = built(place)
    net.load_state_dict(torch.load(place / "net.pt", weights_only=True)["state_dict"])
    torch.testing.assert_close(folded.eval()(images()), net.eval()(images()), rtol=1e-4, atol=1e-5)
    assert not any("running" in name for name in weights(out))
    code, text, err = tenfold(*words)
    assert code == 0, err
    assert json.loads(text)["largest change of the output"] is None


def test_convert_calibrates_and_says_that_fine_tuning_is_needed(tenfold, place, tmp_path):
    from tenfold.normalization.conversion import convert

    out = tmp_path / "c.pt"
    words = ["convert", "net.pt", "--build", "net.py:build", "--to", "group", "--channels-per-group", "4", "-o", out]
    code, text, err = tenfold(*words, "--data", "digits.npy", "--json")
    assert code == 0, err
    record = json.loads(text)
    assert record["needs fine-tuning"] is True
    assert 0 < record["change of the output"] < record["change without calibration"]
    converted = convert(built(place), "group", channels_per_group=4).model
    converted.load_state_dict(torch.load(out, weights_only=True))
    code, text, err = tenfold("convert", "net.pt", "--build", "net.py:build", "--to", "ghost", "--virtual-batch-size", "4",
                              "-o", tmp_path / "g.pt", "--json")  # fmt: skip
    assert code == 0, err
    assert json.loads(text)["needs fine-tuning"] is False


def test_inputs_are_scaled_as_the_network_knows_them(tenfold, place, tmp_path):
    """Images of bytes, from 0 to 1, brought to the scale of an array that was scaled beforehand."""
    scaled = (load_digits().images[:120] * 15.9).astype(np.uint8) / 255
    order = sorted(range(120), key=lambda i: f"{load_digits().target[i]}/{i:03}")
    np.save(tmp_path / "x.npy", ((scaled[order] - 0.3) / 0.25).astype(np.float32))
    found = []
    for words in (["--data", "digits", "--mean", "0.3", "--std", "0.25"], ["--data", tmp_path / "x.npy"]):
        code, text, err = tenfold("diagnose", "net.pt", "--build", "net.py:build", "--json", *words)
        assert code == 0, err
        found.append([layer["drift"] for layer in json.loads(text)["layers"]])
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_an_interrupted_command_keeps_what_is_finished(tenfold, tmp_path, monkeypatch):
    from tenfold.normalization import study

    calls = []
    train = study.train_classifier

    def stopped(*words, **options):
        calls.append(1)
        if len(calls) > 6:  # four kinds are timed first
            raise KeyboardInterrupt
        return train(*words, **options)

    monkeypatch.setattr(study, "train_classifier", stopped)
    code, _, err = tenfold("study", "iris.csv", "--label", "species", "--out", tmp_path / "s", *QUICK)
    assert code == 130
    assert "stopped after 2 of 8 runs; the same command with --resume goes on" in err
    assert len(list((tmp_path / "s" / "runs").iterdir())) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("study", "give either DATA, a file or folder, or --dataset"),
        ("study iris.csv --dataset digits", "give either DATA"),
        ("study --dataset cifar", "--dataset 'cifar' is not one of digits, mnist, mnist_5k"),
        ("study absent.csv", "absent.csv: there is no such file"),
        ("study iris.csv", "iris.csv: which column holds the classes? name it with --label"),
        ("study iris.csv --label x", "iris.csv: there is no column 'x'"),
        (
            "study iris.csv --label species --batch-sizes a",
            "--batch-sizes 'a' must be whole numbers with commas, such as",
        ),
        ("study iris.csv --label species --batch-sizes 3,4", "batch size 3 does not divide 4"),
        ("study iris.csv --label species --norms bach", "normalization 'bach' is not one of batch, group"),
        ("study iris.csv --label species --norms instance", "would normalize single numbers"),
        ("study iris.csv --label species --model small-conv", "model 'small-conv' is for images"),
        ("study iris.csv --label species --model vgg", "model 'vgg' is not one of auto, small-conv, resnet, mlp"),
        ("study iris.csv --label species --model net.py:build", "does not take inputs of shape (4,)"),
        ("study digits --model net.py:fails", "net.py:12: fails() raised RuntimeError: no weights"),
        ("study digits --model net.py:nothing", "net.py: has no function 'nothing'; there are build, fails"),
        ("study digits --model net.py", "'net.py' names no function in a file; write it as net.py:build"),
        ("study digits --size 0", "--size"),
        ("study digits --out digits", "digits: holds other files; give the study a folder of its own"),
        ("study digits --out net.pt", "net.pt: this is a file; a folder is needed"),
        ("study digits --label y", "sub-folders are the labels"),
        ("study iris.csv --label species --batch-sizes 512", "do not fill a batch of 512"),
        ("diagnose net.pt --build net.py:build", "give either --data, a file or folder, or --dataset"),
        ("diagnose net.pt --build net.py:build --data digits -o x.bmp", "x.bmp: pictures are written as"),
        ("diagnose gone.pt --build net.py:build --data digits", "gone.pt: there is no such file"),
        ("diagnose iris.csv --build net.py:build --data digits", "iris.csv: holds more than tensors"),
        (
            "diagnose net.pt --build net.py:build --classes 3 --data digits",
            "7.weight has shape (10, 64), the network's (3, 64)",
        ),
        ("diagnose net.pt --build net.py:build --data digits --mean a", "--mean 'a' must be numbers with commas"),
        (
            "diagnose net.pt --build net.py:build --data digits --mean 1,2",
            "--mean has 2 numbers, the inputs 1 channels",
        ),
        ("diagnose net.pt --build net.py:build --data digits --std 0", "--std '0' must be positive"),
        ("fold net.pt --build net.py:build -o net.pt", "net.pt: this is the checkpoint that is read"),
        ("fold net.pt --build net.py:build -o x.bin", "x.bin: weights are written as .safetensors, .pt or .pth"),
        ("convert net.pt --build net.py:build --to grup -o x.pt", "to='grup' is not known"),
        ("convert net.pt --build net.py:build --to group --groups 3 -o x.pt", "groups=3"),
        ("reestimate net.pt --build net.py:build -o x.pt", "give either --data"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tenfold, place, words, message):
    before = sorted(path for path in place.rglob("*") if "__pycache__" not in path.parts)
    code, out, err = tenfold(*words.split())
    assert code == 2, err
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
    assert sorted(path for path in place.rglob("*") if "__pycache__" not in path.parts) == before
