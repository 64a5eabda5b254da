r"""Training of a sequence-to-sequence model on pairs, by one of four objectives, and one function from pairs to a model.

- ``"ml"``: maximum likelihood of the targets.
- ``"raml"``: that of targets drawn from the payoff distribution, anew at each step (Norouzi et al. 2016).
- ``"smoothing"``: maximum likelihood with label smoothing, the token-wise relative of the Hamming payoff.
- ``"risk"``: the expected error of the model's own samples (Shen et al. 2016), after a start by maximum likelihood.

Only the second draws targets. It does so by streams of (seed, epoch, example), so that neither the order of the data nor a
run that was stopped and resumed changes what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Int64
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import functional

from tenfold.raml.data import Pairs, Vocabulary, as_pairs, padded, require_room, token_rows
from tenfold.raml.decoding import greedy, sample
from tenfold.raml.edit import EditPayoff
from tenfold.raml.hamming import HammingPayoff
from tenfold.raml.metrics import closest_reference, edit_distances, error_rate
from tenfold.raml.model import Seq2SeqModel
from tenfold.raml.objective import raml_loss
from tenfold.raml.risk import first_occurrences, minimum_risk_loss
from tenfold.raml.sampled_targets import stream_seeds
from tenfold.raml.seq2seq import BOS, EOS, PAD, UNK, check_share, check_sizes
from tenfold.training import SeededLoader, seed_everything, seeded_generator, train

OBJECTIVES = ("ml", "raml", "smoothing", "risk")
PAYOFFS = ("edit", "hamming")
IGNORED = -100
FEWEST_STEPS, FEWEST_EPOCHS = 1_000, 20  # of a run whose length the user leaves open
STEPS_BETWEEN_VALIDATIONS = 50  # at least; epochs of small data are shorter
MOST_MEASURED = 5_000  # pairs of training on which the loss is measured when training is done

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Seq2SeqModule(LightningModule):
    """One objective on batches of (sources, lengths, targets, lengths, numbers of the examples), all ids padded.

    Args:
        model: The model.
        objective: ``"ml"``, ``"raml"``, ``"smoothing"`` or ``"risk"``.
        payoff: The distribution of targets; for ``"raml"``.
        schedule: The payoff's temperature at a step, from its number; None keeps it.
        samples: Targets drawn for each source and step; for ``"raml"``.
        smoothing: Share of the probability that is spread over the vocabulary; for ``"smoothing"``.
        candidates: Samples of the model for each source and step; for ``"risk"``. The target is one more.
        sharpness: The ``alpha`` of minimum-risk training.
        warm_steps: First steps by maximum likelihood; for ``"risk"``.
        learning_rate: Of Adam, at the start; falls to zero along a cosine over ``total_steps``.
        total_steps: Optimizer steps in all.
        seed: Of the drawn targets.
    """

    def __init__(
        self,
        model: Seq2SeqModel,
        *,
        objective: str = "ml",
        payoff: Any = None,
        schedule: Callable[[int], float] | None = None,
        samples: int = 1,
        smoothing: float = 0.1,
        candidates: int = 8,
        sharpness: float = 1.0,
        warm_steps: int = 0,
        learning_rate: float = 3e-3,
        total_steps: int = FEWEST_STEPS,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.payoff, self.schedule, self.samples = payoff, schedule, samples
        self.smoothing = smoothing
        self.candidates, self.sharpness, self.warm_steps = candidates, sharpness, warm_steps
        self.learning_rate, self.total_steps = learning_rate, total_steps
        self.seed = seed

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Cuts the padding that no row needs; while training by ``"raml"``, draws the targets (on the CPU)."""
        source, lengths, target, target_lengths, number = batch
        source = source[:, : int(lengths.max())]
        if self.objective == "raml" and self.trainer.training:
            target, target_lengths = self.drawn(target, target_lengths, number)
        return source, lengths, target[:, : max(1, int(target_lengths.max()))], target_lengths, number

    def drawn(
        self, target: Int64[Tensor, "batch width"], lengths: Int64[Tensor, " batch"], number: Int64[Tensor, " batch"]
    ) -> tuple[Int64[Tensor, "rows drawn"], Int64[Tensor, " rows"]]:
        """``samples`` targets for each row from the payoff distribution at this epoch and step."""
        payoff = self.payoff
        if self.schedule is not None:
            payoff = payoff.with_tau(float(self.schedule(self.trainer.global_step)))
        seeds = stream_seeds(self.seed, self.current_epoch, number.numpy())
        return payoff.sample(target, lengths, self.samples, seeds=seeds, pad_id=PAD)

    def training_step(self, batch: Batch) -> Tensor:
        """Loss of a batch, in nats a token; by ``"risk"``, in edits a token of the targets."""
        source, lengths, target, target_lengths, _ = batch
        if self.objective == "risk" and self.trainer.global_step >= self.warm_steps:
            loss = self.risk(source, lengths, target, target_lengths)
        else:
            repeats = len(target) // len(source)
            logits, labels = self.logits(source, lengths, target, target_lengths, repeats)
            if self.objective == "smoothing":
                loss = functional.cross_entropy(
                    logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, label_smoothing=self.smoothing
                )
            else:
                loss = raml_loss(logits, labels, None, IGNORED)
        if self.trainer.loggers:  # else it would cost time in each step, for nobody
            self.log("loss", loss.detach())
        return loss

    def logits(
        self, source: Tensor, lengths: Tensor, target: Tensor, target_lengths: Tensor, repeats: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Logits of the targets' tokens and of `EOS`, and these as labels; ``repeats`` targets for each source."""
        inputs, labels = shifted(target, target_lengths)
        memory = self.model.network.encode(source, lengths)
        if repeats > 1:
            memory = memory.repeated(repeats)
        return self.model.network.decode(inputs, memory, target_lengths + 1), labels

    def risk(self, source: Tensor, lengths: Tensor, target: Tensor, target_lengths: Tensor) -> Tensor:
        """Minimum-risk loss over samples of the model and the target; the cost is the edit distance a token."""
        self.model.eval()  # candidates are what the model would put out: no dropout
        longest = max(5, 2 * target.shape[1])
        drawn = sample(self.model.network, source, lengths, longest, self.candidates)
        self.model.train()
        width = max(target.shape[1], drawn.ids.shape[1])
        rows = functional.pad(drawn.ids, (0, width - drawn.ids.shape[1])).unflatten(0, (len(source), -1))
        own = functional.pad(target, (0, width - target.shape[1]))[:, None]
        ids = torch.cat([own, rows], 1)
        counts = torch.cat([target_lengths[:, None], drawn.lengths.unflatten(0, (len(source), -1))], 1)
        logits, labels = self.logits(source, lengths, ids.flatten(0, 1), counts.flatten(), ids.shape[1])
        log_prob = -raml_loss(logits, labels, None, IGNORED, "none").unflatten(0, ids.shape[:2])
        texts = [row[:count] for row, count in zip(ids.flatten(0, 1).tolist(), counts.flatten().tolist(), strict=True)]
        right = [texts[row - row % ids.shape[1]] for row in range(len(texts))]
        edits = torch.from_numpy(edit_distances(right, texts)).to(log_prob).unflatten(0, ids.shape[:2])
        cost = edits / target_lengths.clamp(min=1)[:, None]
        return minimum_risk_loss(log_prob, cost, sharpness=self.sharpness, counted=first_occurrences(ids))

    def validation_step(self, batch: Batch) -> None:
        """Logs the negative log-likelihood of the targets, in nats a token, whatever the objective."""
        logits, labels = self.logits(*batch[:4])
        self.log("val_loss", raml_loss(logits, labels, None, IGNORED), batch_size=int((labels != IGNORED).sum()))

    def configure_optimizers(self) -> Any:
        """Adam with a cosine that ends at zero."""
        fused = self.trainer.precision != "16-mixed"  # with float16 it would unscale by itself, which excludes clipping
        optimizer = torch.optim.Adam(self.parameters(), lr=self.learning_rate, fused=fused)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.total_steps)))
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def shifted(
    target: Int64[Tensor, "rows width"], lengths: Int64[Tensor, " rows"]
) -> tuple[Int64[Tensor, "rows steps"], Int64[Tensor, "rows steps"]]:
    """The decoder's inputs, `BOS` and the target, and its labels, the target and `EOS`; -100 in the labels' padding.

    >>> inputs, labels = shifted(torch.tensor([[7, 8], [9, 0]]), torch.tensor([2, 1]))
    >>> inputs.tolist(), labels.tolist()
    ([[1, 7, 8], [1, 9, 0]], [[7, 8, 2], [9, 2, -100]])
    """
    start = target.new_full((len(target), 1), BOS)
    places = torch.arange(target.shape[1] + 1, device=target.device)
    labels = torch.cat([target, start], 1).masked_fill(places == lengths[:, None], EOS)
    labels = labels.masked_fill(places > lengths[:, None], IGNORED)
    return torch.cat([start, target], 1), labels


