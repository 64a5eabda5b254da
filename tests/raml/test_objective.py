"""The objective on sampled targets: padding, weights, label smoothing, and divergence and entropy by enumeration."""

import inspect
import itertools
import math

import pytest
import torch
from torch.nn import functional

from tenfold.raml import HammingPayoff
from tenfold.raml.objective import raml_loss, raml_report

DOUBLE = torch.float64


def padded(labels, width, value=-100):
    return functional.pad(labels, (0, width - labels.shape[1]), value=value)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_padding_changes_nothing(reduction, weighted):
    # transformers#5919: the loss was divided by the padded size
    logits = torch.randn(3, 9, 120, dtype=DOUBLE)
    labels = torch.randint(0, 120, (3, 4))
    labels[0, 2:] = -100
    weight = torch.tensor([0.2, 0.3, 0.5], dtype=DOUBLE) if weighted else None
    narrow = raml_loss(logits[:, :4], labels, weight, reduction=reduction)
    wide = raml_loss(logits, padded(labels, 9), weight, reduction=reduction)
    torch.testing.assert_close(wide, narrow, rtol=1e-14, atol=1e-14)


def test_mean_is_over_tokens():
    logits = torch.randn(2, 3, 5, dtype=DOUBLE)
    labels = torch.tensor([[1, 2, 3], [4, -100, -100]])
    log_p = logits.log_softmax(-1)
    by_hand = -(log_p[0, 0, 1] + log_p[0, 1, 2] + log_p[0, 2, 3] + log_p[1, 0, 4]) / 4
    torch.testing.assert_close(raml_loss(logits, labels), by_hand)
    torch.testing.assert_close(raml_loss(logits, labels, reduction="sum"), 4 * by_hand)


def test_weights_multiply_rows_and_are_divided_by_their_tokens():
    logits = torch.randn(2, 3, 5, dtype=DOUBLE)
    labels = torch.tensor([[1, 2, 3], [4, -100, -100]])
    weight = torch.tensor([0.25, 0.75], dtype=DOUBLE)
    rows = raml_loss(logits, labels, reduction="none")
    torch.testing.assert_close(raml_loss(logits, labels, weight, reduction="none"), rows * weight)
    expected = (rows * weight).sum() / (3 * 0.25 + 1 * 0.75)
    torch.testing.assert_close(raml_loss(logits, labels, weight), expected)
    torch.testing.assert_close(raml_loss(logits, labels, 7 * weight), expected)
    torch.testing.assert_close(raml_loss(logits, labels, torch.ones(2, dtype=DOUBLE)), raml_loss(logits, labels))


def test_padding_is_never_a_token():
    # OpenNMT-py#1463: -100 as an index counts from the end and meets a real entry of a vocabulary of 100 or more
    logits = torch.zeros(1, 2, 120, requires_grad=True)
    raml_loss(logits, torch.tensor([[5, -100]])).backward()
    assert logits.grad[0, 1].abs().max() == 0
    assert logits.grad[0, 0, 20] == pytest.approx(1 / 120)  # 120 - 100: only its share of the softmax
    with pytest.raises(IndexError):
        raml_loss(logits, torch.tensor([[5, -7]]))


def test_a_batch_without_tokens_has_loss_zero_and_zero_gradient():
    logits = torch.randn(2, 3, 5, requires_grad=True)
    labels = torch.full((2, 3), -100)
    for weight in (None, torch.ones(2)):
        loss = raml_loss(logits, labels, weight)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss == 0
        assert gradient.abs().max() == 0


def test_half_precision_is_summed_in_float32():
    logits = torch.randn(64, 50, 11, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, 11, (64, 50), generator=torch.Generator().manual_seed(1))
    exact = raml_loss(logits.half().double(), labels, reduction="sum")
    assert raml_loss(logits.half(), labels, reduction="sum").item() == pytest.approx(exact.item(), rel=1e-5)


def test_compiled_in_one_graph():
    plain = inspect.unwrap(raml_loss)  # without the checks of types, which these tests add
    compiled = torch.compile(plain, backend="eager", fullgraph=True)
    logits, labels, weight = torch.randn(2, 3, 5), torch.tensor([[1, 2, -100], [0, 1, 2]]), torch.tensor([0.4, 0.6])
    torch.testing.assert_close(compiled(logits, labels, weight), raml_loss(logits, labels, weight))


