"""Measurements behind the claims of the paper: each a function of seed and scale that returns numbers and plots."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tenfold.claims import Curve, Measurement, Plot
from tenfold.raml.edit import EditPayoff
from tenfold.raml.hamming import HammingPayoff

DOUBLE = torch.float64
TAUS = (0.6, 0.7, 0.8)


FRESH = 100  # added to a seed: on the seeds 0 to 5 the steps and the batch of scale quick were chosen


def all_strings(symbols: int, length: int) -> Tensor:
    """Every string of that length, (symbols ** length, length), in the order of the numbers that they spell.

    >>> all_strings(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    return torch.tensor(list(itertools.product(range(symbols), repeat=length)), dtype=torch.long)


def _log_probs(logits: Sequence[Tensor], strings: Tensor, symbols: int) -> Tensor:
    """Log-probability of every string under a model with a distribution of the next token for each prefix."""
    total = torch.zeros(len(strings), dtype=DOUBLE)
    prefix = torch.zeros(len(strings), dtype=torch.long)
    for step, table in enumerate(logits):
        total = total + table.log_softmax(-1)[prefix, strings[:, step]]
        prefix = prefix * symbols + strings[:, step]
    return total


def _minimized(loss: Any, parameters: list[Tensor], steps: int) -> None:
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=steps, tolerance_grad=1e-13, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


def same_optimum(seed: int, scale: str) -> Measurement:
    """RAML and entropy-regularized expected reward, both minimized over models of all strings of four out of three tokens."""
    generator = torch.Generator().manual_seed(seed)
    symbols, length = 3, 4
    strings = all_strings(symbols, length)
    payoff = HammingPayoff(symbols, tau=0.7)
    reference = torch.randint(0, symbols, (1, length), generator=generator)
    log_q = payoff.log_prob(strings, reference)
    reward = -payoff.distance(strings, reference)
    q, tau = log_q.exp(), payoff.raw_tau
    steps = {"smoke": 200, "quick": 500, "full": 2000}[scale]
    found = {}
    for family in ("every prefix", "independent of the place"):
        for name in ("RAML", "expected reward"):
            prefixes = [symbols**step for step in range(length)] if family == "every prefix" else [1]
            logits = [torch.randn(n, symbols, dtype=DOUBLE, generator=generator).requires_grad_() for n in prefixes]

            def log_p(logits: list[Tensor] = logits) -> Tensor:
                if len(logits) == 1:
                    return logits[0].log_softmax(-1)[0, strings].sum(-1)
                return _log_probs(logits, strings, symbols)

            def loss(name: str = name, log_p: Any = log_p) -> Tensor:
                values = log_p()
                if name == "RAML":
                    return -(q * values).sum()
                return (values.exp() * (values - reward / tau)).sum()  # L_RL / tau

            _minimized(loss, logits, steps)
            with torch.no_grad():
                found[family, name] = log_p()

    def divergence(first: Tensor, second: Tensor) -> float:
        return max(0.0, float((first.exp() * (first - second)).sum()))

    rich = [found["every prefix", name] for name in ("RAML", "expected reward")]
    poor = [found["independent of the place", name] for name in ("RAML", "expected reward")]
    order = log_q.argsort(descending=True)
    plot = Plot(
        "Probability of each string at the optimum",
        "strings, by payoff",
        "probability",
        {
            "payoff distribution q": Curve(list(range(len(order))), q[order].tolist()),
            "RAML": Curve(list(range(len(order))), rich[0].exp()[order].tolist()),
            "expected reward": Curve(list(range(len(order))), rich[1].exp()[order].tolist()),
            "RAML, restricted model": Curve(list(range(len(order))), poor[0].exp()[order].tolist()),
            "expected reward, restricted model": Curve(list(range(len(order))), poor[1].exp()[order].tolist()),
        },
        y_log=True,
        caption="Where a model can represent q, three curves are one. A model that knows no places cannot, and the two differ.",
    )
    return Measurement(
        {
            "forward_kl_raml": divergence(log_q, rich[0]),
            "reverse_kl_raml": divergence(rich[0], log_q),
            "forward_kl_reward": divergence(log_q, rich[1]),
            "reverse_kl_reward": divergence(rich[1], log_q),
            "difference": float((rich[0].exp() - rich[1].exp()).abs().max()),
            "difference_restricted": float((poor[0].exp() - poor[1].exp()).abs().max()),
        },
        {"optimum": plot},
    )


def gradient_variance(seed: int, scale: str) -> Measurement:
    """Exact variance of one sample's gradient of the logits of all strings: RAML, REINFORCE, and with the best baseline."""
    generator = torch.Generator().manual_seed(seed)
    symbols, length = 3, {"smoke": 3, "quick": 5, "full": 6}[scale]
    strings = all_strings(symbols, length)
    payoff = HammingPayoff(symbols, tau=0.7)
    reference = torch.randint(0, symbols, (1, length), generator=generator)
    log_q = payoff.log_prob(strings, reference)
    scaled_reward = -payoff.distance(strings, reference) / payoff.raw_tau
    noise = 0.3 * torch.randn(len(strings), dtype=DOUBLE, generator=generator)
    shares = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    curves: dict[str, list[float]] = {"RAML": [], "REINFORCE": [], "REINFORCE, best baseline": []}
    for share in shares:  # of the way from a random model to the optimum
        log_p = (share * log_q + (1 - share) * noise).log_softmax(0)
        p, q = log_p.exp(), log_q.exp()
        square = 1 - 2 * p + p.square().sum()  # |e_y - p|^2, the score's
        curves["RAML"].append(float((q * square).sum() - (q - p).square().sum()))
        value = log_p - scaled_reward  # whose expectation under p is L_RL / tau
        mean = float((p * (value - (p * value).sum())).square().sum())  # the gradient's square
        baseline = (p * square * value).sum() / (p * square).sum()
        for name, shift in (("REINFORCE", 0.0), ("REINFORCE, best baseline", float(baseline))):
            curves[name].append(float((p * square * (value - shift).square()).sum()) - mean)
    ratios = {name: [v / r for v, r in zip(values, curves["RAML"], strict=True)] for name, values in curves.items()}
    plot = Plot(
        "Variance of one sample's gradient",
        "share of the way from a random model to the optimum",
        "variance",
        {name: Curve(shares, values) for name, values in curves.items()},
        y_log=True,
        caption=f"{len(strings)} strings, exact. At the optimum itself REINFORCE with the entropy's term has none.",
    )
    best = ratios["REINFORCE, best baseline"]
    return Measurement(
        {
            "ratio_start": ratios["REINFORCE"][0],
            "ratio_start_baseline": best[0],
            "ratio_half_way_baseline": best[5],
            "ratio_near_optimum_baseline": best[-1],
        },
        {"variance": plot},
    )


def samplers(seed: int, scale: str) -> Measurement:
    """Chi-square of samples against the enumerated distribution, a degree of freedom; and of paths without rejection."""
    generator = torch.Generator().manual_seed(seed)
    draws = {"smoke": 2_000, "quick": 200_000, "full": 2_000_000}[scale]
    symbols, longest = 2, 7
    references = {"hamming": torch.tensor([[0, 1, 0, 0, 1, 1]])}
    payoffs: dict[str, Any] = {
        "hamming": HammingPayoff(symbols, tau=0.8),
        "edit": EditPayoff(symbols, tau=0.8),
        "edit_without_rejection": EditPayoff(symbols, tau=0.8, exact=False),
    }
    numbers, bars = {}, {}
    for name, payoff in payoffs.items():
        reference = references.get(name, torch.tensor([[0, 1, 0, 0]]))
        exact = payoffs["edit"] if name != "hamming" else payoff
        lengths = [reference.shape[1]] if name == "hamming" else range(longest + 1)
        log_q = torch.cat([exact.log_prob(all_strings(symbols, n), reference) for n in lengths]).exp()
        ids, counts = payoff.sample(reference, n=draws, generator=generator)
        first = torch.tensor([symbols**n - 1 for n in range(int(counts.max()) + 1)])[counts]  # of all shorter strings
        places = torch.arange(ids.shape[1])
        power = (symbols ** (counts[:, None] - 1 - places).clamp(min=0)) * (places < counts[:, None])
        number = first + (ids * power).sum(1) - (symbols ** reference.shape[1] - 1 if name == "hamming" else 0)
        observed = torch.bincount(number.clamp(max=len(log_q)), minlength=len(log_q) + 1).double()
        expected = draws * torch.cat([log_q, (1 - log_q.sum()).clamp(min=0)[None]])
        common = expected >= 10
        observed = torch.cat([observed[common], observed[~common].sum()[None]])
        expected = torch.cat([expected[common], expected[~common].sum()[None]])
        kept = expected >= 10
        statistic = ((observed - expected).square() / expected)[kept].sum()
        numbers[f"chi_square_{name}"] = float(statistic / max(1, int(kept.sum()) - 1))
        bars[name.replace("_", " ")] = ((observed - expected) / expected.sqrt())[kept].tolist()
    plot = Plot(
        "Samples of the edit payoff against its probabilities",
        "string, by length and order",
        "deviation [standard errors]",
        {name: Curve(list(range(len(values))), values) for name, values in bars.items() if name != "hamming"},
        kind="scatter",
        caption=f"{draws:,} draws. Without the rejection step strings that several scripts make come out too often.",
    )
    return Measurement(numbers, {"deviations": plot})


def label_smoothing(seed: int, scale: str) -> Measurement:
    """Hamming payoff with a clean history: the expected loss over all labels, and torch's label smoothing."""
    generator = torch.Generator().manual_seed(seed)
    rows, symbols = {"smoke": 50, "quick": 2_000, "full": 20_000}[scale], 39
    difference = 0.0
    for tau in TAUS:
        payoff = HammingPayoff(symbols, tau)
        logits = torch.randn(rows, symbols, dtype=DOUBLE, generator=generator)
        right = torch.randint(0, symbols, (rows,), generator=generator)
        q = payoff.log_prob(torch.arange(symbols).repeat(rows)[:, None], right.repeat_interleave(symbols)[:, None])
        expected = -(q.exp().reshape(rows, symbols) * logits.log_softmax(-1)).sum(-1).mean()
        epsilon = payoff.rate * symbols / (symbols - 1)
        smoothed = functional.cross_entropy(logits, right, label_smoothing=epsilon)
        difference = max(difference, abs(float(expected - smoothed)))
    return Measurement({"difference": difference})


def _words(seed: int, count: int, tested: int) -> tuple[list[tuple[str, str]], list[str], list[Any]]:
    """Words to train on with their first pronunciations, and words to test with all of them."""
    from tenfold.datasets import cmudict

    dictionary = cmudict()
    train, test = dictionary.part("train"), dictionary.part("test")
    chosen = np.random.default_rng(seed).permutation(len(train))[:count]
    pairs = [(train.words[row], " ".join(train.pronunciations[row][0])) for row in chosen]
    letters = set().union(*(word for word, _ in pairs))  # a model refuses letters that it has never seen
    order = np.random.default_rng(1_000_003).permutation(len(test))  # the same words for every seed
    judged = [row for row in order if letters.issuperset(test.words[row])][:tested]
    return pairs, [test.words[row] for row in judged], [test.pronunciations[row] for row in judged]


def _phone_errors(
    seed: int, words: int, tested: int, methods: dict[str, dict[str, Any]], **settings: Any
) -> tuple[dict[str, float], dict[str, float]]:
    """Phone error rates and shares of wrong words in per cent, by method."""
    from tenfold.raml.scores import scores
    from tenfold.raml.training import fit_pairs

    pairs, unseen, right = _words(seed, words, tested)
    phones, wrong = {}, {}
    for name, method in methods.items():
        model, _ = fit_pairs(
            pairs, target_tokens="space", validation=0.0, seed=seed, device="cpu", progress=False, **settings, **method
        )
        outputs = [prediction.tokens for prediction in model.predict(unseen)]
        found = scores(right, outputs, replicates=0)
        phones[name], wrong[name] = 100 * found["error_rate"].value, 100 * found["wrong"].value
    return phones, wrong


def _methods(scale: str) -> dict[str, dict[str, Any]]:
    taus = TAUS if scale == "full" else (0.7,)
    raml: dict[str, dict[str, Any]] = {f"raml_{round(10 * tau)}": {"objective": "raml", "tau": tau} for tau in taus}
    usual: dict[str, dict[str, Any]] = {
        "ml": {"objective": "ml"},
        "smoothing": {"objective": "smoothing", "smoothing": 0.1},
    }
    return usual | raml


def _error_plot(phones: dict[str, float], wrong: dict[str, float], caption: str) -> Plot:
    ticks = {"ml": "ML", "smoothing": "label smoothing 0.1"}
    names = tuple(ticks.get(name, f"RAML 0.{name[-1]}") for name in phones)
    places = tuple(range(len(phones)))
    return Plot(
        "Words that training has not seen",
        "",
        "per cent, lower is better",
        {
            "phone error rate": Curve(places, list(phones.values())),
            "words with an error": Curve(places, list(wrong.values())),
        },
        kind="bar",
        ticks=names,
        caption=caption,
    )


def overfitting(seed: int, scale: str) -> Measurement:
    """Few words, many epochs, no dropout: phone error rates by ML, label smoothing and RAML."""
    words, tested, steps, width, batch_size = {
        "smoke": (60, 20, 3, 8, 16),
        "quick": (1_000, 2_000, 500, 64, 64),
        "full": (4_000, 3_000, 700, 128, 128),
    }[scale]
    seed += FRESH
    phones, wrong = _phone_errors(seed, words, tested, _methods(scale), steps=steps, width=width, batch_size=batch_size)
    plot = _error_plot(phones, wrong, f"{words:,} words of the CMU dictionary, {steps} steps, no dropout.")
    numbers = {
        "gain": phones["ml"] - phones["raml_7"],
        "gain_over_smoothing": phones["smoothing"] - phones["raml_7"],
        "gain_in_words": wrong["ml"] - wrong["raml_7"],
        "phones_ml": phones["ml"],
        "phones_smoothing": phones["smoothing"],
        "phones_raml": phones["raml_7"],
    }
    return Measurement(numbers, {"errors": plot})


def more_data(seed: int, scale: str) -> Measurement:
    """More words, few epochs, dropout: the same comparison where ML does not overfit."""
    words, tested, steps, width = {
        "smoke": (60, 20, 3, 8),
        "quick": (4_000, 2_000, 150, 64),
        "full": (10_000, 5_000, 1_200, 128),
    }[scale]
    methods = _methods(scale)
    del methods["smoothing"]
    phones, wrong = _phone_errors(seed, words, tested, methods, steps=steps, width=width, dropout=0.2)
    plot = _error_plot(phones, wrong, f"{words:,} words of the CMU dictionary, {steps} steps, dropout 0.2.")
    numbers = {
        "gain": phones["ml"] - phones["raml_7"],
        "phones_ml": phones["ml"],
        "phones_raml": phones["raml_7"],
    }
    return Measurement(numbers, {"errors": plot})


def step_cost(seed: int, scale: str) -> Measurement:
    """Processor time of training steps by ML and by RAML in turn, on the same batches of random words; medians."""
    from tenfold.raml.data import Vocabulary
    from tenfold.raml.model import Seq2SeqModel
    from tenfold.raml.objective import raml_loss
    from tenfold.raml.sampled_targets import stream_seeds
    from tenfold.raml.seq2seq import BOS, EOS, PAD, UNK
    from tenfold.raml.training import IGNORED, shifted

    rounds, width = {"smoke": (2, 16), "quick": (15, 64), "full": (300, 128)}[scale]
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    letters, phones = Vocabulary(map(chr, range(97, 123))), Vocabulary(f"P{number}" for number in range(39))
    model = Seq2SeqModel(letters, phones, width=width)
    optimizer = torch.optim.Adam(model.parameters())
    special = (PAD, BOS, EOS, UNK)
    payoffs: dict[str, Any] = {
        "ml": None,
        "hamming": HammingPayoff(len(phones), 0.7, exclude_ids=special),
        "edit": EditPayoff(len(phones), 0.7, exclude_ids=special),
    }
    times: dict[str, list[float]] = {name: [] for name in payoffs}
    sampling: dict[str, list[float]] = {name: [] for name in payoffs}
    for batch in range(rounds + 1):
        lengths = torch.randint(3, 10, (128,), generator=generator)
        source = torch.randint(4, len(letters), (128, 9), generator=generator)
        target = torch.randint(4, len(phones), (128, 9), generator=generator)
        for name, payoff in payoffs.items():
            start = time.thread_time()
            drawn, counts = target, lengths
            if payoff is not None:
                drawn, counts = payoff.sample(target, lengths, seeds=stream_seeds(seed, batch, range(128)), pad_id=PAD)
            drawn = drawn[:, : max(1, int(counts.max()))]
            middle = time.thread_time()
            inputs, labels = shifted(drawn, counts)
            loss = raml_loss(model(source, lengths, inputs, counts + 1), labels, None, IGNORED)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if batch:  # the first compiles
                sampling[name].append(middle - start)
                times[name].append(time.thread_time() - start)
    median = {name: float(np.median(values)) for name, values in times.items()}
    share = {name: float(np.median(sampling[name])) / median[name] for name in ("hamming", "edit")}
    plot = Plot(
        "Processor time of a step",
        "",
        "milliseconds",
        {"step": Curve((0, 1, 2), [1_000 * value for value in median.values()])},
        kind="bar",
        ticks=("ML", "RAML, Hamming", "RAML, edit"),
        caption=f"Batches of 128 words, width {width}. Targets of the edit payoff are longer, which the decoder pays for.",
    )
    return Measurement(
        {
            "ratio_hamming": median["hamming"] / median["ml"],
            "ratio_edit": median["edit"] / median["ml"],
            "sampling_share_hamming": share["hamming"],
            "sampling_share_edit": share["edit"],
        },
        {"time": plot},
    )
