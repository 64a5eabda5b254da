"""`tenfold raml` on real input, in this process."""

import csv
import gzip
import json
import math

import numpy as np
import polars as pl
import pytest

from tenfold.console.main import main

WORDS = {
    "be": "B IY",
    "bee": "B IY",
    "bed": "B EH D",
    "deed": "D IY D",
    "ebb": "EH B",
    "dead": "D EH D",
    "bead": "B IY D",
    "add": "AE D",
    "bad": "B AE D",
    "dad": "D AE D",
}
QUICK = ["--steps", "4", "--width", "8", "--device", "cpu", "--threads", "1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Pairs, a dictionary, targets, and a model."""
    folder = tmp_path_factory.mktemp("job")
    lines = [f"{word}\t{phones}\n" for word, phones in WORDS.items()]
    (folder / "pairs.tsv").write_text("".join(lines))
    (folder / "words.dict").write_text("bed  B EH1 D\nbead B IY1 D\nbead(2) B EH1 D\ndad D AE1 D # a comment\n")
    (folder / "targets.txt").write_text("B IY\nB EH D\nD IY D\n")
    command = ["raml", "fit", str(folder / "pairs.tsv"), "--out", str(folder / "model"), "--target-tokens", "space"]
    assert main([*command, "--validation", "0", *QUICK]) == 0
    return folder


@pytest.fixture
def tenfold(place, monkeypatch, capfd):
    """Runs a command in the folder of data; returns exit code, standard output and standard error."""
    monkeypatch.chdir(place)

    def run(*words):
        capfd.readouterr()
        code = main(["raml", *(str(word) for word in words)])
        return code, *capfd.readouterr()

    return run


@pytest.mark.parametrize("objective", ["ml", "raml", "smoothing", "risk"])
def test_fit_writes_a_model_folder_and_nothing_else(tenfold, tmp_path, objective):
    code, out, err = tenfold(
        "fit",
        "pairs.tsv",
        "--out",
        tmp_path / "m",
        "--objective",
        objective,
        "--target-tokens",
        "space",
        "--json",
        *QUICK,
    )
    assert code == 0, err
    found = json.loads(out)
    assert found["objective"] == objective
    assert found["source tokens"] <= 4  # a, b, d, e
    assert math.isfinite(found["loss"])
    assert found["val_error_rate"] >= 0
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "vocabulary.txt",
    ]
    assert err == ""


def test_fit_repeats_itself_to_the_bit(tenfold, place, tmp_path):
    code, _, err = tenfold(
        "fit", "pairs.tsv", "-o", tmp_path / "m", "--target-tokens", "space", "--validation", "0", *QUICK
    )
    assert code == 0, err
    assert (tmp_path / "m/model.safetensors").read_bytes() == (place / "model/model.safetensors").read_bytes()


def test_dictionary_has_letters_and_phones_without_being_told(tenfold, tmp_path):
    words = ("fit", "words.dict", "--validation", "0", "--tau", "0.9", "--last-tau", "0.3", "--json", *QUICK)
    assert tenfold(*words, "-o", tmp_path / "m")[0] == 0
    assert set((tmp_path / "m/vocabulary.txt").read_text().split("\n")) >= {"source\tb", "target\tEH", "target\tIY"}
    assert tenfold(*words, "--stress", "-o", tmp_path / "s")[0] == 0
    assert "target\tEH1\n" in (tmp_path / "s/vocabulary.txt").read_text()


def test_expression_makes_tokens_and_says_where_it_does_not_fit(tenfold, tmp_path):
    (tmp_path / "salts.tsv").write_text("salt\tNaCl\nlye\tNaOH\nwater\tH2O\n")
    words = ("fit", tmp_path / "salts.tsv", "--validation", "0", *QUICK, "-o", tmp_path / "m", "--target-tokens")
    assert tenfold(*words, "regex:[A-Z][a-z]?|[0-9]")[0] == 0
    assert "target\tNa\n" in (tmp_path / "m/vocabulary.txt").read_text()
    code, _, err = tenfold(*words, "regex:[A-Z][a-z]?")
    assert code == 2
    assert err.splitlines()[-1].startswith(f"tenfold: {tmp_path / 'salts.tsv'}:3: ")
    code, _, err = tenfold(*words, "syllable")
    assert code == 2
    assert "--target-tokens='syllable' is not one of" in err


