"""Files of pairs: what is read, and what is refused with file and line."""

import gzip

import pytest
import torch

from tenfold.errors import InputError
from tenfold.raml.data import (
    MOST_TOKENS,
    Pairs,
    Vocabulary,
    as_pairs,
    join,
    padded,
    read_pairs,
    read_sources,
    require_room,
    token_rows,
    tokenize,
)
from type_checking import unchecked_annotations


def written(folder, content, name="pairs.tsv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_two_columns_are_sources_and_targets(tmp_path):
    pairs = read_pairs(written(tmp_path, "\ufefftea\tT IY\r\nno tea\tN OW T IY\n\n"))  # a mark, Windows' line ends
    assert pairs.sources == ("tea", "no tea")
    assert pairs.targets == ("T IY", "N OW T IY")
    assert pairs.lines == (1, 2)


def test_a_gzip_file_and_a_dictionary_are_read_by_their_suffix(tmp_path):
    packed = written(tmp_path, gzip.compress("é\tE\n".encode()), "pairs.tsv.gz")
    assert read_pairs(packed).sources == ("é",)
    words = "tea T IY1\nread R EH1 D # past\nread(2) R IY1 D\n"
    for path in (
        written(tmp_path, words, "words.dict"),
        written(tmp_path, gzip.compress(words.encode()), "words.dict.gz"),
    ):
        assert read_pairs(path).targets == ("T IY", "R EH D", "R IY D")
        assert read_pairs(path, stress=True).targets[0] == "T IY1"
        assert read_pairs(path).lines == (1, 2, 3)
        assert read_sources(path) == (["tea", "read", "read"], [1, 2, 3])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("tea\tT IY\ncoffee K AO\n", r"pairs\.tsv:2: there is no tab in 'coffee K AO'; a line is source, tab, target"),
        ("tea\tT IY\n\ncoffee\tK\n", r"pairs\.tsv:2: the line is empty"),
        ("tea\tT\tIY\n", r"pairs\.tsv:1: there are 3 columns; two are needed"),
        ("tea\tT\n \tIY\n", r"pairs\.tsv:2: the source is empty"),
        ("tea\tT\ncoffee\t\n", r"pairs\.tsv:2: the target is empty"),
        (b"tea\tT\ncaf\xe9\tK\n", r"pairs\.tsv:2: byte 0xe9 is no UTF-8 text"),
        ("tea\tT\n".encode("utf-16"), r"pairs\.tsv: this text is UTF-16"),
        ("", r"pairs\.tsv: the file is empty"),
        ("\n\n", r"pairs\.tsv:1: the line is empty"),
    ],
)
def test_bad_lines_are_named(tmp_path, content, message):
    with pytest.raises(InputError, match=message) as error:
        read_pairs(written(tmp_path, content))
    assert "\n" not in str(error.value)


