"""Batches with drawn labels: what changes, what stays, and that processes and batches do not matter."""

import copy
import math
import pickle

import pytest
import torch
from tiny_models import EOS, PAD, SIZE, SPECIALS, bart, examples, t5, tokenizer
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq

from tenfold.raml import EditPayoff, HammingPayoff
from tenfold.raml.collator import RAMLCollator, RAMLDataset
from tenfold.raml.importance import ImportanceWeighted
from tenfold.raml.rewards import negative_edit_distance
from tenfold.raml.sampled_targets import TargetSampler, example_number, stream_seeds

HAMMING = HammingPayoff(SIZE, 0.9, exclude_ids=SPECIALS)
EDIT = EditPayoff(SIZE, 0.95, exclude_ids=SPECIALS)
PAYOFFS = pytest.mark.parametrize("payoff", [HAMMING, EDIT], ids=["hamming", "edit"])


def base(model=None, **options):
    return DataCollatorForSeq2Seq(tokenizer(), model=model, **options)


def contents(labels):
    return [[token for token in row if token != -100] for row in labels.tolist()]


@PAYOFFS
@pytest.mark.parametrize("make", [bart, t5])
def test_decoder_inputs_are_the_drawn_labels_shifted(make, payoff):
    # transformers#10791: label smoothing broke where the collator did not make the decoder's inputs
    model = make()
    collator = RAMLCollator(base(model), payoff, seed=1)
    batch = collator(examples(12))
    labels, inputs = batch["labels"], batch["decoder_input_ids"]
    assert contents(labels) != [feature["labels"] for feature in examples(12)]
    assert (inputs[:, 0] == model.config.decoder_start_token_id).all()
    assert inputs[:, 1:].equal(labels[:, :-1].masked_fill(labels[:, :-1] == -100, PAD))
    assert model(**batch).loss.isfinite()


@PAYOFFS
def test_only_content_changes(payoff):
    # OpenNMT-py#1463: -100 as an index meets a real word where the vocabulary has 100 or more
    features = examples(40)
    collator = RAMLCollator(base(), payoff)
    for epoch in range(5):
        collator.set_epoch(epoch)
        batch = collator(copy.deepcopy(features))
        for row in contents(batch["labels"]):
            assert row[-1] == EOS
            assert all(token not in SPECIALS and 0 <= token < SIZE for token in row[:-1])
        real = batch["labels"] != -100
        assert not (real[:, 1:] & ~real[:, :-1]).any()  # padding at the end only
        assert batch["input_ids"].equal(base()(copy.deepcopy(features))["input_ids"])


def test_unknown_words_in_the_target_stay():
    feature = {"input_ids": [5, EOS], "labels": [3, 7, 3, EOS]}
    collator = RAMLCollator(base(), HAMMING)
    for epoch in range(20):
        collator.set_epoch(epoch)
        (row,) = collator([dict(feature)])["labels"].tolist()
        assert (row[0], row[2], row[3]) == (3, 3, EOS)


@PAYOFFS
def test_temperature_zero_is_the_base_collator_bit_for_bit(payoff):
    # neuralmonkey#739 and OpenNMT-tf#90: annealing; here down to the reference itself
    collator = RAMLCollator(base(bart()), payoff, schedule=lambda epoch: 0.8 if epoch == 0 else 0.0)
    plain = base(bart())(examples(9))
    assert not collator(examples(9))["labels"].equal(plain["labels"])
    collator.set_epoch(1)
    batch = collator(examples(9))
    assert batch.keys() == plain.keys()
    for name in plain:
        assert batch[name].equal(plain[name])


def test_schedule_is_the_temperature_of_the_epoch():
    sampler = TargetSampler(HAMMING, schedule=lambda epoch: 0.5 + 0.1 * epoch)
    sampler.set_epoch(3)
    assert sampler.current_payoff().tau == pytest.approx(0.8)
    assert sampler.current_payoff().exclude_ids == HAMMING.exclude_ids


@pytest.mark.parametrize("features", [examples(3), [{**feature, "labels": None} for feature in examples(3)]])
def test_batches_without_labels_pass(features):
    # transformers#14833, transformers#14930: labels None
    features = [{name: value for name, value in f.items() if name != "labels" or value is None} for f in features]
    expected = base()(copy.deepcopy(features))
    batch = RAMLCollator(base(), EDIT)(copy.deepcopy(features))
    assert batch.keys() == expected.keys()
    assert batch.get("labels") is None
    assert batch["input_ids"].equal(expected["input_ids"])