def fit_pairs(
    pairs: Pairs | Iterable[tuple[str, str]],
    *,
    objective: str = "ml",
    tau: float = 0.7,
    scale: str = "paper",
    payoff: str = "edit",
    schedule: Callable[[int], float] | None = None,
    samples: int = 1,
    smoothing: float = 0.1,
    candidates: int = 8,
    sharpness: float = 1.0,
    warm_share: float = 0.5,
    source_tokens: str = "character",
    target_tokens: str = "character",
    min_count: int = 1,
    network: str = "gru",
    width: int = 128,
    layers: int = 1,
    dropout: float = 0.0,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int = 128,
    learning_rate: float = 3e-3,
    validation: float = 0.1,
    seed: int = 0,
    **trainer: Any,
) -> tuple[Seq2SeqModel, dict[str, float]]:
    """Train a `Seq2SeqModel` on pairs of texts.

    Args:
        pairs: Sources and targets; from `tenfold.raml.data.read_pairs`, or tuples of two texts.
        objective: ``"ml"``, ``"raml"``, ``"smoothing"`` or ``"risk"``.
        tau: Temperature of the payoff; for ``"raml"``.
        scale: Of the temperature: ``"paper"``, or ``"raw"`` for that of ``exp(-edits / tau)``.
        payoff: ``"edit"`` or ``"hamming"``.
        schedule: The temperature at a step, from its number, instead of ``tau``.
        samples: Targets drawn for each source and step; for ``"raml"``.
        smoothing: For ``"smoothing"``, from 0 to below 1.
        candidates: Samples of the model for each source and step; for ``"risk"``.
        sharpness: ``alpha`` of ``"risk"``; the paper's 0.005 is for sentences, and flat for short outputs.
        warm_share: Share of the steps that ``"risk"`` starts with by maximum likelihood: it learns nothing from a model
            that knows nothing.
        source_tokens: ``"character"``, ``"space"`` or ``"regex:..."``.
        target_tokens: The same, for targets.
        min_count: Rarer tokens are read as one unknown token.
        network: ``"gru"`` or ``"transformer"``.
        width: Width of the layers.
        layers: Layers of encoder and decoder.
        dropout: While training.
        epochs: Passes over the data; None: as many as make 1,000 steps, at least 20, unless ``steps`` says.
        steps: Optimizer steps; with both, what ends first.
        batch_size: Pairs a step.
        learning_rate: Adam's, at the start.
        validation: Share of the sources kept for validation, with all their targets, chosen by the seed; 0 keeps none.
        seed: Of everything random.
        trainer: Passed on to `tenfold.training.train` (device, checkpoint_dir, resume, logger, progress ...).

    Returns:
        The model in evaluation mode on the CPU, and what it reaches: ``loss``, the negative log-likelihood of the
        targets of training in nats a token (of 5,000 pairs at most), and with validation ``val_loss`` and
        ``val_error_rate``, edits a token of greedy outputs to the closest target of the source.

    Raises:
        InputError: Names the line or number of a pair that cannot be used.
        ValueError: Options out of range, no pairs, or a temperature that is not legal for the vocabulary.
    """
    sizes = {"samples": samples, "candidates": candidates, "min_count": min_count, "batch_size": batch_size}
    lengths = {name: size for name, size in (("epochs", epochs), ("steps", steps)) if size is not None}
    check_sizes(**sizes, **lengths)
    for name, share in (("smoothing", smoothing), ("validation", validation), ("warm_share", warm_share)):
        check_share(name, share)
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"learning_rate={learning_rate} must be a positive number")
    for name, value, known in (("objective", objective, OBJECTIVES), ("payoff", payoff, PAYOFFS)):
        if value not in known:
            raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, known))}")
    pairs = as_pairs(pairs)
    sources, targets = (
        token_rows(pairs, side, kind) for side, kind in (("source", source_tokens), ("target", target_tokens))
    )
    require_room(pairs, sources, targets)
    rows, kept = _parts(pairs.sources, validation, seed)
    if not rows:
        raise ValueError(f"{len(pairs)} pairs are too few with validation={validation:g}: nothing is left to train on")
    source_vocabulary, target_vocabulary = (
        Vocabulary.of((side[row] for row in rows), min_count) for side in (sources, targets)
    )
    seed_everything(seed)
    model = Seq2SeqModel(
        source_vocabulary,
        target_vocabulary,
        network=network,
        width=width,
        layers=layers,
        dropout=dropout,
        source_tokens=source_tokens,
        target_tokens=target_tokens,
        max_length=2 * max(len(targets[row]) for row in rows),
        rare_as_unknown=min_count > 1,
    )
    columns = _columns(model, sources, targets)
    loader = SeededLoader(tuple(column[rows] for column in columns), min(batch_size, len(rows)), seed=seed)
    if epochs is None and steps is None:
        epochs = max(FEWEST_EPOCHS, math.ceil(FEWEST_STEPS / len(loader)))
    total_steps = min(size for size in (steps, epochs and epochs * len(loader)) if size is not None)
    module = Seq2SeqModule(
        model,
        objective=objective,
        payoff=_payoff(payoff, len(target_vocabulary), tau, scale) if objective == "raml" else None,
        schedule=schedule,
        samples=samples,
        smoothing=smoothing,
        candidates=candidates,
        sharpness=sharpness,
        warm_steps=round(warm_share * total_steps),
        learning_rate=learning_rate,
        total_steps=total_steps,
        seed=seed,
    )
    held_out = tuple(column[kept] for column in columns)
    train(
        module,
        loader,
        val_data=SeededLoader(held_out, batch_size, seed=seed, shuffle=False) if kept else None,
        validate_every=max(1, STEPS_BETWEEN_VALIDATIONS // len(loader)),
        seed=seed,
        max_epochs=epochs,
        max_steps=steps,
        **{"gradient_clip": 1.0, **trainer},
    )
    model.cpu().eval()
    scores = {"loss": _loss(model, tuple(column[:MOST_MEASURED] for column in loader.data))}
    if kept:
        scores["val_loss"] = _loss(model, held_out)
        scores["val_error_rate"] = _error_rate(model, held_out, [pairs.sources[row] for row in kept])
    return model, scores


def _payoff(kind: str, vocab_size: int, tau: float, scale: str) -> Any:
    special = (PAD, BOS, EOS, UNK)
    make: Any = EditPayoff if kind == "edit" else HammingPayoff
    return make(vocab_size, tau, scale=scale, exclude_ids=special)


def _parts(sources: tuple[str, ...], validation: float, seed: int) -> tuple[list[int], list[int]]:
    """Rows to train on, and rows for validation: all of a source's pairs are in the same part."""
    known = list(dict.fromkeys(sources))
    order = torch.randperm(len(known), generator=seeded_generator(seed, 1)).tolist()
    held_out = {known[number] for number in order[: round(validation * len(known))]}
    rows: tuple[list[int], list[int]] = ([], [])
    for row, source in enumerate(sources):
        rows[source in held_out].append(row)
    return rows


def _columns(model: Seq2SeqModel, sources: list[list[str]], targets: list[list[str]]) -> tuple[Tensor, ...]:
    """Everything that a batch is sliced from; the last column numbers the examples."""
    source, source_lengths = padded([model.source_vocabulary.encode(tokens) for tokens in sources])
    target, target_lengths = padded([model.target_vocabulary.encode(tokens) for tokens in targets])
    return source, source_lengths, target, target_lengths, torch.arange(len(sources))


@torch.no_grad()
def _loss(model: Seq2SeqModel, columns: tuple[Tensor, ...]) -> float:
    """Negative log-likelihood of the targets, in nats a token."""
    total, count = 0.0, 0
    for source, lengths, target, target_lengths, _ in zip(*(column.split(256) for column in columns), strict=True):
        inputs, labels = shifted(target[:, : int(target_lengths.max())], target_lengths)
        logits = model(source[:, : int(lengths.max())], lengths, inputs, target_lengths + 1)
        total += float(raml_loss(logits, labels, None, IGNORED, "sum"))
        count += int((labels != IGNORED).sum())
    return total / count


def _error_rate(model: Seq2SeqModel, columns: tuple[Tensor, ...], sources: list[str]) -> float:
    """Edits a token between greedy outputs and the closest target of each source, each source once."""
    references: dict[str, list[list[int]]] = {}
    first: dict[str, int] = {}
    source, lengths, target, target_lengths, _ = columns
    for row, text in enumerate(sources):
        references.setdefault(text, []).append(target[row, : int(target_lengths[row])].tolist())
        first.setdefault(text, row)
    found: list[list[int]] = []
    rows = list(first.values())
    for part in torch.tensor(rows).split(256):
        decoded = greedy(model.network, source[part, : int(lengths[part].max())], lengths[part], model.max_length)
        found += [ids[:length] for ids, length in zip(decoded.ids.tolist(), decoded.lengths.tolist(), strict=True)]
    closest = [closest_reference(known, output) for known, output in zip(references.values(), found, strict=True)]
    return error_rate(closest, found)