def test_bad_files_are_named(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.tsv: there is no such file"):
        read_pairs(tmp_path / "nothing.tsv")
    with pytest.raises(InputError, match="this is a folder"):
        read_pairs(tmp_path)
    with pytest.raises(InputError, match=r"cut\.tsv\.gz: the gzip compression is damaged"):
        read_pairs(written(tmp_path, gzip.compress(b"a\tb\n" * 99)[:-9], "cut.tsv.gz"))
    with pytest.raises(InputError, match=r"words\.dict:2: 'tea' has no pronunciation"):
        read_pairs(written(tmp_path, "a AH0\ntea\n", "words.dict"))
    with pytest.raises(InputError, match="there is no pair in this file"):
        read_pairs(written(tmp_path, ";;; nothing\n", "words.dict"))


def test_sources_are_lines_or_first_columns(tmp_path):
    assert read_sources(written(tmp_path, "tea\nno tea\n", "sources.txt")) == (["tea", "no tea"], [1, 2])
    assert read_sources(written(tmp_path, "tea\tT IY\n")) == (["tea"], [1])
    with pytest.raises(InputError, match=r"sources\.txt:2: the source is empty"):
        read_sources(written(tmp_path, "tea\n\ncoffee\n", "sources.txt"))


def test_tokens_of_each_kind():
    assert tokenize("né a", "character") == ["n", "é", " ", "a"]
    assert tokenize("  T\u00a0IY  N ", "space") == ["T", "IY", "N"]
    assert tokenize("C(Cl) Br", "regex:Cl|Br|[A-Z()]") == ["C", "(", "Cl", ")", "Br"]
    assert tokenize("ab", "regex:x*|.") == ["a", "b"]  # empty matches are no tokens
    with pytest.raises(ValueError, match="'7' is no token of"):
        tokenize("C7", "regex:[A-Z]")
    with pytest.raises(ValueError, match="is no regular expression"):
        tokenize("C", "regex:[")
    with pytest.raises(ValueError, match="is not one of 'character', 'space', 'regex:"):
        tokenize("C", "word")
    assert join(["a", "b"], "character") == "ab"
    assert join(["a", "b"], "regex:.") == "a b"


def test_a_side_without_tokens_or_with_too_many_is_named(tmp_path):
    path = written(tmp_path, "ok\tT\n" + "a" * (MOST_TOKENS + 1) + "\tT\n")
    with pytest.raises(InputError, match=r"pairs\.tsv:2: the source has 2,001 tokens; 2,000 are the most"):
        token_rows(read_pairs(path), "source", "character")
    with pytest.raises(InputError, match="pair 2: the target is empty"):
        token_rows(as_pairs([("a", "T"), ("b", "  ")]), "target", "space")
    with pytest.raises(InputError, match="pair 1: the source does not fit: '1' is no token"):
        token_rows(as_pairs([("a1", "T")]), "source", "regex:[a-z]")


def test_pairs_are_tuples_of_two_texts():
    pairs = as_pairs([("a", "b")])
    assert as_pairs(pairs) is pairs
    assert isinstance(pairs, Pairs)
    assert len(pairs) == 1
    for bad in ([("a", "b", "c")], ["ab"], [("a", 1)]):
        with unchecked_annotations(), pytest.raises(TypeError, match=r"pair 1 is .*; a tuple of two texts is needed"):
            as_pairs(bad)


def test_vocabulary_gives_ids_from_four_on_and_unk_to_the_rest():
    vocabulary = Vocabulary.of([["b", "a", "b"], ["c"]], min_count=1)
    assert vocabulary.tokens == ("a", "b", "c")
    assert len(vocabulary) == 7
    assert vocabulary.encode(["a", "c", "z"]) == [4, 6, 3]
    assert vocabulary.decode([1, 6, 4, 3, 2, 0]) == ["c", "a", "<unk>"]
    assert vocabulary.first_unknown(["a", "z", "y"]) == "z"
    assert vocabulary.first_unknown(["a"]) is None
    assert "a" in vocabulary
    assert "z" not in vocabulary
    assert Vocabulary.of([["b", "a", "b"], ["c"]], min_count=2) == Vocabulary(["b"])
    assert Vocabulary(["<pad>"]).encode(["<pad>"]) == [4]  # a token of the text, not the padding
    for bad, message in (
        (["a", "a"], "'a' is there twice"),
        ([""], "cannot be a token"),
        (["a\nb"], "cannot be a token"),
    ):
        with pytest.raises(ValueError, match=message):
            Vocabulary(bad)


def test_padding_is_zero_behind_each_row():
    ids, lengths = padded([[4, 5, 6], [7]])
    assert ids.tolist() == [[4, 5, 6], [7, 0, 0]]
    assert lengths.tolist() == [3, 1]
    assert ids.dtype == lengths.dtype == torch.int64


def test_pairs_that_would_not_fit_into_memory_are_refused(monkeypatch):
    pairs, sides = as_pairs([("a", "b")] * 3), ([["a"], ["a"], ["a"] * 5], [["b"]] * 3)
    for memory, fits in ((8 * 3 * (5 + 1), True), (8 * 3 * (5 + 1) - 1, False)):
        monkeypatch.setattr("tenfold.files.limits.memory", lambda memory=memory: memory)
        if fits:
            require_room(pairs, *sides)
        else:
            with pytest.raises(InputError, match=r"the pairs: needs 144 bytes of memory.*leave out the longest pairs"):
                require_room(pairs, *sides)
