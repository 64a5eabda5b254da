"""Popularity and item neighbourhoods against brute force."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics.pairwise import cosine_similarity

from tenfold.recommend import baselines
from tenfold.recommend.baselines import ItemCosine, Popularity


@pytest.fixture
def plays():
    rng = np.random.default_rng(1)
    return np.where(rng.random((40, 25)) < 0.3, rng.integers(1, 9, (40, 25)), 0).astype(np.float64)


def test_popularity_counts_users_not_plays():
    model = Popularity().fit([[9, 1, 0], [0, 1, -2]])  # a dislike is no vote
    assert model.score_block(np.array([0, 7])).tolist() == [[0.5, 1.0, 0.0]] * 2


def test_all_neighbors_give_the_cosines_of_columns(plays):
    found = ItemCosine(None).fit(plays).similarity_.toarray()
    expected = cosine_similarity(plays.T)
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_scores_are_sums_over_each_items_own_neighbors(plays):
    similar = cosine_similarity(plays.T)
    np.fill_diagonal(similar, 0)
    expected = np.zeros_like(plays)
    for item in range(25):
        for other in np.argsort(-similar[item], kind="stable")[:4]:
            expected[:, item] += similar[item, other] * plays[:, other]
    scores = ItemCosine(4).fit(plays).score_block(np.arange(40), plays)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_shrinkage_takes_weight_from_small_items():
    # columns (1, 1, 0) and (1, 0, 0): product 1, norms sqrt 2 and 1: 1 / (sqrt 2 + 10)
    model = ItemCosine(None, shrinkage=10.0).fit(np.array([[1, 1], [1, 0], [0, 0]]))
    assert model.similarity_.toarray()[0, 1] == pytest.approx(1 / (np.sqrt(2) + 10))


def test_binary_looks_only_at_what_is_above_zero(plays):
    signed = plays.copy()
    signed[0, :5] = -3
    one = ItemCosine(binary=True).fit(signed).similarity_
    assert abs(one - ItemCosine().fit(signed > 0).similarity_).max() == 0


def test_blocks_change_nothing(plays, monkeypatch):
    whole = ItemCosine(5).fit(plays).similarity_
    monkeypatch.setattr(baselines, "BLOCK", 70)  # two items at a time
    assert abs(whole - ItemCosine(5).fit(plays).similarity_).max() == 0


def test_of_equally_similar_items_the_first_are_neighbors():
    model = ItemCosine(2).fit(np.ones((3, 5)))
    assert [model.similarity_[:, [item]].nonzero()[0].tolist() for item in (0, 4)] == [[1, 2], [0, 1]]


def test_a_user_without_entries_gets_popularity_not_an_arbitrary_list():  # implicit#134
    model = ItemCosine().fit([[0, 1, 1], [0, 1, 0], [1, 1, 0]])
    np.testing.assert_allclose(model.score_block(np.array([1]), np.zeros((2, 3))), [[1 / 3, 1, 1 / 3]])


def test_new_users_are_scored_from_their_rows(plays):  # implicit#42, #210, #343
    model = ItemCosine().fit(plays)
    alone = model.score_block(np.array([0]), sparse.csr_matrix(plays[[17]]))
    assert (alone == model.score_block(np.array([17]), plays)).all()


def test_transposed_and_empty_matrices_are_refused(plays):  # implicit#608
    model = ItemCosine().fit(plays)
    with pytest.raises(ValueError, match=r"X has shape \(25, 40\), but was fitted with 25 items; X is transposed"):
        model.score_block(np.array([0]), plays.T)
    for baseline in (Popularity(), ItemCosine()):
        with pytest.raises(ValueError, match="has no entries"):
            baseline.fit(np.zeros((3, 2)))


def test_parameters_are_checked_in_fit(plays):
    with pytest.raises(ValueError, match="neighbors=0 must be 1 or more"):
        ItemCosine(0).fit(plays)
    for shrinkage in (-1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="shrinkage"):
            ItemCosine(shrinkage=shrinkage).fit(plays)
    with pytest.raises(NotFittedError):
        Popularity().score_block(np.array([0]))
    assert clone(ItemCosine(7, shrinkage=2.0, binary=True)).get_params() == {
        "neighbors": 7,
        "shrinkage": 2.0,
        "binary": True,
    }
