"""`tenfold recommend` on logs of events, from the file to the list."""

import json

import numpy as np
import polars as pl
import pytest

from tenfold.console.main import main
from tenfold.recommend import ImplicitALS, Interactions
from tenfold.recommend.fitting import FitCheckpoints

SMALL = ["--factors", "8", "--regularization", "3", "--iterations", "4", "--threads", "1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Events of 90 listeners with three tastes, some of newcomers, and a model."""
    folder = tmp_path_factory.mktemp("job")
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(90), 12)
    songs = np.concatenate([(u % 3) * 20 + rng.choice(30, 12, replace=False) for u in range(90)]) % 60
    plays = pl.DataFrame(
        {
            "listener": [f"u{u:02}" for u in users],
            "song": [f"song {s}" for s in songs],
            "plays": rng.integers(1, 6, len(users)),
            "timestamp": rng.integers(0, 10**6, len(users)),
        }
    )
    plays.write_csv(folder / "plays.csv")
    plays.write_parquet(folder / "plays.parquet")
    plays.with_columns(pl.Series("number", users), pl.Series("code", songs)).write_csv(folder / "numbers.csv")
    (folder / "new.csv").write_text(
        "listener,song,plays\nzoe,song 3,5\nzoe,song 9,2\nzoe,unknown song,1\nu01,song 2,1\nbob,unknown song,1\n"
    )
    (folder / "columns.csv").write_text("a,b\n1,2\n")
    (folder / "odd.csv").write_text("listener,song,plays\nann,song 3,5\nann,song 9,many\n")
    (folder / "ids.txt").write_text("u03\n\nu07\n")
    (folder / "wrong.txt").write_text("u03\nnobody\n")
    code = main(["recommend", "fit", str(folder / "plays.parquet"), "-o", str(folder / "model"), *SMALL])
    assert code == 0
    return folder


@pytest.fixture
def tenfold(place, monkeypatch, capfd):
    """Runs a command in the folder of data; returns exit code, standard output and standard error."""
    monkeypatch.chdir(place)

    def run(*words):
        capfd.readouterr()
        code = main(["recommend", *(str(word) for word in words)])
        return code, *capfd.readouterr()

    return run


def test_fit_writes_a_model_with_the_ids_and_says_what_it_is(tenfold, place, tmp_path):
    code, out, err = tenfold("fit", "plays.csv", "-o", tmp_path / "m", *SMALL, "--json")
    assert code == 0, err
    record = json.loads(out)
    assert (record["users"], record["items"], record["iterations"]) == (90, 60, 4)
    assert (tmp_path / "m/model.safetensors").read_bytes() == (place / "model/model.safetensors").read_bytes()
    model = ImplicitALS.from_pretrained(tmp_path / "m")
    assert model.user_ids_[3] == "u03"


def test_fit_takes_time_columns_minimum_counts_and_events_without_values(tenfold, tmp_path):
    words = ("--half-life", "2", "--min-item", "10", "--min-user", "3", "--value-column", "none")
    code, out, err = tenfold("fit", "plays.csv", "-o", tmp_path / "m", *SMALL, *words, "--json")
    assert code == 0, err
    assert json.loads(out)["items"] < 60


def test_a_run_that_was_stopped_goes_on_to_the_same_model(tenfold, place, tmp_path, monkeypatch):
    words = ("fit", "plays.parquet", "-o", tmp_path / "m", *SMALL)
    write = FitCheckpoints.write

    def write_and_stop(self, state):
        write(self, state)
        if len(state.losses) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(FitCheckpoints, "write", write_and_stop)
        code, out, err = tenfold(*words)
    assert code == 130
    assert not out
    saved = tmp_path / "m/checkpoints/step-00000002.safetensors"
    assert err.splitlines()[-1] == f"tenfold: the fit was stopped after 2 of 4 iterations; resume from {saved}"
    assert not (tmp_path / "m/config.json").exists()
    code, _, err = tenfold(*words)
    assert code == 2
    assert "holds checkpoints of an earlier run: resume it, or give another folder" in err
    code, out, err = tenfold(*words, "--resume", "--json")
    assert code == 0, err
    assert json.loads(out)["iterations"] == 4
    assert (tmp_path / "m/model.safetensors").read_bytes() == (place / "model/model.safetensors").read_bytes()
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == sorted(
        path.name for path in (place / "model").iterdir()
    )
    assert "starts at the beginning" in tenfold("fit", "plays.parquet", "-o", tmp_path / "n", *SMALL, "--resume")[2]


