"""The networks: what padding, batch and caches must not change, and what the formulas say."""

import math

import pytest
import torch

from tenfold.raml.objective import raml_loss
from tenfold.raml.seq2seq import BOS, PAD, AttentionGRU, SmallTransformer
from tenfold.raml.training import shifted

NETWORKS = {
    "gru": lambda **options: AttentionGRU(9, 8, **{"width": 12, **options}),
    "gru of two layers": lambda **options: AttentionGRU(9, 8, **{"width": 12, "layers": 2, **options}),
    "transformer": lambda **options: SmallTransformer(9, 8, **{"width": 12, **options}),
}


@pytest.fixture(params=NETWORKS)
def network(request):
    torch.manual_seed(5)
    return NETWORKS[request.param]().double().eval()


def batch():
    generator = torch.Generator().manual_seed(0)
    source, target = (torch.randint(4, high, (5, 6), generator=generator) for high in (9, 8))
    lengths, target_lengths = torch.tensor([6, 2, 1, 4, 3]), torch.tensor([1, 6, 3, 2, 5])
    places = torch.arange(6)
    return (
        source.masked_fill(places >= lengths[:, None], PAD),
        lengths,
        target.masked_fill(places >= target_lengths[:, None], PAD),
        target_lengths,
    )


def widened(ids, width, filler):
    return torch.cat([ids, torch.full((len(ids), width), filler)], 1)


def test_padding_of_sources_changes_nothing(network):
    source, lengths, target, _ = batch()
    inputs, _ = shifted(target, torch.full((5,), 6))
    expected = network(source, lengths, inputs)
    for filler in (PAD, 7):  # whatever stands there
        torch.testing.assert_close(network(widened(source, 4, filler), lengths, inputs), expected, rtol=0, atol=1e-12)


def test_a_row_does_not_depend_on_the_others(network):
    source, lengths, target, target_lengths = batch()
    inputs, _ = shifted(target, target_lengths)
    together = network(source, lengths, inputs, target_lengths + 1)
    for row in range(5):
        alone = network(source[row, None, : lengths[row]], lengths[row, None], inputs[row, None])
        count = target_lengths[row] + 1
        torch.testing.assert_close(together[row, :count], alone[0, :count], rtol=0, atol=1e-12)


# transformers#5919: a loss must not be divided by the padded size
def test_loss_and_gradient_do_not_depend_on_the_padded_width(network):
    source, lengths, target, target_lengths = batch()
    found = []
    for width in (0, 3, 9):
        inputs, labels = shifted(widened(target, width, PAD), target_lengths)
        loss = raml_loss(network(widened(source, width, PAD), lengths, inputs, target_lengths + 1), labels)
        found.append((loss, torch.autograd.grad(loss, network.output.weight)[0]))
    for loss, gradient in found[1:]:
        torch.testing.assert_close(loss, found[0][0], rtol=1e-12, atol=0)
        torch.testing.assert_close(gradient, found[0][1], rtol=0, atol=1e-12)


def test_decoder_sees_nothing_of_later_inputs(network):
    source, lengths, target, _ = batch()
    inputs, _ = shifted(target, torch.full((5,), 6))
    changed = inputs.clone()
    changed[:, 3:] = 4
    torch.testing.assert_close(
        network(source, lengths, inputs)[:, :3], network(source, lengths, changed)[:, :3], rtol=0, atol=1e-12
    )
    assert (network(source, lengths, inputs)[:, 4] - network(source, lengths, changed)[:, 4]).abs().max() > 1e-3


def test_step_by_step_is_all_at_once(network):
    source, lengths, target, _ = batch()
    inputs, _ = shifted(target, torch.full((5,), 6))
    memory = network.encode(source, lengths)
    state, logits = memory.state, []
    for tokens in inputs.unbind(1):
        step, state = network.step(tokens, state, memory)
        logits.append(step)
    torch.testing.assert_close(torch.stack(logits, 1), network(source, lengths, inputs), rtol=0, atol=1e-12)


def test_repeated_sources_are_like_sources_given_twice(network):
    source, lengths, target, _ = batch()
    inputs, _ = shifted(target, torch.full((5,), 6))
    twice = network.decode(inputs.repeat_interleave(2, 0), network.encode(source, lengths).repeated(2))
    torch.testing.assert_close(twice[1::2], network(source, lengths, inputs), rtol=0, atol=1e-12)


@torch.no_grad()
def test_attention_is_the_weighted_mean_of_the_encoders_states():
    torch.manual_seed(0)
    network = AttentionGRU(9, 8, width=4).double().eval()
    memory = network.encode(torch.tensor([[4, 5, 6, 0]]), torch.tensor([3]))
    logits, state = network.step(torch.tensor([BOS]), memory.state, memory)
    hidden = state[0][0, 0]
    scores = [float((network.to_query.weight @ hidden) @ memory.values[0, place]) for place in range(3)]
    shares = [math.exp(score) / sum(map(math.exp, scores)) for score in scores]
    context = sum(share * memory.values[0, place] for place, share in enumerate(shares))
    combined = torch.tanh(network.combine.weight @ torch.cat([hidden, context]) + network.combine.bias)
    torch.testing.assert_close(logits[0], network.output.weight @ combined + network.output.bias, rtol=0, atol=1e-12)


def test_positions_are_told_apart_by_the_transformer():
    torch.manual_seed(0)
    network = SmallTransformer(9, 8, width=12).eval()
    forth, back = (
        network(torch.tensor([order]), torch.tensor([3]), torch.tensor([[BOS]])) for order in ([4, 5, 6], [6, 5, 4])
    )
    assert (forth - back).abs().max() > 1e-3


def test_dropout_works_while_training_only():
    for make in NETWORKS.values():
        network = make(dropout=0.5)
        source, lengths, target, _ = batch()
        first, second = (network.train()(source, lengths, target) for _ in range(2))
        assert not torch.equal(first, second)
        first, second = (network.eval()(source, lengths, target) for _ in range(2))
        assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AttentionGRU(0, 8), "source_size=0 must be an integer of at least 1"),
        (lambda: AttentionGRU(9, 8, width=-1), "width=-1 must be an integer of at least 1"),
        (lambda: AttentionGRU(9, 8, dropout=1.0), "dropout=1.0 must be at least 0 and below 1"),
        (lambda: SmallTransformer(9, 8, width=10, heads=4), "width=10 must be even and a multiple of heads=4"),
        (lambda: SmallTransformer(9, 8, layers=0), "layers=0 must be an integer of at least 1"),
    ],
)
def test_wrong_sizes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
