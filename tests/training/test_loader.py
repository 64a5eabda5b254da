import math
from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tenfold.training import SeededLoader


def epochs(loader, count):
    return [[batch.tolist() for batch in loader] for _ in range(count)]


def test_every_item_comes_once_an_epoch_and_orders_differ():
    first, second = epochs(SeededLoader(torch.arange(10), 3, seed=0), 2)
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(10))
    assert first != second
    assert [len(batch) for batch in first] == [3, 3, 3, 1]


def test_order_is_a_function_of_seed_and_epoch_alone():
    expected = epochs(SeededLoader(torch.arange(10), 3, seed=4), 3)[2]
    torch.manual_seed(99)
    loader = SeededLoader(torch.arange(10), 3, seed=4)
    loader.set_epoch(2)
    assert epochs(loader, 1)[0] == expected
    assert epochs(SeededLoader(torch.arange(10), 3, seed=5), 3)[2] != expected


def test_nothing_is_drawn_from_the_global_generator(runs):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(SeededLoader(runs.Augmented(), 4))
    list(SeededLoader(torch.arange(9), 4))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("place", [0, 1, 3, 4])
def test_state_is_the_place_and_the_rest_of_the_epoch_follows(place):
    loader = SeededLoader(torch.arange(10), 3, seed=0)
    next(iter(SeededLoader(torch.arange(10), 3, seed=0)))
    batches = iter(loader)
    for _ in range(place):
        next(batches)
    other = SeededLoader(torch.arange(10), 3, seed=0)
    other.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in other] == [batch.tolist() for batch in batches]
    assert epochs(other, 1) == epochs(loader, 1)


def test_worker_processes_give_the_same_augmented_batches(runs):
    here = list(SeededLoader(runs.Augmented(), 4, seed=3))
    there = list(SeededLoader(runs.Augmented(), 4, seed=3, num_workers=2))
    for (rows, sums), (other_rows, other_sums) in zip(here, there, strict=True):
        assert torch.equal(rows, other_rows)
        assert torch.equal(sums, other_sums)


def test_tensors_and_data_set_of_them_are_sliced_alike():
    columns = torch.randn(7, 2), torch.arange(7)
    whole = TensorDataset(*columns)
    for rows, labels in SeededLoader(whole, 3):
        assert torch.equal(rows, columns[0][labels])
    assert torch.equal(next(iter(SeededLoader(whole, 3)))[0], next(iter(SeededLoader(columns, 3)))[0])


def test_unshuffled_batches_are_those_of_torch():
    ours = [batch.tolist() for batch in SeededLoader(torch.arange(8), 3, shuffle=False, drop_last=True)]
    assert ours == [batch.tolist() for batch in DataLoader(range(8), 3, drop_last=True)]


def test_collate_is_given_the_items():
    class Words(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return "abcd"[index]

    assert list(SeededLoader(Words(), 2, shuffle=False, collate="".join)) == ["ab", "cd"]


@pytest.mark.parametrize("size", [9, 10, 3])
def test_processes_share_an_epoch_evenly(monkeypatch, size):
    shares = []
    for rank in range(2):
        monkeypatch.setattr("tenfold.training.loader.process", lambda rank=rank: (rank, 2))
        loader = SeededLoader(torch.arange(size), 2, seed=1)
        shares.append([item for batch in loader for item in batch.tolist()])
        assert len(loader) == math.ceil(math.ceil(size / 2) / 2)
    assert len(shares[0]) == len(shares[1])
    assert sorted(set(shares[0] + shares[1])) == list(range(size))


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        ((torch.zeros(3), torch.zeros(4)), {}, r"lengths are \[3, 4\]"),
        (torch.zeros(0), {}, "not empty"),
        (torch.zeros(3), {"batch_size": 0}, "batch_size=0 must be at least 1"),
        (torch.zeros(3), {"batch_size": 4, "drop_last": True}, "leaves no batch of 3 items"),
        (torch.zeros(3), {"num_workers": 2}, "sliced in this process"),
    ],
)
def test_bad_arguments_are_named(data, options, said):
    with pytest.raises(ValueError, match=said):
        SeededLoader(data, **({"batch_size": 2} | options))
