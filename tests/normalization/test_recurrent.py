"""Batch normalization in recurrent networks, against loops in NumPy written from the papers' equations."""

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from tenfold.normalization.recurrent import BatchNormLSTM, SequenceBatchNormLSTM
from type_checking import unchecked_annotations

LENGTHS = (7, 3, 2, 5)


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def standardized(a, eps=1e-5):
    return (a - a.mean(0)) / np.sqrt(a.var(0) + eps)


def numpy_of(module):
    return {name: tensor.detach().numpy().copy() for name, tensor in module.state_dict().items()}


def reference(module, x, lengths):
    """Cooijmans et al., section 3, one step after the other on the rows that still run; also the statistics of each step."""
    p = numpy_of(module)
    steps, batch, _ = x.shape
    h, c = np.zeros((batch, module.hidden_size)), np.zeros((batch, module.hidden_size))
    output = np.zeros((steps, batch, module.hidden_size))
    seen = []
    for t in range(steps):
        rows = np.array([t < n for n in lengths])
        wx, wh = x[t, rows] @ p["weight_ih"].T, h[rows] @ p["weight_hh"].T
        gates = p["gamma_hh"] * standardized(wh) + p["gamma_ih"] * standardized(wx) + p["bias"]
        i, f, g, o = np.split(gates, 4, axis=1)
        memory = sigmoid(f) * c[rows] + sigmoid(i) * np.tanh(g)
        c[rows] = memory
        h[rows] = sigmoid(o) * np.tanh(p["gamma_c"] * standardized(memory) + p["beta_c"])
        output[t, rows] = h[rows]
        seen.append((wx, wh, memory))
    return output, h, c, seen


@pytest.fixture
def lstm():
    torch.manual_seed(0)
    module = BatchNormLSTM(3, 4, max_length=5).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module


