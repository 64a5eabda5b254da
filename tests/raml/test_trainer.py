"""The collator inside transformers' Seq2SeqTrainer, with models of random weights."""

import pytest
import torch
from tiny_models import SIZE, SPECIALS, bart, examples, t5, tokenizer
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from tenfold.raml import EditPayoff, HammingPayoff
from tenfold.raml.collator import RAMLCollator
from tenfold.raml.importance import ImportanceWeighted
from tenfold.raml.objective import raml_loss
from tenfold.raml.rewards import negative_edit_distance
from tenfold.raml.trainer_mixin import RAMLTrainerMixin

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
EDIT = EditPayoff(SIZE, 0.9, exclude_ids=SPECIALS)
HAMMING = HammingPayoff(SIZE, 0.9, exclude_ids=SPECIALS)


@pytest.fixture(autouse=True)
def _no_other_datasets(monkeypatch):
    """The folder tests/datasets can be imported as ``datasets``: transformers would take it for that package."""
    monkeypatch.setattr("transformers.trainer.is_datasets_available", lambda: False)


class RAMLTrainer(RAMLTrainerMixin, Seq2SeqTrainer):
    def training_step(self, model, inputs, *arguments, **options):
        self.__dict__.setdefault("seen", []).append({name: value.tolist() for name, value in inputs.items()})
        return super().training_step(model, inputs, *arguments, **options)


def trainer(folder, model, payoff, *, n_samples=1, schedule=None, workers=0, kind=RAMLTrainer, indexed=True, **options):
    data, indexed = examples(16), indexed and payoff is not None
    if indexed:
        data = [{**feature, "example_index": i} for i, feature in enumerate(data)]
    base = DataCollatorForSeq2Seq(tokenizer(), model=model)
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, per_device_eval_batch_size=4, num_train_epochs=2,
        learning_rate=1e-2, report_to=[], use_cpu=True, dataloader_num_workers=workers, save_strategy="no",
        logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, seed=3,
        remove_unused_columns=not indexed, **options,
    )  # fmt: skip
    collator = base if payoff is None else RAMLCollator(base, payoff, n_samples, schedule, seed=7)
    return kind(
        model=model, args=arguments, data_collator=collator, train_dataset=data, eval_dataset=examples(8, seed=1)
    )


@pytest.mark.parametrize("indexed", [True, False])
def test_batches_are_the_same_with_and_without_workers(tmp_path, indexed):
    runs = []
    for workers in (0, 2):
        run = trainer(tmp_path, bart(), EDIT, workers=workers, indexed=indexed)
        run.train()
        runs.append(run.seen)
    assert len(runs[0]) == 8
    assert runs[0] == runs[1]
    drawn = {}
    for batch in runs[0]:
        for source, labels in zip(batch["input_ids"], batch["labels"], strict=True):
            drawn.setdefault(tuple(token for token in source if token), []).append([t for t in labels if t != -100])
    assert all(len(pair) == 2 for pair in drawn.values())
    assert sum(first != second for first, second in drawn.values()) >= 8  # each epoch has its own draws


def test_evaluation_is_on_the_references(tmp_path):
    model = bart()
    augmented, plain = trainer(tmp_path, model, EDIT), trainer(tmp_path, model, None)
    assert augmented.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]
    labels = augmented.predict(examples(8, seed=1)).label_ids
    assert [[t for t in row if t != -100] for row in labels.tolist()] == [f["labels"] for f in examples(8, seed=1)]


def test_evaluation_during_training_leaves_training_alone(tmp_path):
    alone, evaluated = (trainer(tmp_path, bart(), EDIT, eval_strategy=kind) for kind in ("no", "epoch"))
    for run in (alone, evaluated):
        run.train()
    assert alone.seen == evaluated.seen
    assert [entry for entry in evaluated.state.log_history if "eval_loss" in entry]


def test_temperature_zero_is_training_on_the_references(tmp_path):
    runs = [trainer(tmp_path, t5(), *payoff) for payoff in ((HAMMING.with_tau(0),), (None,))]
    for run in runs:
        run.train()
    assert runs[0].seen == runs[1].seen


def test_label_smoothing_of_the_trainer_finds_decoder_inputs(tmp_path):
    # transformers#10791: the trainer takes the labels away from the model, which then had nothing to read
    run = trainer(tmp_path, bart(), EDIT, label_smoothing_factor=0.1)
    assert run.train().training_loss > 0


@pytest.mark.parametrize("make", [bart, t5])
def test_importance_weights_reach_the_loss(tmp_path, make):
    weighted = ImportanceWeighted(HAMMING, negative_edit_distance, tau=0.5)
    run = trainer(tmp_path, make(), weighted, n_samples=3)
    batch = run.data_collator([{**feature, "example_index": i} for i, feature in enumerate(examples(4))])
    weight = batch["sample_weight"]
    logits = run.model(**{name: value for name, value in batch.items() if name != "sample_weight"}).logits
    expected = raml_loss(logits, batch["labels"], weight)
    torch.testing.assert_close(run.compute_loss(run.model, dict(batch)), expected)
    count = (batch["labels"] != -100).sum()
    scaled = run.compute_loss(run.model, dict(batch), num_items_in_batch=count)
    torch.testing.assert_close(scaled, 3 * raml_loss(logits, batch["labels"], weight, reduction="sum") / count)
    run.train()
    assert all(len(seen["sample_weight"]) == 12 for seen in run.seen)


def test_equal_weights_are_the_models_own_loss(tmp_path):
    even = ImportanceWeighted(EDIT, negative_edit_distance, tau=EDIT.raw_tau)
    run = trainer(tmp_path, bart(), even, n_samples=2)
    batch = run.data_collator(examples(4))
    own = run.model(**{name: value for name, value in batch.items() if name != "sample_weight"}).loss
    torch.testing.assert_close(run.compute_loss(run.model, dict(batch)), own)


def test_schedule_follows_the_trainers_epochs(tmp_path):
    run = trainer(tmp_path, bart(), HAMMING, schedule=lambda epoch: (1.0, 0.0)[epoch])
    run.train()
    references = {tuple(f["input_ids"]): f["labels"] for f in examples(16)}

    def changed(batches):
        return sum(
            [t for t in labels if t != -100] != references[tuple(t for t in source if t)]
            for batch in batches
            for source, labels in zip(batch["input_ids"], batch["labels"], strict=True)
        )

    assert changed(run.seen[:4]) > 4
    assert changed(run.seen[4:]) == 0


def test_another_collator_is_left_alone(tmp_path):
    plain, mixed = (trainer(tmp_path, bart(), None, kind=kind) for kind in (Seq2SeqTrainer, RAMLTrainer))
    assert plain.evaluate()["eval_loss"] == mixed.evaluate()["eval_loss"]
    assert plain.train().training_loss == mixed.train().training_loss
