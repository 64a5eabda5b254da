"""Reward-augmented targets under any training loop: a collator around a collator, and a data set around a data set.

Only targets change (Norouzi et al. 2016, arXiv 1609.00150): the sampled target is both what the decoder reads and what it
must say, and the loss stays the model's own cross-entropy. `RAMLCollator` therefore takes the batch that another collator
made, such as transformers' ``DataCollatorForSeq2Seq``, replaces its labels by draws of a payoff, and shifts the decoder's
inputs anew. `RAMLDataset` does the same for the items of a data set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from tenfold.raml.importance import ImportanceWeighted
from tenfold.raml.sampled_targets import IGNORED, Payoff, Schedule, TargetSampler, example_number

EXAMPLE_INDEX = "example_index"
SAMPLE_WEIGHT = "sample_weight"
PROTECTED = ("eos_token_id", "pad_token_id")


class RAMLCollator:
    """Batches of another collator with labels drawn from a payoff.

    The base collator pads, and says how: its ``label_pad_token_id``, ``pad_to_multiple_of`` and ``model`` are taken over
    where it has them. Decoder inputs that it makes are made again from the drawn labels, by the model's own
    ``prepare_decoder_input_ids_from_labels`` or by a shift to the right. With ``n_samples`` above 1 each example is there
    that many times, copies next to each other, and everything else in the batch is repeated with it. A batch without
    labels, or with labels None, passes as it is.

    Draws depend on (seed, epoch, example) alone. An example is known by its ``example_index`` in the features, which is
    taken out before the base collator sees them; without one, by a hash of its ids, so that examples of the same ids get
    the same draw in an epoch. (transformers' ``Trainer`` drops the column unless ``remove_unused_columns=False``.)

    A ``Trainer`` uses one collator for training and evaluation: `RAMLTrainerMixin` evaluates with the base collator and
    sets the epoch. In a loop of your own, evaluate with ``collator.base`` or call `eval` first.

    Args:
        base: Makes a batch (a mapping of tensors with ``labels``) of a list of features.
        payoff: A `HammingPayoff`, `EditPayoff` or `ImportanceWeighted`. Its ``exclude_ids`` must hold the special ids
            (end, padding, ...), so that they neither change nor appear: then the end stays last.
        n_samples: Draws for each example. With `ImportanceWeighted` the batch gets their weights, ``sample_weight``,
            which `raml_loss` takes; one draw alone has no use of them.
        schedule: Temperature of an epoch; None keeps the payoff's. 0 leaves the labels as they are.
        seed: Of all draws.

    Attributes:
        base, payoff, n_samples, schedule, seed: As given.
        training: False after `eval`: batches pass as the base collator makes them.

    Raises:
        ValueError: ``n_samples`` below 1, a negative seed, or an end or padding id of the base collator's tokenizer
            that the payoff may write.

    >>> from tenfold.raml import HammingPayoff
    >>> def pad(features):
    ...     rows = [torch.tensor(feature["labels"]) for feature in features]
    ...     return {"labels": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)}
    >>> collator = RAMLCollator(pad, HammingPayoff(50, tau=0.7, exclude_ids=[0, 1]), n_samples=2)
    >>> batch = collator([{"labels": [7, 8, 9, 1]}, {"labels": [4, 1]}])
    >>> batch["labels"].shape, batch["labels"][2:, 1:].tolist()
    (torch.Size([4, 4]), [[1, -100, -100], [1, -100, -100]])
    """

    def __init__(
        self,
        base: Callable[..., Any],
        payoff: Payoff,
        n_samples: int = 1,
        schedule: Schedule | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.base, self.payoff, self.n_samples, self.schedule, self.seed = base, payoff, n_samples, schedule, seed
        self.training = True
        ignore_index = getattr(base, "label_pad_token_id", IGNORED)
        self._sampler = TargetSampler(payoff, n_samples, schedule, seed=seed, ignore_index=ignore_index)
        _check_protected(getattr(base, "tokenizer", None), payoff)

    def set_epoch(self, epoch: int) -> None:
        """Call before each epoch, counted from 0; worker processes that are kept for several epochs see it too."""
        self._sampler.set_epoch(epoch)

    def eval(self) -> RAMLCollator:
        """From now on, batches are the base collator's; loaders whose workers run already are not reached."""
        self.training = False
        return self

    def train(self, mode: bool = True) -> RAMLCollator:
        """Labels are drawn again, or not."""
        self.training = mode
        return self

    def __call__(self, features: Sequence[Any], *arguments: Any, **options: Any) -> Any:
        """The batch of these features.

        Args:
            features: What the base collator takes; mappings may hold ``example_index``.
            arguments: Handed to the base collator, as the options are.
            options: For example ``return_tensors``.

        Raises:
            TypeError: Labels that are not a tensor (``return_tensors="np"``).
        """
        indices = [feature.get(EXAMPLE_INDEX) if isinstance(feature, Mapping) else None for feature in features]
        plain = [_without_index(feature) for feature in features]
        batch = self.base(plain, *arguments, **options)
        if not self.training or batch.get("labels") is None:
            return batch
        labels = batch["labels"]
        if not isinstance(labels, Tensor) or labels.dim() != 2:
            raise TypeError(
                f"labels is a {type(labels).__name__}: a padded tensor (batch, length) is needed; use return_tensors='pt'"
            )
        examples = [
            example_number(_source(plain[row]), labels[row][labels[row] != self._sampler.ignore_index])
            if index is None
            else int(index)
            for row, index in enumerate(indices)
        ]
        drawn = self._sampler.draw(labels, examples, getattr(self.base, "pad_to_multiple_of", None) or 1)
        sampled = self._as_wide_as_asked(drawn.labels, labels.shape[1])
        if self.n_samples > 1:
            self._repeat(batch, len(labels))
        if batch.get("decoder_input_ids") is not None:
            batch["decoder_input_ids"] = self._decoder_inputs(batch["decoder_input_ids"], sampled)
        if batch.get("decoder_attention_mask") is not None:
            batch["decoder_attention_mask"] = (sampled != self._sampler.ignore_index).to(
                batch["decoder_attention_mask"].dtype
            )
        batch["labels"] = sampled
        if drawn.weights is not None and self.n_samples > 1:
            batch[SAMPLE_WEIGHT] = drawn.weights.float()
        return batch

    def _as_wide_as_asked(self, labels: Tensor, width: int) -> Tensor:
        """A base collator that pads to one fixed width gets it, unless a sample is longer."""
        missing = width - labels.shape[1]
        if str(getattr(self.base, "padding", "")).rpartition(".")[2].lower() != "max_length" or missing <= 0:
            return labels
        at_left = getattr(getattr(self.base, "tokenizer", None), "padding_side", "right") == "left"
        sides = (missing, 0) if at_left else (0, missing)
        return torch.nn.functional.pad(labels, sides, value=self._sampler.ignore_index)

    def _repeat(self, batch: MutableMapping[str, Any], size: int) -> None:
        for name, value in list(batch.items()):
            if isinstance(value, Tensor) and value.dim() and len(value) == size:
                batch[name] = value.repeat_interleave(self.n_samples, 0)
            elif isinstance(value, list) and len(value) == size:
                batch[name] = [item for item in value for _ in range(self.n_samples)]

    def _decoder_inputs(self, old: Tensor, labels: Tensor) -> Tensor:
        """What the decoder reads: the start, then the labels but the last one."""
        shift = getattr(getattr(self.base, "model", None), "prepare_decoder_input_ids_from_labels", None)
        if shift is not None:
            return shift(labels=labels)
        padding = getattr(getattr(self.base, "tokenizer", None), "pad_token_id", None)
        start = old[:, :1]
        following = torch.where(labels == self._sampler.ignore_index, start if padding is None else padding, labels)
        return torch.cat([start, following[:, :-1]], 1).to(old.dtype)