# one line, with file and line number, and exit code 2
@pytest.mark.parametrize(
    ("content", "where", "says"),
    [
        (b"be\tB IY\nbed B EH D\n", ":2: ", "there is no tab"),
        (b"be\tB IY\nbed\t\n", ":2: ", "the target is empty"),
        (b"be\tB IY\nbee\tB IY\n \tB EH D\n", ":3: ", "the source is empty"),
        (b"be\tB IY\nbed\tB\tEH D\n", ":2: ", "3 columns"),
        (b"be\tB IY\nb\xe9d\tB EH D\n", ":2: ", "UTF-8"),
        (b"", ": ", "the file is empty"),
    ],
    ids=["no tab", "no target", "no source", "three columns", "no UTF-8", "nothing"],
)
@pytest.mark.parametrize("command", ["fit", "evaluate", "compare"])
def test_bad_pairs_are_named_by_line(tenfold, tmp_path, command, content, where, says):
    file = tmp_path / "bad.tsv"
    file.write_bytes(content)
    words = ["evaluate", "model", file] if command == "evaluate" else [command, file, "--out", tmp_path / "o", *QUICK]
    code, out, err = tenfold(*words)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"tenfold: {file}{where}")
    assert says in err
    assert not (tmp_path / "o").exists()


def test_letters_that_the_model_does_not_know_are_named_by_line(tenfold, tmp_path):
    (tmp_path / "sources.txt").write_text("bed\ndab\nquiz\n")
    code, _, err = tenfold("predict", "model", tmp_path / "sources.txt", "--out", tmp_path / "p.tsv")
    assert code == 2
    assert err.startswith(f"tenfold: {tmp_path / 'sources.txt'}:3: the model's vocabulary has no 'q'")
    assert not (tmp_path / "p.tsv").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("fit", "pairs.tsv", "--objective", "reinforce"), "'reinforce' is not one of"),
        (("fit", "pairs.tsv", "--tau", "9"), "tau=9.0 is too large"),
        (("fit", "pairs.tsv", "--scale", "celsius"), "scale='celsius'"),
        (("fit", "pairs.tsv", "--last-tau", "0.1"), "--last-tau needs --steps"),
        (("fit", "no.tsv"), "no.tsv"),
        (("augment", "targets.txt", "--tau", "0.5", "--error-rate", "0.1"), "one of the two"),
        (("augment", "targets.txt", "--operations", "swap"), "operations="),
        (("augment", "targets.txt", "--payoff", "hamming", "--max-edits", "2"), "substitutes"),
        (("augment", "targets.txt", "--out", "targets.txt"), "--out another name"),
        (("compare", "pairs.tsv", "--objectives", "ml,reinforce"), "give some of ml, raml, smoothing, risk"),
        (("compare", "pairs.tsv", "--taus", "low"), "--taus 'low'"),
        (("compare", "pairs.tsv", "--test-share", "0.01"), "nothing to train on or to judge by"),
    ],
)
def test_bad_options_are_one_line(tenfold, tmp_path, words, says):
    out = () if "--out" in words else ("--out", tmp_path / "o")
    code, _, err = tenfold(*words, *out)
    assert code == 2
    assert err.count("\n") == 1
    assert says in err


def test_predict_writes_a_line_a_source(tenfold, tmp_path):
    code, out, err = tenfold("predict", "model", "pairs.tsv", "--out", tmp_path / "p.parquet", "--beam", "2", "--json")
    assert code == 0, err
    assert json.loads(out)["outputs"] == len(WORDS)
    table = pl.read_parquet(tmp_path / "p.parquet")
    assert table["source"].to_list() == list(WORDS)
    assert set(" ".join(table["output"].to_list()).split()) <= {"B", "D", "IY", "EH", "AE"}
    assert (table["score"] <= 0).all()


def test_evaluate_gives_scores_with_their_intervals_and_says_what_cannot_be_right(tenfold, tmp_path):
    code, out, err = tenfold("evaluate", "model", "pairs.tsv", "--json", "--replicates", "50")
    assert code == 0, err
    rows = {row["score"]: row for row in json.loads(out)}
    assert list(rows) == ["error_rate", "word_error_rate", "wrong", "bleu"]
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows.values())
    assert rows["error_rate"]["value"] == rows["word_error_rate"]["value"]  # tokens are words here
    assert err == ""
    (tmp_path / "other.tsv").write_text("bed\tB EH D\ndab\tD AE ZH\n")
    code, out, err = tenfold("evaluate", "model", tmp_path / "other.tsv")
    assert code == 0
    assert "1 of 2 targets have a token that the model cannot put out" in err
    assert "token error rate [%]" in out


def test_source_with_several_targets_is_one_source(tenfold):
    code, out, err = tenfold("evaluate", "model", "words.dict", "--json", "--replicates", "0")
    assert code == 0, err
    wrong = {row["score"]: row["value"] for row in json.loads(out)}["wrong"]
    assert min(abs(wrong - part / 3) for part in range(4)) < 1e-12


