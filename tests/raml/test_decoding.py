"""Decoding against the enumeration of every sequence."""

import itertools
import math

import pytest
import torch

from tenfold.raml.decoding import beam_search, greedy, sample
from tenfold.raml.objective import raml_loss
from tenfold.raml.seq2seq import PAD, AttentionGRU, SmallTransformer
from tenfold.raml.training import shifted

LONGEST = 3
LETTERS = (4, 5, 6)
EVERY = [letters for count in range(LONGEST + 1) for letters in itertools.product(LETTERS, repeat=count)]


@pytest.fixture(params=["gru", "transformer"])
def network(request):
    torch.manual_seed(3)
    network = (
        AttentionGRU(9, 7, width=8).double() if request.param == "gru" else SmallTransformer(9, 7, width=8).double()
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2.0)  # far from uniform
    return network.eval()


def sources():
    return torch.tensor([[4, 5, 6, 7], [8, 4, 0, 0], [5, 0, 0, 0]]), torch.tensor([4, 2, 1])


def enumerated(network, source, length):
    """Log-probability of every sequence of at most three letters, with its end."""
    rows = torch.tensor([[*letters, *[PAD] * (LONGEST - len(letters))] for letters in EVERY])
    inputs, labels = shifted(rows, torch.tensor([len(letters) for letters in EVERY]))
    logits = network(source.expand(len(EVERY), -1), length.expand(len(EVERY)), inputs)
    return (-raml_loss(logits, labels, None, -100, "none")).tolist()


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
def test_a_beam_that_holds_all_finds_the_best_of_all(network, length_penalty):
    source, lengths = sources()
    found = beam_search(network, source, lengths, LONGEST, beam_size=len(EVERY), length_penalty=length_penalty)
    for row in range(3):
        log_prob = enumerated(network, source[row, None], lengths[row, None])
        scores = [value / (len(letters) + 1) ** length_penalty for value, letters in zip(log_prob, EVERY, strict=True)]
        best = max(range(len(EVERY)), key=scores.__getitem__)
        assert tuple(found.ids[row, : found.lengths[row]].tolist()) == EVERY[best]
        assert float(found.scores[row]) == pytest.approx(scores[best], rel=1e-5)


@pytest.mark.parametrize("max_length", [1, 3, 12])
def test_one_beam_is_greedy(network, max_length):
    source, lengths = sources()
    one, other = beam_search(network, source, lengths, max_length, 1), greedy(network, source, lengths, max_length)
    assert torch.equal(one.lengths, other.lengths)
    assert torch.equal(one.ids, other.ids)


def test_greedy_takes_the_likeliest_token_each_time(network):
    source, lengths = sources()
    found = greedy(network, source, lengths, 6)
    for row in range(3):
        ids = found.ids[row, : found.lengths[row]].tolist()
        expected, tokens = [], [1]
        while len(expected) < 6:
            logits = network(source[row, None], lengths[row, None], torch.tensor([tokens]))[0, -1]
            logits[[0, 1, 3]] = -math.inf
            token = int(logits.argmax())
            if token == 2:
                break
            expected.append(token)
            tokens.append(token)
        assert ids == expected


def test_outputs_do_not_depend_on_the_batch(network):
    source, lengths = sources()
    for decode in (lambda *arguments: beam_search(*arguments, 4), greedy):
        together = decode(network, source, lengths, 8)
        for row in range(3):
            alone = decode(network, source[row, None, : lengths[row]], lengths[row, None], 8)
            count = int(alone.lengths[0])
            assert together.ids[row, :count].tolist() == alone.ids[0, :count].tolist()
            assert int(together.lengths[row]) == count
            assert float(together.scores[row]) == pytest.approx(float(alone.scores[0]), abs=1e-5)


def test_wider_beams_find_nothing_worse_up_to_the_whole(network):
    source, lengths = sources()
    wide = beam_search(network, source, lengths, LONGEST, len(EVERY), length_penalty=0.0).scores
    for beam_size in (1, 2, 5):
        assert bool(
            (beam_search(network, source, lengths, LONGEST, beam_size, length_penalty=0.0).scores <= wide + 1e-6).all()
        )


def test_samples_have_the_models_frequencies(network):
    source, lengths = sources()
    count = 4000
    drawn = sample(network, source[:1], lengths[:1], 1, count, generator=torch.Generator().manual_seed(0))
    logits = network(source[:1], lengths[:1], torch.tensor([[1]]))[0, 0].detach()
    logits[[0, 1, 3]] = -math.inf  # never put out, so the others share their probability
    probability = logits.softmax(0)
    first = torch.where(drawn.lengths == 0, 2, drawn.ids[:, 0])
    for token in (2, *LETTERS):
        p = float(probability[token])
        assert float((first == token).double().mean()) == pytest.approx(
            p, abs=4.5 * math.sqrt(p * (1 - p) / count) + 1e-9
        )


def test_low_temperature_samples_are_greedy(network):
    source, lengths = sources()
    drawn = sample(network, source, lengths, 6, 2, temperature=1e-4, generator=torch.Generator().manual_seed(0))
    likeliest = greedy(network, source, lengths, 6)
    assert torch.equal(drawn.ids[::2], likeliest.ids)
    assert torch.equal(drawn.ids[1::2], likeliest.ids)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda n, s, k: greedy(n, s, k, 0), "max_length=0"),
        (lambda n, s, k: beam_search(n, s, k, 3, 0), "beam_size=0"),
        (lambda n, s, k: beam_search(n, s, k, 3, 2, length_penalty=-1.0), "length_penalty=-1.0"),
        (lambda n, s, k: sample(n, s, k, 3, temperature=0.0), "temperature=0.0"),
    ],
)
def test_wrong_options_are_named(network, call, message):
    with pytest.raises(ValueError, match=message):
        call(network, *sources())