def test_evaluate_puts_the_model_beside_what_it_has_to_beat(tenfold):
    code, out, err = tenfold("evaluate", "plays.csv", *SMALL, "--metrics", "recall@5,mpr", "--intervals", "--json")
    assert code == 0, err
    rows = {row["model"]: row for row in json.loads(out)}
    assert list(rows) == ["ImplicitALS", "item neighbourhood", "popularity"]
    assert rows["ImplicitALS"]["mpr"] < rows["popularity"]["mpr"] < 50
    assert all(row["mpr low"] <= row["mpr"] <= row["mpr high"] for row in rows.values())


@pytest.mark.parametrize("split", ["leave-one-out", "time", "users"])
def test_evaluate_knows_every_split_and_the_model_beats_popularity(tenfold, split):
    code, out, err = tenfold("evaluate", "plays.csv", *SMALL, "--split", split, "--metrics", "mpr", "--json")
    assert code == 0, err
    found = {row["model"]: row["mpr"] for row in json.loads(out)}
    assert found["ImplicitALS"] < found["popularity"]


def test_recommend_never_lists_what_a_user_had_and_streams_the_same_lists(tenfold, place, tmp_path):
    assert tenfold("recommend", "model", "plays.csv", "-n", "5", "-o", tmp_path / "a.parquet", "--block", "7")[0] == 0
    assert tenfold("recommend", "model", "plays.csv", "-n", "5", "-o", tmp_path / "b.csv")[0] == 0
    lists, whole = pl.read_parquet(tmp_path / "a.parquet"), pl.read_csv(tmp_path / "b.csv")
    assert lists.columns == ["user", "rank", "item", "score"]
    assert lists.height == 90 * 5
    assert lists.select("user", "item").equals(whole.select("user", "item"))
    had = pl.read_csv(place / "plays.csv").select(pl.col("listener").alias("user"), pl.col("song").alias("item"))
    assert lists.join(had, on=["user", "item"]).height == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "b.csv"]


def test_recommend_agrees_with_the_model_in_python(tenfold, place, tmp_path):
    assert tenfold("recommend", "model", "plays.csv", "--users", "ids.txt", "-n", "4", "-o", tmp_path / "r.tsv")[0] == 0
    rows = pl.read_csv(tmp_path / "r.tsv", separator="\t")
    model, plays = ImplicitALS.from_pretrained(place / "model"), Interactions.from_csv(place / "plays.csv")
    ids, scores = model.recommend(plays.user_index(["u03", "u07"]), plays.matrix, n=4)
    assert rows["item"].to_list() == plays.item_ids[ids.ravel()].tolist()
    np.testing.assert_allclose(rows["score"], scores.ravel(), rtol=1e-5)


def test_recommend_folds_in_users_that_only_the_events_know(tenfold, place, tmp_path):
    code, out, err = tenfold("recommend", "model", "new.csv", "-n", "3", "-o", tmp_path / "r.csv", "--json")
    assert code == 0, err
    assert json.loads(out) == {
        "out": str(tmp_path / "r.csv"),
        "users": 92,
        "users without a list": 1,
        "rows": 273,
        "new items left out": 1,
    }
    found = pl.read_csv(tmp_path / "r.csv").filter(pl.col("user") == "zoe")["item"].to_list()
    assert not {"song 3", "song 9"} & set(found)
    model = ImplicitALS.from_pretrained(place / "model")
    row = np.zeros((1, 60), np.float32)
    row[0, [model.item_ids_.tolist().index(name) for name in ("song 3", "song 9")]] = 5, 2
    best = model.recommend_for_factors(model.fold_in_users(row), row, 3)[0]
    assert found == model.item_ids_[best[0]].tolist()


def test_seen_items_are_listed_when_asked_for(tenfold, tmp_path):
    assert tenfold("recommend", "model", "plays.csv", "--seen", "-n", "60", "-o", tmp_path / "r.csv")[0] == 0
    assert pl.read_csv(tmp_path / "r.csv").height == 90 * 60