def test_evaluation_passes_as_it_is():
    collator = RAMLCollator(base(bart()), EDIT)
    plain, batch = base(bart())(examples(7)), collator.eval()(examples(7))
    assert all(batch[name].equal(plain[name]) for name in plain)
    assert not collator.train()(examples(7))["labels"].equal(plain["labels"])


@PAYOFFS
@pytest.mark.parametrize("multiple", [1, 8])
def test_width_is_the_longest_draw_rounded_up(payoff, multiple):
    batch = RAMLCollator(base(pad_to_multiple_of=multiple), payoff)(examples(10))
    longest = max(map(len, contents(batch["labels"])))
    assert batch["labels"].shape[1] == math.ceil(longest / multiple) * multiple


def test_fixed_width_is_kept():
    collator = RAMLCollator(base(padding="max_length", max_length=24), EDIT)
    assert collator(examples(5))["labels"].shape[1] == 24


def test_padding_at_the_left_stays_there():
    left = DataCollatorForSeq2Seq(tokenizer(padding_side="left"), model=None)
    labels = RAMLCollator(left, EDIT)(examples(10))["labels"]
    assert (labels[:, -1] == EOS).all()
    right = RAMLCollator(base(), EDIT)(examples(10))["labels"]
    assert contents(labels) == contents(right)


def test_ignored_positions_before_and_within_the_target_stay():
    payoff = HammingPayoff(SIZE, 1.0, exclude_ids=(*SPECIALS, -100))
    labels = torch.tensor([[-100, 10, -100, 11, EOS, -100], [20, 21, 22, 23, 24, EOS]])
    for epoch in range(10):
        sampler = TargetSampler(payoff)
        sampler.set_epoch(epoch)
        drawn = sampler.draw(labels, [0, 1]).labels
        assert (drawn == -100).equal(labels == -100)


def test_several_draws_repeat_everything_else():
    features = [{**feature, "example_index": i} for i, feature in enumerate(examples(6))]
    once, three = RAMLCollator(base(bart()), EDIT)(features), RAMLCollator(base(bart()), EDIT, n_samples=3)(features)
    assert three["input_ids"].equal(once["input_ids"].repeat_interleave(3, 0))
    assert three["attention_mask"].equal(once["attention_mask"].repeat_interleave(3, 0))
    assert len(three["labels"]) == len(three["decoder_input_ids"]) == 18
    assert len({tuple(row) for row in contents(three["labels"][:3])}) > 1
    assert "sample_weight" not in three
    assert "example_index" not in three


def test_importance_weights_are_in_the_batch_where_they_matter():
    weighted = ImportanceWeighted(HAMMING, negative_edit_distance, tau=0.3)
    batch = RAMLCollator(base(), weighted, n_samples=4)(examples(5))
    torch.testing.assert_close(batch["sample_weight"].reshape(5, 4).sum(1), torch.ones(5))
    assert "sample_weight" not in RAMLCollator(base(), weighted)(examples(5))


def test_decoder_inputs_and_mask_of_a_base_without_a_model_are_made_again():
    # OpenNMT-py#922 and others: task rewards for any model; any collator will do
    def plain(features):
        labels = pad_sequence([torch.tensor(f["labels"]) for f in features], True, -100)
        inputs = torch.cat([torch.full((len(labels), 1), 77), labels[:, :-1].clamp(min=0)], 1)
        return {"labels": labels, "decoder_input_ids": inputs, "decoder_attention_mask": (labels != -100).long()}

    batch = RAMLCollator(plain, EDIT)(examples(8))
    labels, inputs = batch["labels"], batch["decoder_input_ids"]
    real = labels[:, :-1] != -100
    assert (inputs[:, 0] == 77).all()
    assert inputs[:, 1:][real].equal(labels[:, :-1][real])
    assert batch["decoder_attention_mask"].equal((labels != -100).long())


@pytest.mark.parametrize("indexed", [True, False])
@PAYOFFS
def test_draws_depend_on_the_example_and_the_epoch_only(payoff, indexed):
    features = examples(20)
    if indexed:
        features = [{**feature, "example_index": 100 + i} for i, feature in enumerate(features)]
    collator = RAMLCollator(base(), payoff, seed=5)
    together = contents(collator(features)["labels"])
    one_by_one = [contents(collator([feature])["labels"])[0] for feature in reversed(features)]
    assert together == one_by_one[::-1]
    collator.set_epoch(1)
    assert contents(collator(features)["labels"]) != together
    assert contents(RAMLCollator(base(), payoff, seed=6)(features)["labels"]) != together