def test_augment_writes_distance_and_log_q(tenfold, tmp_path):
    code, out, err = tenfold(
        "augment",
        "targets.txt",
        "-o",
        tmp_path / "s.tsv",
        "--tokens",
        "space",
        "--samples",
        "40",
        "--tau",
        "0.8",
        "--json",
    )
    assert code == 0, err
    with (tmp_path / "s.tsv").open() as stream:
        rows = list(csv.DictReader(stream, delimiter="\t"))
    assert list(rows[0]) == ["reference", "sample", "distance", "log_q"]
    assert [row["reference"] for row in rows] == [text for text in ("B IY", "B EH D", "D IY D") for _ in range(40)]
    found = json.loads(out)
    raw = 0.8 / (1 + math.log(4))  # B, D, EH, IY
    assert found["raw tau"] == pytest.approx(raw)
    assert found["mean edits"] == pytest.approx(np.mean([int(row["distance"]) for row in rows]))
    for reference in ("B IY", "B EH D"):  # log q falls by 1 / tau an edit: the rest is the normalizer
        known = [row for row in rows if row["reference"] == reference]
        rest = [float(row["log_q"]) + int(row["distance"]) / raw for row in known]
        assert max(rest) - min(rest) < 1e-9
        for row in known:
            changed = row["sample"] != row["reference"]
            assert (int(row["distance"]) > 0) == changed


def test_augmented_line_depends_on_its_number_and_the_seed_alone(tenfold, tmp_path):
    (tmp_path / "two.txt.gz").write_bytes(gzip.compress(b"B IY\nB EH D\nD IY D\nB IY\n"))
    for name, words in {
        "a": ("targets.txt",),
        "b": (tmp_path / "two.txt.gz",),
        "c": ("targets.txt", "--seed", "1"),
    }.items():
        command = ("augment", *words, "--tokens", "space", "--samples", "8", "-o", tmp_path / f"{name}.csv")
        assert tenfold(*command)[0] == 0
    a, b, c = (pl.read_csv(tmp_path / f"{name}.csv") for name in "abc")
    assert a.equals(b[: len(a)])
    assert not a.equals(c)


def test_augment_keeps_the_sources_of_pairs(tenfold, tmp_path):
    words = ("--payoff", "hamming", "--error-rate", "0.25", "--tokens", "space", "--samples", "3")
    assert tenfold("augment", "pairs.tsv", "-o", tmp_path / "s.parquet", *words)[0] == 0
    table = pl.read_parquet(tmp_path / "s.parquet")
    assert table.columns == ["source", "reference", "sample", "distance", "log_q"]
    assert table["source"].to_list() == [word for word in WORDS for _ in range(3)]
    lengths = [len(text.split()) for text in table["sample"]]
    assert lengths == [len(text.split()) for text in table["reference"]]
    code, _, err = tenfold("augment", tmp_path / "gap.txt", "-o", tmp_path / "g.tsv")
    assert code == 2
    (tmp_path / "gap.txt").write_text("B IY\n\nD IY\n")
    code, _, err = tenfold("augment", tmp_path / "gap.txt", "-o", tmp_path / "g.tsv")
    assert code == 2
    assert err == f"tenfold: {tmp_path / 'gap.txt'}:2: the target is empty\n"


def test_compare_puts_all_into_one_table_and_goes_on_where_it_was(tenfold, tmp_path):
    words = [
        "compare",
        "pairs.tsv",
        "--out",
        tmp_path / "c",
        "--target-tokens",
        "space",
        "--test-share",
        "0.3",
        "--json",
    ]
    words += ["--objectives", "ml,raml", "--taus", "0.6", *QUICK]
    code, out, err = tenfold(*words, "--seeds", "2")
    assert code == 0, err
    rows = json.loads(out)
    assert [(row["objective"], row["runs"]) for row in rows] == [("ml", 2), ("raml 0.6", 2)]
    table = pl.read_csv(tmp_path / "c/comparison.csv")
    assert table["objective"].to_list() == ["ml", "raml", "ml", "raml"]
    means = table.group_by("objective", maintain_order=True).agg(pl.col("error_rate").mean())["error_rate"].to_list()
    assert [row["error_rate"] for row in rows] == pytest.approx(means)
    assert (tmp_path / "c/comparison.png").read_bytes()[1:4] == b"PNG"
    assert len(list((tmp_path / "c/runs").iterdir())) == 4

    code, _, err = tenfold(*words, "--seeds", "2")
    assert code == 2
    assert "--resume goes on with it" in err
    code, _, err = tenfold(*words, "--seeds", "2", "--resume", "--dropout", "0.5")
    assert code == 2
    assert "made with dropout=0.0, now dropout=0.5" in err
    kept = tmp_path / "c/runs/ml-seed-0.json"
    kept.write_text(
        json.dumps(json.loads(kept.read_text()) | {"error_rate": 0.125})
    )  # a run that is kept is not made again
    (tmp_path / "c/runs/raml-0.6-seed-1.json").unlink()
    code, out, err = tenfold(*words, "--seeds", "2", "--resume")
    assert code == 0, err
    again = pl.read_csv(tmp_path / "c/comparison.csv")
    assert again["error_rate"].to_list() == [0.125, *table["error_rate"].to_list()[1:]]
    kept.write_text("{")
    code, _, err = tenfold(*words, "--seeds", "2", "--resume")
    assert code == 2
    assert "is damaged" in err