@pytest.mark.parametrize(("vocab_size", "tau", "scale"), [(3, 0.8, "paper"), (4, 0.5, "raw"), (3, 2.0, "raw")])
def test_hamming_targets_on_a_clean_history_are_label_smoothing(vocab_size, tau, scale):
    payoff = HammingPayoff(vocab_size, tau, scale=scale)
    reference = torch.randint(0, vocab_size, (1, 4))
    logits = torch.randn(1, 4, vocab_size, dtype=DOUBLE)  # of a decoder that reads the reference, whatever the label
    strings = torch.tensor(list(itertools.product(range(vocab_size), repeat=4)))
    q = payoff.log_prob(strings, reference).exp()
    expected = (q * raml_loss(logits.expand(len(strings), -1, -1), strings, reduction="none")).sum() / 4
    w = math.exp(-1 / payoff.raw_tau)
    rate = (vocab_size - 1) * w / (1 + (vocab_size - 1) * w)
    smoothed = functional.cross_entropy(logits[0], reference[0], label_smoothing=rate * vocab_size / (vocab_size - 1))
    torch.testing.assert_close(expected, smoothed, rtol=1e-12, atol=0)


def autoregressive_logits(table, strings):
    """Logits that depend on the token before; the first row is that of the start."""
    history = functional.pad(strings[:, :-1] + 1, (1, 0), value=0)
    return table[history]


def test_report_splits_the_loss_into_divergence_and_entropy():
    # OpenNMT-py#462: perplexity looked wrong under smoothing. Here over all strings, weighted by q itself
    vocab_size, payoff = 3, HammingPayoff(3, 0.7, scale="raw")
    table = torch.randn(vocab_size + 1, vocab_size, dtype=DOUBLE)
    reference = torch.tensor([[0, 2, 1]])
    strings = torch.tensor(list(itertools.product(range(vocab_size), repeat=3)))
    log_q = payoff.log_prob(strings, reference)
    log_p = -raml_loss(autoregressive_logits(table, strings), strings, reduction="none")
    report = raml_report(
        autoregressive_logits(table, strings), strings, autoregressive_logits(table, reference), reference,
        payoff.entropy(reference), weight=log_q.exp(),
    )  # fmt: skip
    q = log_q.exp()
    torch.testing.assert_close(report.kl, (q * (log_q - log_p)).sum() / 3, rtol=1e-12, atol=0)
    torch.testing.assert_close(report.entropy, -(q * log_q).sum() / 3, rtol=1e-12, atol=0)
    torch.testing.assert_close(report.loss, -(q * log_p).sum() / 3, rtol=1e-12, atol=0)
    own = log_p[(strings == reference).all(1)].item()
    assert report.perplexity == pytest.approx(math.exp(-own / 3), rel=1e-12)


def test_report_of_several_samples_averages_them():
    logits, labels = torch.randn(4, 2, 5), torch.randint(0, 5, (4, 2))
    reference_logits, reference = torch.randn(2, 2, 5), torch.randint(0, 5, (2, 2))
    report = raml_report(logits, labels, reference_logits, reference, torch.zeros(2))
    torch.testing.assert_close(report.loss, raml_loss(logits, labels))
    torch.testing.assert_close(report.nll, raml_loss(reference_logits, reference))
    with pytest.raises(ValueError, match="labels has 3 rows, which is no multiple of the 2 references"):
        raml_report(logits[:3], labels[:3], reference_logits, reference, torch.zeros(2))


def test_loss_falls_from_a_random_start():
    # nematus#40: risk training from scratch collapses; this objective is a cross-entropy and needs no warm start
    generator = torch.Generator().manual_seed(0)
    payoff = HammingPayoff(6, 0.3, scale="raw")
    reference = torch.tensor([[0, 1, 2, 3, 4, 5]]).repeat(16, 1)
    table = torch.randn(7, 6, generator=generator).requires_grad_()
    optimizer, losses = torch.optim.Adam([table], lr=0.1), []
    for _ in range(50):
        labels, _ = payoff.sample(reference, generator=generator)
        loss = raml_loss(autoregressive_logits(table, labels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_mistakes_are_named():
    logits, labels = torch.zeros(1, 2, 3), torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(ValueError, match="reduction='max' is not one of 'mean', 'sum', 'none'"):
        raml_loss(logits, labels, reduction="max")
    with pytest.raises(ValueError, match="weight must be finite and not negative"):
        raml_loss(logits, labels, torch.tensor([math.nan]))