def test_copies_by_pickle_draw_the_same():
    collator = RAMLCollator(base(), EDIT, seed=5)
    collator.set_epoch(4)
    again = pickle.loads(pickle.dumps(collator))
    assert again(examples(6))["labels"].equal(collator(examples(6))["labels"])


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_processes_change_nothing(persistent):
    def epochs(workers):
        collator = RAMLCollator(base(), EDIT, seed=2)
        keep = persistent and workers > 0
        loader = DataLoader(examples(16), 4, collate_fn=collator, num_workers=workers, persistent_workers=keep)
        for epoch in range(2):
            collator.set_epoch(epoch)
            yield [contents(batch["labels"]) for batch in loader]

    alone, parallel = list(epochs(0)), list(epochs(2))
    assert alone == parallel
    assert alone[0] != alone[1]


def test_draws_through_the_collator_have_the_payoffs_rate():
    payoff = HammingPayoff.from_error_rate(SIZE, 0.3, exclude_ids=SPECIALS)
    labels = torch.randint(4, SIZE, (500, 40), generator=torch.Generator().manual_seed(0))
    drawn = TargetSampler(payoff, seed=9).draw(labels, range(500)).labels
    assert (drawn != labels).double().mean().item() == pytest.approx(0.3, abs=5 * (0.3 * 0.7 / 20_000) ** 0.5)


def test_seeds_of_epochs_and_examples_are_all_different():
    seeds = {int(s) for seed in range(3) for epoch in range(20) for s in stream_seeds(seed, epoch, range(200))}
    assert len(seeds) == 3 * 20 * 200
    assert len(set(stream_seeds(0, 0, [2**64 - 1, 2**64 - 2, 5]).tolist())) == 3  # no rounding to floats
    assert example_number([1, 2], [3]) != example_number([1], [2, 3])


def test_a_payoff_that_could_write_the_end_is_refused():
    with pytest.raises(ValueError, match=r"may write the tokenizer's eos_token_id=2 anywhere.*add it to exclude_ids"):
        RAMLCollator(base(), HammingPayoff(SIZE, 0.5, exclude_ids=(PAD,)))


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="n=0 samples"):
        RAMLCollator(base(), HAMMING, n_samples=0)
    with pytest.raises(ValueError, match="seed=-1"):
        RAMLCollator(base(), HAMMING, seed=-1)
    with pytest.raises(ValueError, match="epoch=-1"):
        RAMLCollator(base(), HAMMING).set_epoch(-1)
    with pytest.raises(TypeError, match="return_tensors='pt'"):
        RAMLCollator(base(), HAMMING)(examples(2), return_tensors="np")


@pytest.mark.parametrize("kind", ["mapping", "tuple", "list"])
def test_data_set_draws_the_targets_of_its_items(kind):
    rows = [(torch.tensor(f["input_ids"]), torch.tensor(f["labels"])) for f in examples(10)]
    items = {"mapping": [{"x": x, "labels": y} for x, y in rows], "tuple": rows, "list": [list(row) for row in rows]}
    field = "labels" if kind == "mapping" else 1
    data = RAMLDataset(items[kind], EDIT, 2, seed=4, field=field)
    assert len(data) == 20
    first = [data[i][field] for i in range(20)]
    assert all(isinstance(row, torch.Tensor) and row[-1] == EOS for row in first)
    assert all(a.equal(data[i][field]) for i, a in enumerate(first))
    assert any(not a.equal(b) for a, b in zip(first[:10], first[10:], strict=True))
    assert data[3]["x" if kind == "mapping" else 0].equal(rows[3][0])
    data.set_epoch(1)
    assert any(not a.equal(data[i][field]) for i, a in enumerate(first))
    data = RAMLDataset(items[kind], EDIT, schedule=lambda epoch: 0.0, field=field)
    assert all(data[i][field].equal(rows[i][1]) for i in range(10))


def test_data_set_keeps_lists_and_padding():
    data = RAMLDataset([{"labels": [5, 6, EOS, -100, -100, -100]}], HAMMING)
    assert data[0]["labels"][2:] == [EOS, -100, -100, -100]
    assert data[-1] == data[0]
    with pytest.raises(IndexError):
        data[1]
    with pytest.raises(TypeError, match="use RAMLCollator"):
        RAMLDataset([], ImportanceWeighted(HAMMING, negative_edit_distance, tau=1.0))


def test_data_set_in_workers_draws_the_same():
    def epochs(workers):
        data = RAMLDataset([(f["labels"],) for f in examples(8)], EDIT, field=0)
        loader = DataLoader(data, 2, collate_fn=list, num_workers=workers, persistent_workers=workers > 0)
        for epoch in range(2):
            data.set_epoch(epoch)
            yield list(loader)

    assert list(epochs(0)) == list(epochs(2))