class RAMLDataset(Dataset):
    """A map-style data set whose targets are drawn from a payoff, for plain torch loops.

    Wrap the training set only: whatever loads it stays as it is, and evaluation is untouched. Item ``i`` is example
    ``i % len(dataset)``, drawn for the ``i // len(dataset)``-th time.

    Args:
        dataset: Gives mappings, tuples or lists; the targets are a list or one-dimensional tensor of ids.
        payoff: A `HammingPayoff` or `EditPayoff`.
        n_samples: Draws of each example in an epoch.
        schedule: Temperature of an epoch; None keeps the payoff's.
        seed: Of all draws, which depend on (seed, epoch, item) alone.
        field: Key or position of the targets in an item.

    Raises:
        TypeError: An `ImportanceWeighted` payoff, whose weights compare draws of one example; `RAMLCollator` has them.
        ValueError: As `RAMLCollator`.

    >>> from tenfold.raml import EditPayoff
    >>> data = RAMLDataset([([1, 2], [5, 6, 7]), ([3], [8])], EditPayoff(9, tau=0.0), field=1)
    >>> len(data), data[1]
    (2, ([3], [8]))
    """

    def __init__(
        self,
        dataset: Any,
        payoff: Payoff,
        n_samples: int = 1,
        schedule: Schedule | None = None,
        *,
        seed: int = 0,
        field: str | int = "labels",
    ) -> None:
        if isinstance(payoff, ImportanceWeighted):
            raise TypeError(
                "payoff is an ImportanceWeighted, which weighs the draws of an example together: use RAMLCollator"
            )
        self.dataset, self.n_samples, self.field = dataset, n_samples, field
        TargetSampler(payoff, n_samples)  # its checks
        self._sampler = TargetSampler(payoff, 1, schedule, seed=seed)

    def set_epoch(self, epoch: int) -> None:
        """Call before each epoch, counted from 0."""
        self._sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return self.n_samples * len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        """The item with drawn targets, of the kind that the data set gives.

        Raises:
            IndexError: No such item.
        """
        index = int(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        index %= len(self)
        item = self.dataset[index % len(self.dataset)]
        reference = item[self.field]
        labels = torch.as_tensor(reference, dtype=torch.int64)[None]
        new = self._sampler.draw(labels, [index]).labels[0]
        if len(labels[0]) and labels[0, -1] == self._sampler.ignore_index and len(new) < labels.shape[1]:
            missing = labels.shape[1] - len(new)  # items that come padded to one width stay so
            new = torch.nn.functional.pad(new, (0, missing), value=self._sampler.ignore_index)
        value = new.to(reference.dtype) if isinstance(reference, Tensor) else new.tolist()
        if isinstance(item, Mapping):
            return {**item, self.field: value}
        parts = list(item)
        parts[self.field] = value  # type: ignore[index]
        return tuple(parts) if isinstance(item, tuple) else parts


def _without_index(feature: Any) -> Any:
    if isinstance(feature, Mapping) and EXAMPLE_INDEX in feature:
        return {name: value for name, value in feature.items() if name != EXAMPLE_INDEX}
    return feature


def _source(feature: Any) -> Any:
    """The ids of the source, where the feature has any."""
    return feature.get("input_ids", ()) if isinstance(feature, Mapping) else ()


def _check_protected(tokenizer: Any, payoff: Payoff) -> None:
    for name in PROTECTED:
        token = getattr(tokenizer, name, None)
        if isinstance(token, int) and 0 <= token < payoff.vocab_size and token not in payoff.exclude_ids:
            raise ValueError(
                f"the payoff may write the tokenizer's {name}={token} anywhere in a target: add it to exclude_ids"
            )
