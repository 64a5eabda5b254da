"""The model of text: its outputs, its folder, and what it refuses."""

import json
from pathlib import Path

import pytest
import torch

from tenfold.errors import InputError
from tenfold.raml.data import Vocabulary
from tenfold.raml.model import Seq2SeqModel


def made(**options):
    torch.manual_seed(2)
    vocabularies = Vocabulary("abcd"), Vocabulary(["A", "B", "CH"])
    return Seq2SeqModel(*vocabularies, **{"width": 8, "target_tokens": "space", "max_length": 6, **options}).eval()


@pytest.mark.parametrize("network", ["gru", "transformer"])
def test_a_folder_brings_the_model_back(tmp_path, network):
    model = made(network=network, source_tokens="regex:[a-d]", rare_as_unknown=True)
    model.save_pretrained(tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
        "vocabulary.txt",
    }
    again = Seq2SeqModel.from_pretrained(tmp_path / "model")
    assert again.source_vocabulary == model.source_vocabulary
    assert again.target_vocabulary == model.target_vocabulary
    assert again.source_tokens == "regex:[a-d]"
    assert again.rare_as_unknown
    assert again.predict(["abc", "d"]) == model.predict(["abc", "d"])
    assert json.loads((tmp_path / "model" / "config.json").read_text())["network"] == network


def test_any_token_survives_the_folder(tmp_path):
    tokens = [" ", "\t", "\r", "é", "\u2028", "#", "source", "<unk>", "a\tb"]
    model = Seq2SeqModel(Vocabulary(tokens), Vocabulary(reversed(tokens)), width=4)
    model.save_pretrained(tmp_path / "model")
    again = Seq2SeqModel.from_pretrained(tmp_path / "model")
    assert again.source_vocabulary.tokens == tuple(tokens)
    assert again.target_vocabulary.tokens == tuple(reversed(tokens))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_predictions_do_not_depend_on_the_other_sources(beam_size, monkeypatch):
    model = made()
    sources = ["abcd", "a", "ba", "ddddcccc", "a"]
    together = model.predict(sources, beam_size=beam_size)
    monkeypatch.setattr("tenfold.raml.model.DECODED_AT_ONCE", 1)  # each by itself
    for source, one, other in zip(sources, together, model.predict(sources, beam_size=beam_size), strict=True):
        assert one.tokens == other.tokens == model.predict([source], beam_size=beam_size)[0].tokens
        assert one.score == pytest.approx(other.score, abs=1e-5)
        assert one.text == " ".join(one.tokens)
    assert model.predict([]) == []


def test_a_token_that_the_model_does_not_know_is_named_with_its_line():
    model = made()
    with pytest.raises(InputError, match=r"^words\.txt:7: the model's vocabulary has no 'x'; it has a b c d$"):
        model.predict(["ab", "axb"], path="words.txt", lines=[3, 7])
    with pytest.raises(InputError, match=r"^pair 2: the model's vocabulary has no 'x'"):
        model.predict(["ab", "axb"])
    assert len(made(rare_as_unknown=True).predict(["axb"])) == 1
    with pytest.raises(InputError, match=r"words\.txt:9: the source is empty"):
        model.predict([""], path="words.txt", lines=[9])


def test_prediction_leaves_the_mode_of_the_model():
    model = made(dropout=0.5).train()
    assert model.predict(["ab"]) == model.predict(["ab"])  # without dropout
    assert model.training


def test_a_damaged_folder_is_named(tmp_path):
    made().save_pretrained(tmp_path / "model")
    path: Path = tmp_path / "model" / "vocabulary.txt"
    text = path.read_text()
    for content, message in (
        (text + "target\tA\n", r"vocabulary\.txt: the token 'A' is there twice"),
        ("source\ta\nnothing\n", r"vocabulary\.txt:2: a line is source or target, a tab, and a token"),
        (text.replace("source\td\n", ""), "has shape"),  # one token less than the weights know
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            Seq2SeqModel.from_pretrained(tmp_path / "model")
    path.write_bytes(b"source\t\xff\n")
    with pytest.raises(InputError, match=r"vocabulary\.txt: this vocabulary is no UTF-8 text"):
        Seq2SeqModel.from_pretrained(tmp_path / "model")
    path.unlink()
    with pytest.raises(InputError, match=r"this is no model folder: it has no vocabulary\.txt"):
        Seq2SeqModel.from_pretrained(tmp_path / "model")


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match="network='lstm' is not one of 'gru', 'transformer'"):
        made(network="lstm")
    with pytest.raises(ValueError, match="target_tokens='word' is not one of"):
        made(target_tokens="word")
    with pytest.raises(ValueError, match="max_length=0"):
        made(max_length=0)
    with pytest.raises(ValueError, match="beam_size=0"):
        made().predict(["a"], beam_size=0)
