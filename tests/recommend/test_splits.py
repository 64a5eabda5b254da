"""Parts to train on and to be judged by: nothing lost, nothing twice, shapes as documented."""

import numpy as np
import pytest
from scipy import sparse

from tenfold.recommend.interactions import Interactions
from tenfold.recommend.splits import hold_out, leave_one_out, split_by_time, strong_generalization


@pytest.fixture
def matrix():
    rng = np.random.default_rng(0)
    return sparse.csr_array(np.where(rng.random((50, 30)) < 0.2, rng.integers(1, 6, (50, 30)), 0).astype(np.float32))


def add_up(whole, *parts):
    assert (sum(part.toarray() for part in parts) == whole.toarray()).all()
    assert sum(part.nnz for part in parts) == whole.nnz
    assert all(part.has_canonical_format and part.dtype == np.float32 for part in parts)


def test_leave_one_out_holds_out_one_entry_of_everybody_with_two(matrix):
    train, test = leave_one_out(matrix, random_state=3)
    add_up(matrix, train, test)
    counts = np.diff(matrix.indptr)
    assert np.diff(test.indptr).tolist() == (counts > 1).astype(int).tolist()


def test_same_seed_same_split(matrix):
    plays = Interactions.from_matrix(matrix)
    for split in (plays.leave_one_out, plays.hold_out):
        one, same, other = split(random_state=1), split(random_state=1), split(random_state=2)
        assert (one.test != same.test).nnz == 0
        assert (one.test != other.test).nnz > 0


def test_leave_one_out_is_uniform_over_a_user_s_entries():
    # Each of 4 entries is held out 1 in 4 times: 1000 +- 5 standard deviations of sqrt(4000 * 3/16) = 27.4
    _, test = leave_one_out(sparse.csr_array(np.ones((4000, 4))), random_state=0)
    assert (np.abs(test.sum(axis=0) - 1000) < 5 * 27.4).all()


def test_leave_one_out_can_take_the_latest():
    dated = Interactions([1, 1, 1, 2], list("abca"), timestamps=[5, 9, 7, 1])
    train, test = dated.leave_one_out(latest=True)
    assert test.toarray().tolist() == [[0, 1, 0], [0, 0, 0]]
    assert train.toarray().tolist() == [[1, 0, 1], [1, 0, 0]]
    with pytest.raises(ValueError, match="latest=True needs time stamps"):
        Interactions([1, 1], [1, 2]).leave_one_out(latest=True)


def test_hold_out_takes_a_rounded_share_of_each_user():
    # 10 entries: 2; 3: round(0.6) = 1; 2: at least 1; 1: none; 0: none
    counts = np.array([10, 3, 2, 1, 0])
    whole = sparse.csr_array((np.arange(10) < counts[:, None]).astype(float))
    train, test = hold_out(whole, 0.2, random_state=0)
    add_up(whole, train, test)
    assert np.diff(test.indptr).tolist() == [2, 1, 1, 0, 0]
    assert np.diff(hold_out(whole, 0.99, random_state=0).train.indptr).tolist() == [1, 1, 1, 1, 0]
    for bad in (0.0, 1.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="must lie between 0 and 1"):
            hold_out(whole, bad)


def test_a_split_by_time_leaves_known_items_out_of_the_test():
    # before 10: 1-a twice, 2-b; from 10 on: 1-a again (known), 1-b, 2-c
    dated = Interactions([1, 1, 2, 1, 1, 2], list("aabbac"), [1, 1, 1, 4, 5, 6], [1, 2, 3, 10, 11, 12])
    train, test = dated.split_by_time(at=10)
    assert train.toarray().tolist() == [[2, 0, 0], [0, 1, 0]]
    assert test.toarray().tolist() == [[0, 4, 0], [0, 0, 6]]
    repeats = dated.split_by_time(at=10, keep_repeats=True).test
    assert repeats.toarray().tolist() == [[5, 4, 0], [0, 0, 6]]
    assert (dated.split_by_time(0.5).test != test).nnz == 0  # 3 of 6 events come at 10 or later


def test_a_split_by_time_needs_a_moment_that_parts():
    dated = Interactions([1, 1], [1, 2], timestamps=[1, 2])
    for arguments, message in (
        ({}, "give either fraction or at"),
        ({"fraction": 0.5, "at": 1}, "give either fraction or at"),
        ({"at": 1}, "leaves one side empty; events reach from 1.0 to 2.0"),
        ({"at": 3}, "leaves one side empty"),
        ({"fraction": 2.0}, "must lie between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=message):
            dated.split_by_time(**arguments)
    with pytest.raises(ValueError, match="needs time stamps"):
        Interactions([1], [1]).split_by_time(0.5)
    with pytest.raises(ValueError, match="transposed"):
        split_by_time(sparse.csr_array((2, 3)), sparse.csr_array((3, 2)))


def test_strong_generalization_has_its_documented_shapes(matrix):
    split = strong_generalization(matrix, 10, random_state=0)
    assert (split.train.shape, split.fold_in.shape, split.test.shape) == ((40, 30), (10, 30), (10, 30))
    assert sorted([*split.train_users, *split.held_out_users]) == list(range(50))
    add_up(matrix[split.train_users], split.train)
    add_up(matrix[split.held_out_users], split.fold_in, split.test)
    n = np.diff(matrix[split.held_out_users].indptr)
    assert np.diff(split.test.indptr).tolist() == np.clip(np.rint(0.2 * n), 1, n - 1).astype(int).tolist()


def test_a_share_of_users_can_be_held_out(matrix):
    assert strong_generalization(matrix, 0.3, random_state=0).test.shape == (15, 30)
    assert Interactions.from_matrix(matrix).strong_generalization(0.3, random_state=0).test.shape == (15, 30)


def test_items_that_training_does_not_know_are_dropped_from_held_out_users():
    # Item 2 belongs to user 3 alone; whenever she is held out it is gone, and columns stay where they are.
    whole = sparse.csr_array(np.array([[1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1]], float))
    for seed in range(10):
        split = strong_generalization(whole, 1, random_state=seed)
        assert split.fold_in[:, [2]].nnz == split.test[:, [2]].nnz == 0
        assert (split.fold_in.nnz, split.test.nnz) == (1, 1)


def test_users_with_one_entry_are_never_held_out():
    whole = sparse.csr_array(np.array([[1, 0], [1, 1], [0, 1], [1, 1]], float))
    for seed in range(10):
        assert set(strong_generalization(whole, 1, random_state=seed).held_out_users) <= {1, 3}
    for count in (0, 3, -1):
        with pytest.raises(ValueError, match="2 of 4 users have two entries or more"):
            strong_generalization(whole, count)
    with pytest.raises(ValueError, match=r"fold_in=1\.0"):
        strong_generalization(whole, 1, fold_in=1.0)
