"""What a transformers ``Trainer`` needs beside a `RAMLCollator`: epochs, weights, and evaluation on the true targets."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from torch.nn import Module

from tenfold.raml.collator import SAMPLE_WEIGHT, RAMLCollator
from tenfold.raml.objective import raml_loss

if TYPE_CHECKING:
    _Trainer = Any
else:
    _Trainer = object


class RAMLTrainerMixin(_Trainer):
    """Put it before the trainer: ``class RAMLTrainer(RAMLTrainerMixin, Seq2SeqTrainer): pass``.

    With a `RAMLCollator` as ``data_collator``

    - evaluation and prediction use its base collator, so that their losses and metrics are those of the references;
    - each epoch has its own draws and its own temperature, also after training resumes from a checkpoint;
    - importance weights are applied by `raml_loss`, in the Trainer's own normalization: ``num_items_in_batch`` tokens
      over accumulated batches where the model takes that, else the mean of the batch.

    With another collator it changes nothing.
    """

    data_collator: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if isinstance(self.data_collator, RAMLCollator):
            self.add_callback(_epoch_callback(self.data_collator))

    def get_eval_dataloader(self, *arguments: Any, **options: Any) -> Any:
        """The evaluation loader, on the true targets."""
        return self._with_base_collator(super().get_eval_dataloader, *arguments, **options)

    def get_test_dataloader(self, *arguments: Any, **options: Any) -> Any:
        """The prediction loader, on the true targets."""
        return self._with_base_collator(super().get_test_dataloader, *arguments, **options)

    def compute_loss(
        self,
        model: Module,
        inputs: MutableMapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The model's own loss, or with importance weights `raml_loss`."""
        if SAMPLE_WEIGHT not in inputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch=num_items_in_batch)
        others = {name: value for name, value in inputs.items() if name != SAMPLE_WEIGHT}
        outputs = model(**others)
        logits, labels, weight = outputs["logits"], others["labels"], inputs[SAMPLE_WEIGHT]
        if num_items_in_batch is None:
            loss = raml_loss(logits, labels, weight)
        else:  # all rows' tokens are counted there, so weights must be 1 on average and not 1 in total
            total = raml_loss(logits, labels, weight * self.data_collator.n_samples, reduction="sum")
            loss = total / num_items_in_batch
        return (loss, outputs) if return_outputs else loss

    def _with_base_collator(self, make: Any, *arguments: Any, **options: Any) -> Any:
        collator = self.data_collator
        if isinstance(collator, RAMLCollator):
            self.data_collator = collator.base
        try:
            return make(*arguments, **options)
        finally:
            self.data_collator = collator


def _epoch_callback(collator: RAMLCollator) -> Any:
    from transformers import TrainerCallback

    class SetEpoch(TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            collator.set_epoch(int((state.epoch or 0) + 1e-6))  # a fraction after resuming in mid-epoch

    return SetEpoch()