def batch(seed=1, steps=7, rows=4):
    return torch.randn(steps, rows, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def two_at_least(x, lengths):
    """The reference has no rule for one row: cut the steps that only one sequence reaches."""
    last = sorted(lengths)[-2]
    return x[:last], [min(n, last) for n in lengths]


def test_forward_is_the_papers_equations_with_padding_left_out(lstm):
    x, lengths = two_at_least(batch(), LENGTHS)
    output, (h, c) = lstm(x, lengths=torch.tensor(lengths))
    expected, expected_h, expected_c, _ = reference(lstm, x.numpy(), lengths)
    np.testing.assert_allclose(output.detach().numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(h.detach().numpy(), expected_h, atol=1e-12)
    np.testing.assert_allclose(c.detach().numpy(), expected_c, atol=1e-12)


def test_each_step_has_population_statistics_of_its_own(lstm):  # recurrent-batch-normalization-pytorch#1, bnlstm#7
    x = batch(steps=4)
    expected = reference(lstm, x.numpy(), [4] * 4)[3]
    lstm(x)
    for slot, moments in enumerate(expected):
        for name, values in zip("xhc", moments, strict=True):
            mean = 0.1 * values.mean(0)
            variance = 0.9 + 0.1 * values.var(0, ddof=1)
            np.testing.assert_allclose(lstm.get_buffer(f"running_mean_{name}")[slot].numpy(), mean, atol=1e-12)
            np.testing.assert_allclose(lstm.get_buffer(f"running_var_{name}")[slot].numpy(), variance, atol=1e-12)
    assert lstm.num_batches_tracked_h.tolist() == [1, 1, 1, 1, 0]
    assert bool((lstm.running_mean_h[4] == 0).all())


def test_later_steps_share_the_last_slot(lstm):  # recurrent-batch-normalization#6, Element-Research/rnn#252
    lstm(batch(steps=9))
    assert lstm.num_batches_tracked_c.tolist() == [1, 1, 1, 1, 5]
    lstm.eval()
    long = batch(seed=2, steps=40)
    output, _ = lstm(long)
    assert bool(torch.isfinite(output).all())
    prefix, _ = lstm(long[:9])
    torch.testing.assert_close(output[:9], prefix)


def test_evaluation_uses_population_statistics_and_does_not_depend_on_the_batch(lstm):
    for seed in range(3):
        lstm(batch(seed))
    lstm.eval()
    before = numpy_of(lstm)
    x = batch(9)
    together, _ = lstm(x)
    alone = torch.cat([lstm(x[:, row : row + 1])[0] for row in range(4)], dim=1)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-14)
    assert all(np.array_equal(before[name], value) for name, value in numpy_of(lstm).items())
    p, first = before, x[0].numpy()
    wx = (first @ p["weight_ih"].T - p["running_mean_x"][0]) / np.sqrt(p["running_var_x"][0] + 1e-5)
    wh = (0 - p["running_mean_h"][0]) / np.sqrt(p["running_var_h"][0] + 1e-5)
    i, _, g, o = np.split(p["gamma_ih"] * wx + p["gamma_hh"] * wh + p["bias"], 4, axis=1)
    c = sigmoid(i) * np.tanh(g)
    shown = p["gamma_c"] * (c - p["running_mean_c"][0]) / np.sqrt(p["running_var_c"][0] + 1e-5) + p["beta_c"]
    np.testing.assert_allclose(together[0].detach().numpy(), sigmoid(o) * np.tanh(shown), atol=1e-12)


@pytest.mark.parametrize("kind", [BatchNormLSTM, SequenceBatchNormLSTM])
@pytest.mark.parametrize("filler", [777.0, float("nan")])
def test_padding_enters_nothing(kind, filler):  # pytorch#70529, deepspeech.pytorch#312
    torch.manual_seed(0)
    arguments = {"max_length": 7} if kind is BatchNormLSTM else {}
    modules = [kind(3, 4, **arguments).double() for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    lengths = torch.tensor(LENGTHS)
    padding = torch.arange(7).unsqueeze(1) >= lengths
    x = batch()
    results = []
    for module, value in zip(modules, (0.0, filler), strict=True):
        given = x.masked_fill(padding.unsqueeze(-1), value).requires_grad_()
        output, (h, c) = module(given, lengths=lengths)
        (output.square().sum() + h.sum() + c.sum()).backward()
        results.append((output, h, c, given.grad, module.weight_ih.grad))
        assert bool((output[padding] == 0).all())
        assert bool((given.grad[padding] == 0).all())
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    assert all(torch.equal(a, b) for a, b in zip(modules[0].buffers(), modules[1].buffers(), strict=True))
    by_mask, _ = modules[0](x, mask=~padding)
    by_lengths, _ = modules[1](x, lengths=lengths)
    assert torch.equal(by_mask, by_lengths)


def test_a_packed_sequence_is_the_padded_one(lstm):
    sequences = [batch(row)[:n, 0] for row, n in enumerate(LENGTHS)]
    padded = torch.nn.utils.rnn.pad_sequence(sequences)
    twin = BatchNormLSTM(3, 4, max_length=5).double()
    twin.load_state_dict(lstm.state_dict())
    packed, (h, _) = lstm(pack_sequence(sequences, enforce_sorted=False))
    output, lengths = pad_packed_sequence(packed)
    expected, (expected_h, _) = twin(padded, lengths=torch.tensor(LENGTHS))
    assert lengths.tolist() == list(LENGTHS)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(h, expected_h)


def test_batch_first_and_given_state(lstm):
    x = batch()
    twin = BatchNormLSTM(3, 4, max_length=5, batch_first=True).double()
    twin.load_state_dict(lstm.state_dict())
    state = (torch.randn(4, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64))
    lengths = torch.tensor(LENGTHS)
    one, _ = lstm(x, state, lengths=lengths)
    other, _ = twin(x.transpose(0, 1), state, lengths=lengths)
    torch.testing.assert_close(one, other.transpose(0, 1))


def test_gradients_of_all_inputs_and_parameters(lstm):
    x, lengths = two_at_least(batch(), LENGTHS)
    names = [name for name, _ in lstm.named_parameters()]

    def run(x, *parameters):
        named = dict(zip(names, parameters, strict=True))
        buffers = {name: buffer.clone() for name, buffer in lstm.named_buffers()}
        output, (h, c) = torch.func.functional_call(lstm, (named, buffers), (x,), {"lengths": torch.tensor(lengths)})
        return output, h, c

    parameters = [parameter.detach().clone().requires_grad_() for parameter in lstm.parameters()]
    assert torch.autograd.gradcheck(run, (x.requires_grad_(), *parameters))


def test_gradient_passes_steps_with_one_row_through_the_population_statistics():
    torch.manual_seed(0)
    lstm = BatchNormLSTM(3, 4, max_length=7).double()
    x = batch().requires_grad_()
    lengths = torch.tensor([7, 3, 1, 5])

    def run(x):
        buffers = {name: buffer.clone() for name, buffer in lstm.named_buffers()}
        parameters = dict(lstm.named_parameters())
        return torch.func.functional_call(lstm, (parameters, buffers), (x,), {"lengths": lengths})[0]

    assert torch.autograd.gradcheck(run, (x,))


def test_one_row_is_an_error_where_asked():
    strict = BatchNormLSTM(3, 4, max_length=5, on_single="error")
    with pytest.raises(ValueError, match="one valid row at a step"):
        strict(torch.randn(7, 4, 3), lengths=torch.tensor([7, 3, 1, 5]))


def test_sequence_wise_statistics_run_over_batch_and_time():
    torch.manual_seed(0)
    lstm = SequenceBatchNormLSTM(3, 4).double()
    x, lengths = batch(), list(LENGTHS)
    p = numpy_of(lstm)
    output, _ = lstm(x, lengths=torch.tensor(lengths))
    valid = np.array([[t < n for n in lengths] for t in range(7)])
    products = x.numpy() @ p["weight_ih"].T
    mean, variance = products[valid].mean(0), products[valid].var(0)
    inputs = p["gamma_ih"] * (products - mean) / np.sqrt(variance + 1e-5) + p["bias"]
    h, c = np.zeros((4, 4)), np.zeros((4, 4))
    for t in range(7):
        rows = valid[t]
        i, f, g, o = np.split(inputs[t, rows] + h[rows] @ p["weight_hh"].T, 4, axis=1)
        c[rows] = sigmoid(f) * c[rows] + sigmoid(i) * np.tanh(g)
        h[rows] = sigmoid(o) * np.tanh(c[rows])
        np.testing.assert_allclose(output[t, rows].detach().numpy(), h[rows], atol=1e-12)
    np.testing.assert_allclose(lstm.running_mean_x.numpy(), 0.1 * mean, atol=1e-12)
    np.testing.assert_allclose(lstm.running_var_x.numpy(), 0.9 + 0.1 * variance * 17 / 16, atol=1e-12)


def test_a_bad_batch_stays_out_of_the_population_statistics(lstm):  # pytorch#1206
    before = numpy_of(lstm)
    x = batch()
    x[0, 0, 0] = float("inf")
    lstm(x)
    after = numpy_of(lstm)
    assert np.array_equal(before["running_mean_x"][0], after["running_mean_x"][0])
    assert all(np.isfinite(after[name]).all() for name in after)


def test_cumulative_average_of_batches():
    torch.manual_seed(0)
    lstm = SequenceBatchNormLSTM(3, 4, momentum=None).double()
    batches = [batch(seed) for seed in range(3)]
    for x in batches:
        lstm(x)
    means = [(x.numpy() @ lstm.weight_ih.detach().numpy().T).reshape(28, 16).mean(0) for x in batches]
    np.testing.assert_allclose(lstm.running_mean_x.numpy(), np.mean(means, axis=0), atol=1e-12)


def test_scales_start_at_a_tenth_and_noise_moves_the_first_state():
    torch.manual_seed(0)
    lstm = BatchNormLSTM(3, 4, max_length=2, initial_noise=0.5)
    assert bool((lstm.gamma_hh == 0.1).all())
    lstm(torch.randn(1, 64, 3))
    assert bool((lstm.running_mean_h[0] != 0).all())  # W_h h of noise; of a zero state it would be 0
    quiet = BatchNormLSTM(3, 4, max_length=2)
    quiet(torch.randn(1, 64, 3))
    assert bool((quiet.running_mean_h[0] == 0).all())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.zeros(7, 4, 2)}, r"x has shape \(7, 4, 2\)"),
        ({"x": torch.zeros(0, 4, 3)}, "no steps"),
        ({"x": torch.zeros(7, 4, 3), "lengths": torch.tensor([8, 1, 1, 1])}, "the input has 7 steps"),
        ({"x": torch.zeros(7, 4, 3), "lengths": torch.tensor([1, 1])}, "one length for each of 4"),
        ({"x": torch.zeros(7, 4, 3), "mask": torch.ones(4, 7, dtype=torch.bool)}, r"the input has \(7, 4\)"),
        (
            {
                "x": torch.zeros(7, 4, 3),
                "mask": torch.ones(7, 4, dtype=torch.bool),
                "lengths": torch.tensor([1, 1, 1, 1]),
            },
            "give one of them",
        ),
        ({"x": torch.zeros(7, 4, 3), "state": (torch.zeros(4, 4), torch.zeros(4, 5))}, "state c"),
    ],
)
def test_wrong_input_is_named(arguments, message):
    with unchecked_annotations(), pytest.raises(ValueError, match=message):
        BatchNormLSTM(3, 4, max_length=5)(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_length": 0},
        {"eps": 0.0},
        {"momentum": 0.0},
        {"momentum": 1.5},
        {"initial_noise": -1.0},
        {"on_single": "x"},
    ],
)
def test_wrong_arguments_are_named(arguments):
    with unchecked_annotations(), pytest.raises(ValueError, match=next(iter(arguments))):
        BatchNormLSTM(3, 4, **{"max_length": 5, **arguments})
