"""Lists: exactly those of a full sort, and never junk."""

import numpy as np
import pytest
from scipy import sparse

from tenfold.recommend import ImplicitALS, ranking


def whole_factors(seed, rows, k=3):
    """Small whole numbers: products are exact and ties are many."""
    return np.random.default_rng(seed).integers(-3, 4, (rows, k)).astype(np.float32)


def sorted_lists(users, items, n, hidden=None):
    scores = users @ items.T
    if hidden is not None:
        scores[hidden] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :n]
    best = np.take_along_axis(scores, order, 1)
    order = np.where(np.isfinite(best), order, -1)
    order[~users.any(1)], best[~users.any(1)] = -1, np.nan
    return order, best


@pytest.mark.parametrize(("users", "items", "n"), [(7, 5, 5), (300, 40, 10), (20, 2500, 30), (600, 1100, 1)])
def test_lists_are_those_of_a_full_sort_with_ties_by_lower_item(users, items, n):
    left, right = whole_factors(0, users), whole_factors(1, items)
    seen = sparse.random_array((users, items), density=0.1, format="csr", rng=2)
    for given in (None, seen):
        hidden = None if given is None else given.toarray() != 0
        ids, scores = ranking.best_items(left, right, n, None, given, 2)
        expected_ids, expected_scores = sorted_lists(left, right, n, hidden)
        np.testing.assert_array_equal(ids, expected_ids)
        np.testing.assert_array_equal(scores, expected_scores)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pruning_by_length_loses_no_item(dtype):
    rng = np.random.default_rng(3)
    users = rng.standard_normal((300, 16)).astype(dtype)
    items = (rng.standard_normal((5000, 16)) * rng.lognormal(0, 2, (5000, 1))).astype(dtype)
    ids, scores = ranking.best_items(users, items, 10)
    expected_ids, expected_scores = sorted_lists(users, items, 10)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5)


def fitted_on(matrix):
    return ImplicitALS(4, regularization=0.5, random_state=0, iterations=3).fit(matrix)


def counts():
    matrix = sparse.random_array((30, 40), density=0.2, format="csr", rng=0)
    matrix.data[:] = 2
    return matrix


def test_exhausted_lists_end_in_no_item():  # implicit#172, #299, #198, #736, PR #507
    matrix = counts().toarray()
    matrix[3] = 0
    matrix[3, :6] = 1
    ids, scores = fitted_on(matrix).recommend(3, matrix, n=40)
    assert (ids[:34] >= 6).all()
    assert np.isfinite(scores[:34]).all()
    assert len(set(ids[:34])) == 34
    assert (ids[34:] == -1).all()
    assert (scores[34:] == -np.inf).all()
    ids, scores = fitted_on(matrix).recommend([3, 4], matrix, n=100)
    assert ids.shape == scores.shape == (2, 100)
    assert (ids[0, 34:] == -1).all()


def test_user_without_entries_gets_no_list():  # implicit#134
    matrix = counts().toarray()
    matrix[5] = 0
    fitted = fitted_on(matrix)
    ids, scores = fitted.recommend([4, 5], matrix)
    assert (ids[0] >= 0).all()
    assert (ids[1] == -1).all()
    assert np.isnan(scores[1]).all()
    ids, scores = fitted.recommend_for_factors(fitted.fold_in_users(np.zeros((1, 40))))
    assert (ids == -1).all()
    assert np.isnan(scores).all()


def test_rows_of_all_users_or_one_for_each_asked_for():  # implicit#535, #626, #628
    matrix = counts()
    fitted = fitted_on(matrix)
    whole, rows = fitted.recommend([9, 2, 2], matrix), fitted.recommend([9, 2, 2], matrix[[9, 2, 2]])
    np.testing.assert_array_equal(whole[0], rows[0])
    single = fitted.recommend(9, matrix[[9]])
    np.testing.assert_array_equal(single[0], whole[0][0])
    assert single[0].shape == (10,)
    assert single[0].dtype == np.int64
    with pytest.raises(ValueError, match=r"X has 2 rows; 3 \(one for each user asked for\) or 30 \(all users\)"):
        fitted.recommend([9, 2, 2], matrix[:2])
    with pytest.raises(ValueError, match="exclude_seen=True needs X"):
        fitted.recommend(0)
    empty = fitted.recommend([], matrix)
    assert empty[0].shape == (0, 10)


def test_items_are_chosen_and_left_out():
    matrix = counts()
    fitted = fitted_on(matrix)
    ids, _ = fitted.recommend(0, n=4, exclude_seen=False, items=[7, 3, 9], exclude_items=[9])
    assert set(ids[:2]) == {3, 7}
    assert ids[2:].tolist() == [-1, -1]
    ids, _ = fitted.recommend(0, n=40, exclude_seen=False, exclude_items=[1, 2])
    assert not {1, 2} & set(ids.tolist())
    for bad in (-1, 40):
        with pytest.raises(ValueError, match=f"item {bad} is not one of the 40 items"):
            fitted.recommend(0, matrix, items=[bad])


def test_names_of_implicit_mean_the_same():
    matrix = counts()
    fitted = fitted_on(matrix)
    ours = fitted.recommend(1, n=5, exclude_seen=False, exclude_items=[2])
    theirs = fitted.recommend(1, matrix, N=5, filter_already_liked_items=False, filter_items=[2])
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1], theirs[1])


@pytest.mark.parametrize("n", [0, -1, 2.5, True])
def test_length_of_a_list_is_a_whole_number(n):
    fitted = fitted_on(counts())
    for call in (lambda: fitted.recommend(0, counts(), n=n), lambda: fitted.similar_items(0, n=n)):
        with pytest.raises((ValueError, TypeError), match=r"n=|parameter 'n'"):
            call()


def test_similar_rows_are_sorted_by_cosine_with_the_row_itself_first():
    factors = np.array([[1, 0], [0, 0], [2, 0], [1, 1], [-1, 0]], np.float32)
    ids, cosines = ranking.most_similar(factors, 2, 9)
    assert ids.tolist() == [2, 0, 3, 1, 4]
    np.testing.assert_allclose(cosines, [1, 1, np.sqrt(0.5), 0, -1], rtol=1e-6)
    ids, cosines = ranking.most_similar(factors, 1, 3)
    assert ids.tolist() == [1, 0, 2]
    assert cosines.tolist() == [0, 0, 0]