def test_integer_ids_stay_integers(tenfold, tmp_path):
    columns = ("--user-column", "number", "--item-column", "code")
    assert tenfold("fit", "numbers.csv", "-o", tmp_path / "m", *columns, *SMALL)[0] == 0
    (tmp_path / "ids").write_text("5\n7\n")
    out = tmp_path / "r.parquet"
    assert tenfold("recommend", tmp_path / "m", "--users", tmp_path / "ids", "-o", out, "-n", "2")[0] == 0
    assert pl.read_parquet(out)["user"].to_list() == [5, 5, 7, 7]
    assert tenfold("similar", tmp_path / "m", "12")[0] == 0
    (tmp_path / "ids").write_text("5\nseven\n")
    code, _, err = tenfold("recommend", tmp_path / "m", "--users", tmp_path / "ids", "-o", out)
    assert code == 2
    assert "ids:2: 'seven' is no integer" in err


def test_similar_gives_the_item_itself_first(tenfold):
    code, out, err = tenfold("similar", "model", "song 3", "song 4", "-n", "3", "--json")
    assert code == 0, err
    rows = json.loads(out)
    assert [row["similar"] for row in rows[::3]] == ["song 3", "song 4"]
    assert rows[0]["cosine"] == pytest.approx(1)
    assert json.loads(tenfold("similar", "model", "u04", "--of-users", "-n", "2", "--json")[1])[0]["similar"] == "u04"


def test_explain_adds_up_to_the_score(tenfold):
    code, out, err = tenfold("explain", "model", "plays.csv", "-u", "u04", "--item", "song 5", "-n", "3", "--json")
    assert code == 0, err
    rows = json.loads(out)
    assert len(rows) == 5
    assert rows[-1]["item"] == "score"
    assert sum(row["contribution"] for row in rows[:-1]) == pytest.approx(rows[-1]["contribution"], rel=1e-9)
    assert tenfold("explain", "model", "new.csv", "-u", "zoe", "--item", "song 5")[0] == 0  # a newcomer


def test_a_user_without_items_of_the_model_is_counted_and_has_nothing_to_explain(tenfold, tmp_path):
    (tmp_path / "ids").write_text("bob\nu03\n")
    code, out, err = tenfold("recommend", "model", "new.csv", "--users", tmp_path / "ids", "-o", tmp_path / "r.csv")
    assert code == 0, err
    assert out.splitlines()[2].split() == ["users", "without", "a", "list", "1"]
    assert set(pl.read_csv(tmp_path / "r.csv")["user"]) == {"u03"}
    code, _, err = tenfold("explain", "model", "new.csv", "-u", "bob", "--item", "song 5")
    assert code == 2
    assert "user 'bob' has no item of the model: there is nothing to explain" in err


def test_users_who_come_after_the_cut_are_left_out_and_counted(tenfold, tmp_path):
    lines = [f"old{u},song {s},{s}" for u in range(8) for s in range(9)] + [f"new,song {s},99" for s in range(5)]
    (tmp_path / "dated.csv").write_text("\n".join(["user,song,time", *lines, "old1,song 10,99"]) + "\n")
    words = ("evaluate", tmp_path / "dated.csv", "--split", "time", "--fraction", "0.08", "-k", "2", "--threads", "1")
    code, out, err = tenfold(*words, "--metrics", "mpr", "--json")
    assert code == 0, err
    assert "1 users have nothing in the part to train on; they are left out" in err
    assert [row["model"] for row in json.loads(out)] == ["ImplicitALS", "item neighbourhood", "popularity"]


def test_odd_ids_come_back_as_they_were(tenfold, tmp_path):
    users = ['zoë, "the" 1', "日本", "007", "7", " x"]
    plays = pl.DataFrame({"user": users * 2, "item": [2**53 + 1] * 5 + [2**63 - 1] * 2 + [2**53] * 3})
    plays.write_csv(tmp_path / "odd.csv")
    assert tenfold("fit", tmp_path / "odd.csv", "-o", tmp_path / "m", "-k", "2", "--threads", "1")[0] == 0
    model = ImplicitALS.from_pretrained(tmp_path / "m")
    assert set(model.user_ids_) == {name.strip() for name in users}
    assert model.item_ids_.tolist() == sorted(map(str, (2**53, 2**53 + 1, 2**63 - 1)))
    assert tenfold("recommend", tmp_path / "m", tmp_path / "odd.csv", "-o", tmp_path / "r.csv")[0] == 0
    found = pl.read_csv(tmp_path / "r.csv", schema_overrides={"user": pl.String, "item": pl.String})
    assert found.select("user", "item").rows() == [
        ("007", str(2**63 - 1)), ("7", str(2**63 - 1)), ("x", str(2**63 - 1)), (users[0], str(2**53)), ("日本", str(2**53))
    ]  # fmt: skip


