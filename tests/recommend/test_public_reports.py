"""What users of other packages reported, where no other test states it already."""

import os
import tracemalloc

import numpy as np
import pytest
from scipy import sparse

from tenfold.recommend import ImplicitALS, ranking, ranking_metrics
from tenfold.recommend.kernels import cost_sums


@pytest.mark.parametrize("solver", ["auto", "cholesky", "cg", "subspace"])
def test_hundreds_of_iterations_with_hardly_any_regularization_stay_finite(solver):  # implicit#94, #80, #106
    model = ImplicitALS(15, regularization=1e-6, alpha=40.0, iterations=200, solver=solver, random_state=0, n_jobs=1)
    model.fit(np.eye(10))
    assert np.isfinite(model.user_factors_).all()
    assert np.isfinite(model.item_factors_).all()
    np.testing.assert_allclose(model.score_block(np.arange(10)), np.eye(10), atol=1e-3)


@pytest.mark.skipif(os.name != "posix", reason="needs files with holes")
def test_tables_of_more_than_2_to_31_numbers_are_addressed(tmp_path):  # implicit PR #400, #722
    k = 64
    last = 2**31 // k + 5
    file = np.memmap(tmp_path / "items", np.float32, "w+", shape=(last + 1, k))  # a hole but for two rows
    file[last], file[3] = 0.5, 0.25
    items, users = file.view(np.ndarray), np.full((1, k), 1 / 16, np.float32)
    indptr, confidence = np.array([0, 2]), np.array([3.0, 2.0], np.float32)
    observed, squares = cost_sums.loss_rows(
        0, 1, indptr, np.array([3, last], np.int32), confidence, (1.0, 0.0, 1.0), users, items
    )
    near, far = k * 0.25 / 16, k * 0.5 / 16
    assert observed == pytest.approx(3 * (1 - near) ** 2 + 2 * (1 - far) ** 2)
    assert squares == pytest.approx(near**2 + far**2)


def test_popularity_needs_no_bias_term():  # implicit#176, PR #310
    rng = np.random.default_rng(0)
    chances = np.linspace(0.9, 0.1, 9)
    matrix = (rng.random((4000, 9)) < chances).astype(float)  # users without taste: all that items have is a bias
    model = ImplicitALS(1, regularization=1.0, alpha=1.0, iterations=10, random_state=0, n_jobs=1).fit(matrix)
    order = np.argsort(-model.score_block(np.arange(4000)), axis=1)
    assert (order[model.user_factors_.any(1)] == np.arange(9)).all()


def test_unseen_users_spoil_no_mean():  # SPARK-14489, Spark PR #17102
    plays = np.zeros((4, 6))
    plays[:3, :3] = 1
    test = sparse.csr_array(([1.0, 1.0, 1.0], ([0, 1, 3], [3, 4, 5])), shape=(4, 6))
    model = ImplicitALS(2, iterations=3, random_state=0, n_jobs=1).fit(plays)
    ids, scores = model.recommend([3], plays)
    assert (ids == -1).all()
    assert np.isnan(scores).all()
    unknown = np.where(model.user_factors_.any(1, keepdims=True), model.score_block(np.arange(4)), np.nan)
    found = ranking_metrics(unknown, test, exclude=plays, k=2, unscored="left out")
    assert found.unscored == 1
    assert all(map(np.isfinite, found.values()))
    with pytest.raises(ValueError, match="NaN"):
        ranking_metrics(unknown, test, exclude=plays, k=2)


def test_lists_for_all_keep_the_best_of_a_block_and_not_all_scores():  # SPARK-11968, SPARK-20587, Spark PR #17742, #17845
    rng = np.random.default_rng(0)
    users, items = (rng.standard_normal((rows, 8)).astype(np.float32) for rows in (20_000, 4_000))
    ranking.best_items(users[:10], items, 10, n_jobs=1)  # compiles
    tracemalloc.start()
    ranking.best_items(users, items, 10, n_jobs=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000 * 4_000 * 4 / 20  # all scores would be 320 MB
