import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.datasets import packages
from typer.testing import CliRunner

from tenfold.datasets import DATASETS, card, digits, find, mnist, mnist_5k, movielens, movielens_100k
from tenfold.datasets.cli import app
from tenfold.errors import InputError

SOURCE = Path(__file__).parents[2] / "src" / "tenfold" / "datasets"


def test_cards_are_complete():
    assert len({one.name for one in DATASETS}) == len(DATASETS)
    for one in DATASETS:
        assert one.licence
        assert one.citation
        assert bool(one.files) != bool(one.comes_with)
        assert all(re.fullmatch(r"[0-9a-f]{64}", file.sha256) and file.size for file in one.files)
        for source in one.sources:
            for artifact in source.artifacts:
                assert re.fullmatch(r"[0-9a-f]{64}", artifact.sha256)
                assert artifact.size > 0
                assert artifact.url is None or artifact.url.startswith("https://")
                assert artifact.requirement is None or re.fullmatch(r"[a-z-]+==[0-9.]+", artifact.requirement)
        assert not one.files or one.sources[0].fetchable


def test_no_index_is_named_and_nothing_is_unpickled():
    for path in SOURCE.glob("*.py"):
        text = path.read_text()
        assert "pypi" not in text
        assert not re.search(r"\bpickle\.|import pickle|allow_pickle=True", text)


def test_digits_need_no_download():
    data = digits()
    assert data.images.shape == (1797, 8, 8)
    assert data.labels.shape == (1797,)
    assert data.top == data.images.max() == 16
    assert data.scaled().max() == 1


def test_idx_files_come_back():
    from tenfold.datasets.handwritten_digits import _from_idx, _to_idx

    for shape in ((7,), (3, 28, 28)):
        values = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        np.testing.assert_array_equal(_from_idx(_to_idx(values)), values)
    assert _to_idx(np.zeros((2, 3, 4), np.uint8))[:16] == bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4])


def test_published_films_become_titles_years_and_genres():
    flags = ["0"] * 19
    comedy = "|".join("1" if genre == "Comedy" else flag for genre, flag in zip(movielens.GENRES, flags, strict=True))
    unknown = "|".join(["1", *flags[1:]])
    lines = [
        f"1|Misérables, Les (1995)|01-Jan-1995||http://x|{comedy}",
        f"2|Land Before Time III: The Time of the Great Giving (1995) (V)|01-Jan-1995||http://x|{comedy}",
        f"3|unknown||||{unknown}",
    ]
    found = movielens._from_published(b"ratings", ("\n".join(lines) + "\n").encode("latin-1"))
    assert found["u.data"] == b"ratings"
    assert found["items.tsv"].decode().splitlines() == [
        "item\ttitle\tyear\tgenres",
        "1\tMisérables, Les\t1995\tComedy",
        "2\tLand Before Time III: The Time of the Great Giving\t1995\tComedy",
        "3\tunknown\t\tunknown",
    ]


def test_an_unknown_name_lists_those_that_there_are():
    with pytest.raises(
        InputError, match="no data set 'minst'; there are digits, mnist, mnist-5k, movielens-100k, cmudict"
    ):
        card("minst")


def test_the_command_lists_fetches_and_finds(tmp_path, monkeypatch):
    def run(*words):
        return CliRunner().invoke(app, words)

    listed = json.loads(run("list", "--json").stdout)
    assert [row["name"] for row in listed] == [one.name for one in DATASETS]
    assert listed[1]["place"] == "not fetched"
    for words, message in [
        (("path", "mnist-5k"), "mnist-5k is not on this machine; `tenfold datasets fetch mnist-5k` fetches it"),
        (("path", "digits"), "digits comes with scikit-learn"),
        (("fetch",), "give the names of data sets, or --all"),
        (("fetch", "digits", "mnits"), "there is no data set 'mnits'"),
    ]:
        with pytest.raises(InputError, match=message):
            raise run(*words).exception
    assert "comes with scikit-learn" in run("fetch", "digits").stdout

    toy = packages.card(packages.packaged(packages.wheel(tmp_path / "index")))
    monkeypatch.setattr("tenfold.datasets.registry.DATASETS", (toy,))
    place = str(tmp_path / "cache" / "datasets" / "toy")
    assert json.loads(run("fetch", "toy", "--json").stdout) == [{"name": "toy", "MB": 0.0, "place": place}]
    assert run("path", "toy").stdout == f"{place}\n"
    assert json.loads(run("path", "toy", "--json").stdout) == {"name": "toy", "path": place}


@pytest.mark.parametrize(
    ("name", "read", "facts"),
    [
        ("mnist", mnist, lambda data: (data.train.images.shape, data.test.images.shape, int(data.train.labels[0]))),
        ("mnist-5k", mnist_5k, lambda data: (data.images.shape, np.bincount(data.labels).tolist())),
        ("movielens-100k", movielens_100k, lambda data: (len(data.titles), int(data.user.max()), data.titles[49])),
    ],
)
def test_fetched_data_sets_are_what_their_pages_say(monkeypatch, name, read, facts):
    monkeypatch.undo()  # the user's own cache; nothing is fetched here
    if find(card(name)) is None:
        pytest.skip(f"{name} is not on this machine")
    expected = {
        "mnist": ((60_000, 28, 28), (10_000, 28, 28), 5),
        "mnist-5k": ((5_000, 28, 28), [500] * 10),
        "movielens-100k": (1682, 942, "Star Wars"),
    }
    assert facts(read()) == expected[name]