def test_tune_goes_on_where_it_stopped_and_finds_the_same(tenfold, tmp_path):
    words = (
        "tune",
        "plays.csv",
        "-n",
        "4",
        "--iterations",
        "3",
        "--metric",
        "mpr",
        "--factors",
        "4:8",
        "--threads",
        "1",
    )
    code, whole, err = tenfold(*words, "-o", tmp_path / "t", "--json")
    assert code == 0, err
    log = tmp_path / "t" / "tuning.json"
    content = json.loads(log.read_text())
    assert len(content["attempts"]) == 5
    content["attempts"] = content["attempts"][:2]
    log.write_text(json.dumps(content))
    assert tenfold(*words, "-o", tmp_path / "t", "--json", "--resume")[1] == whole
    code, _, err = tenfold(*words, "-o", tmp_path / "t", "--resume", "--seed", "5")
    assert code == 2
    assert "leave out --resume to begin anew" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fit absent.csv", "absent.csv: "),
        ("fit odd.csv", "odd.csv:3: "),
        ("fit plays.csv --user-column who", "'who'"),
        ("fit plays.csv --alpha -1", "alpha=-1.0 must be"),
        ("fit plays.csv --regularization nan", "regularization=nan must be"),
        ("fit plays.csv --confidence foo", "--confidence"),
        ("fit plays.csv --confidence foo", "foo' is not one of"),
        ("fit plays.csv --target foo", "--target"),
        ("fit plays.csv --target foo", "foo' is not one of"),
        ("fit plays.csv --solver foo", "--solver"),
        ("fit plays.csv --solver foo", "foo' is not one of"),
        ("fit plays.csv --engine foo", "--engine"),
        ("fit plays.csv --engine foo", "foo' is not one of"),
        ("fit plays.csv --device gpu", "'gpu' is no device; give auto, cpu, cuda"),
        ("fit plays.csv --device cuda:99", "device 'cuda:99' is not here; available: auto, "),
        ("evaluate absent.csv --device cuda:99", "device 'cuda:99' is not here"),
        ("tune absent.csv --epsilon 0", "epsilon=0.0 must be finite and above 0"),
        ("fit plays.csv --min-user 99", "leave nothing"),
        ("fit plays.csv --half-life 0", "must be positive"),
        ("fit plays.csv -o plays.csv", "this is a file"),
        ("fit plays.csv -k 0", "--factors"),
        ("fit plays.csv -k 70 -l 0 --iterations 1", "regularization=0 leaves a singular system"),
        ("evaluate plays.csv --split foo", "--split"),
        ("evaluate plays.csv --split foo", "foo' is not one of"),
        ("evaluate plays.csv --metrics foo", "metric 'foo' is not known"),
        ("evaluate plays.csv --fraction 1", "must lie between 0 and 1"),
        ("evaluate new.csv --split time", "needs time stamps"),
        ("tune plays.csv --alpha 5:1", "alpha from 5.0 to 1.0: the bounds must be in order"),
        ("tune plays.csv --alpha a:b", "alpha: 'a:b' is neither a number nor LOW:HIGH"),
        ("tune plays.csv --metric foo", "metric 'foo' is not known"),
        ("recommend absent", "absent"),
        ("recommend model -o r.txt", "r.txt: recommendations are written as .parquet, .csv, .tsv"),
        ("recommend model --users wrong.txt", "wrong.txt:2: user 'nobody' is neither among the 90 of the model"),
        ("recommend model --users absent.txt", "absent.txt: there is no such file"),
        ("recommend model numbers.csv --user-column number --item-column code", "are integers"),
        ("similar model nothing", "item 'nothing' is not among the 60 known items"),
        ("explain model plays.csv -u nobody --item x", "user 'nobody' is not among"),
        ("explain model plays.csv -u u04 --item x", "item 'x' is not among"),
        ("fit .", "this is a folder; a file is needed"),
        ("fit columns.csv", "name it (user=..., or --user-column): the columns are a, b"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tenfold, place, words, message):
    before = sorted(place.rglob("*"))
    code, out, err = tenfold(*words.split())
    assert code == 2, err
    assert message in " ".join(err.split())
    assert not out
    assert "Traceback" not in err
    assert sorted(place.rglob("*")) == before
