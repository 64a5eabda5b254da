"""The estimator: what it minimises, what it answers, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from tenfold.recommend import ImplicitALS
from tenfold.recommend.fitting import start_factors
from tenfold.recommend.matrices import canonical_matrix
from tenfold.recommend.solvers import half_step
from tenfold.recommend.training import alternate


def counts(seed=0, shape=(60, 40), density=0.15, dislikes=False):
    rng = np.random.default_rng(seed)
    matrix = sparse.random_array(shape, density=density, format="csr", rng=rng)
    matrix.data = rng.integers(1, 6, matrix.nnz).astype(np.float64)
    if dislikes:
        matrix.data *= rng.choice([1, 1, 1, -1], matrix.nnz)
    return matrix


def model(**parameters):
    defaults = {"factors": 6, "regularization": 0.5, "alpha": 2.0, "iterations": 4, "random_state": 0, "n_jobs": 1}
    return ImplicitALS(**{**defaults, **parameters})


def dense_loss(fitted, matrix):
    """Cell by cell, as the two papers write it."""
    r = matrix.toarray()
    size = np.abs(r)
    confidence = {
        "linear": 1 + fitted.alpha * size,
        "log": 1 + fitted.alpha * np.log1p(size / fitted.epsilon),
        "raw": size,
    }[fitted.confidence]
    seen, preference = r != 0, (r > 0).astype(float)
    users, items = fitted.user_factors_.astype(float), fitted.item_factors_.astype(float)
    scores = users @ items.T
    observed = (confidence * (preference - scores) ** 2)[seen].sum()
    everywhere = seen if fitted.target == "hkv" else np.zeros_like(seen)
    unobserved = fitted.unobserved_weight * (scores**2)[~everywhere].sum()
    w0, nu = fitted.unobserved_weight, fitted.frequency_exponent
    penalties = (
        fitted.regularization * ((seen.sum(axis) + w0 * r.shape[axis]) ** nu) @ (factors**2).sum(1)
        for axis, factors in ((1, users), (0, items))
    )
    return observed, unobserved, sum(penalties)


# --- the cost ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["hkv", "rendle"])
@pytest.mark.parametrize("confidence", ["linear", "log", "raw"])
@pytest.mark.parametrize("nu", [0.0, 0.7])
def test_loss_is_the_dense_sum_with_its_parts(target, confidence, nu):
    # implicit's calculate_loss adds the confidence of dislikes although their preference is 0
    matrix = counts(dislikes=True)
    fitted = model(
        target=target, confidence=confidence, frequency_exponent=nu, unobserved_weight=1.5, epsilon=0.3, dtype="float64"
    ).fit(matrix)
    loss = fitted.loss(matrix)
    np.testing.assert_allclose((loss.observed, loss.unobserved, loss.regularization), dense_loss(fitted, matrix))
    assert loss.total == pytest.approx(sum(dense_loss(fitted, matrix)), rel=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("parameters", [{}, {"target": "rendle", "unobserved_weight": 0.1, "frequency_exponent": 1.0}])
def test_loss_never_rises_under_the_exact_solver(dtype, parameters):
    matrix = counts(1, dislikes=True)
    fitted = model(solver="cholesky", dtype=dtype, iterations=20, **parameters).fit(matrix)
    history = np.array(fitted.loss_history_)
    assert len(history) == fitted.n_iter_ == 20
    assert (np.diff(history) <= (1e-6 if dtype == "float32" else 1e-12) * history[:-1]).all()
    assert fitted.loss(matrix).total <= history[-1] * (1 + 1e-6)  # users were solved once more


@pytest.mark.parametrize("solver", ["auto", "cholesky", "cg", "subspace"])
@pytest.mark.parametrize("parameters", [{}, {"alpha": 1e5}, {"target": "rendle", "frequency_exponent": 0.5}])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_history_is_the_loss_of_each_iteration(solver, parameters, dtype):
    matrix = canonical_matrix(counts(2, dislikes=True), "X")
    fitted = model(solver=solver, dtype=dtype, **parameters)
    objective, expected = fitted.objective(), []

    def note(users, items, losses):
        expected.append(objective.loss(matrix, users, items).total)

    start = start_factors((matrix.shape[1], fitted.factors), random_state=0, dtype=dtype)
    options = {"unobserved_weight": fitted.unobserved_weight, "target": fitted.target, "solver": solver, "n_jobs": 1}
    *_, history = alternate(
        start, None, *objective.sides(matrix), iterations=4, step=half_step, on_iteration=note, **options
    )
    assert len(history) == 4
    np.testing.assert_allclose(history, expected, rtol={"float32": 1e-5, "float64": 1e-11}[dtype])


def test_the_two_costs_convert_into_each_other_exactly():
    matrix, c, w0, nu = counts(2), 1.7, 0.2, 0.6
    matrix.data[:] = c
    t = c / (c + w0)
    start = np.random.default_rng(0).standard_normal((40, 6)) / 10
    shared = {"confidence": "raw", "dtype": "float64", "solver": "cholesky", "frequency_exponent": nu}
    second = model(target="rendle", unobserved_weight=w0, regularization=0.3, **shared)
    second.fit(matrix, item_factors=start)
    raised = matrix * ((c + w0) / c)
    first = model(unobserved_weight=w0, regularization=0.3 / t, **shared).fit(raised, item_factors=start / math.sqrt(t))
    # float32 holds the confidences: c + w0 is rounded to 1e-7
    np.testing.assert_allclose(first.user_factors_ * math.sqrt(t), second.user_factors_, atol=1e-6)
    np.testing.assert_allclose(first.item_factors_ * math.sqrt(t), second.item_factors_, atol=1e-6)
    constant = matrix.nnz * (c - (c + w0) * t * t)
    assert second.loss(matrix).total == pytest.approx(first.loss(raised).total * t * t + constant, rel=1e-6)
    divided = {**shared, "frequency_exponent": 0.0}
    second = model(target="rendle", unobserved_weight=w0, regularization=0.3, **divided).fit(matrix, item_factors=start)
    first = model(regularization=0.3 / (w0 * t), **divided)
    first.fit(raised / w0, item_factors=start / math.sqrt(t))
    np.testing.assert_allclose(first.item_factors_ * math.sqrt(t), second.item_factors_, atol=1e-6)


def test_alpha_zero_leaves_every_cell_the_same_weight():
    matrix = counts(3)
    fitted = model(alpha=0.0, dtype="float64", iterations=60, factors=40, regularization=1e-3).fit(matrix)
    np.testing.assert_allclose(fitted.user_factors_ @ fitted.item_factors_.T, (matrix.toarray() > 0), atol=0.02)


# --- fitting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        lambda m: m.toarray(),
        lambda m: m.toarray().astype(np.int32),
        lambda m: m.tocoo(),
        lambda m: m.tocsc(),
        lambda m: sparse.csr_matrix(m),
        lambda m: m.astype(np.float32),
        lambda m: m.astype(np.int64),
        lambda m: sparse.csr_array((m.data, m.indices.astype(np.int64), m.indptr.astype(np.int64)), shape=m.shape),
        lambda m: sparse.coo_array(  # halves as duplicates, implicit's factors are off by 0.51
            (np.tile(m.data / 2, 2), (np.tile(m.tocoo().row, 2), np.tile(m.indices, 2))), shape=m.shape
        ),
        lambda m: sparse.csr_array(  # an explicit zero at the end of the last row
            (np.append(m.data, 0), np.append(m.indices, 39), np.append(m.indptr[:-1], m.nnz + 1)), shape=m.shape
        ),
    ],
    ids=["dense", "int", "coo", "csc", "matrix", "float32", "int64", "int64 indices", "duplicates", "zeros"],
)
def test_every_form_of_a_matrix_gives_the_same_factors(given):
    matrix = counts()
    np.testing.assert_array_equal(
        model().fit(given(matrix)).user_factors_, model().fit(matrix.astype(np.float32)).user_factors_
    )


def test_booleans_count_as_one():
    matrix = counts() > 0
    np.testing.assert_array_equal(
        model().fit(matrix).item_factors_, model().fit(matrix.astype(np.float64)).item_factors_
    )


def test_second_fit_starts_anew():  # implicit warm-starts silently
    fitted = model().fit(counts(5))
    again = fitted.fit(counts()).user_factors_
    np.testing.assert_array_equal(again, model().fit(counts()).user_factors_)
    assert len(fitted.loss_history_) == 4


def test_partial_fit_goes_on_where_fit_stopped():
    matrix = counts()
    fitted = model(solver="cholesky", dtype="float64", iterations=3).fit(matrix).partial_fit(matrix)
    np.testing.assert_allclose(
        fitted.loss_history_, model(solver="cholesky", dtype="float64", iterations=6).fit(matrix).loss_history_
    )
    assert fitted.n_iter_ == 6
    first = model().partial_fit(matrix)
    np.testing.assert_array_equal(first.item_factors_, model().fit(matrix).item_factors_)
    with pytest.raises(ValueError, match="factors=7, but the factors to continue from have 6"):
        first.set_params(factors=7).partial_fit(matrix)


def test_given_item_factors_are_the_start():
    matrix, start = counts(), np.random.default_rng(1).standard_normal((40, 6))
    one = model(iterations=1, solver="cholesky").fit(matrix, item_factors=start)
    other = model(iterations=1, solver="cholesky", random_state=3).fit(matrix, item_factors=start)
    np.testing.assert_array_equal(one.item_factors_, other.item_factors_)
    with pytest.raises(ValueError, match=r"item_factors has shape \(40, 5\), but .* \(40, 6\) is needed"):
        model().fit(matrix, item_factors=start[:, :5])


def test_factors_have_the_same_bits_for_any_number_of_threads():
    one, two, three = (model(n_jobs=jobs, factors=19).fit(counts()) for jobs in (1, 2, 3))
    np.testing.assert_array_equal(one.user_factors_, two.user_factors_)
    np.testing.assert_array_equal(one.item_factors_, three.item_factors_)
    assert one.loss_history_ == two.loss_history_ == three.loss_history_


def test_tolerance_stops_early_and_callback_hears_each_iteration():
    heard = []
    fitted = model(iterations=200, tol=1e-3).fit(counts(), callback=lambda *told: heard.append(told))
    assert fitted.n_iter_ < 100
    assert [loss for _, loss in heard] == fitted.loss_history_


def test_estimator_keeps_the_contract_of_scikit_learn():
    made = model(alpha=7.0)
    copy = clone(made.fit(counts()))
    assert copy.get_params() == made.get_params()
    assert not hasattr(copy, "item_factors_")
    assert copy.set_params(factors=3).factors == 3
    with pytest.raises(NotFittedError):
        copy.recommend(0, counts())


# --- folding in, explaining, scoring -------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["hkv", "rendle"])
@pytest.mark.parametrize("solver", ["auto", "cg", "subspace"])
def test_folding_in_a_row_of_the_training_gives_its_factors(target, solver):  # implicit#42, #152, #210, #343, PR #526
    matrix = counts(dislikes=True)
    fitted = model(target=target, solver=solver).fit(matrix)
    np.testing.assert_allclose(fitted.fold_in_users(matrix), fitted.user_factors_, atol=1e-6)
    np.testing.assert_allclose(fitted.fold_in_users(matrix.toarray()[3]), fitted.user_factors_[3:4], atol=1e-6)


def test_new_items_fold_in_by_their_users():
    matrix = counts()
    fitted = model(dtype="float64", iterations=300, solver="cholesky").fit(matrix)
    np.testing.assert_allclose(fitted.fold_in_items(matrix.T), fitted.item_factors_, atol=1e-4)


@pytest.mark.parametrize("parameters", [{}, {"target": "rendle", "unobserved_weight": 0.3, "frequency_exponent": 1.0}])
def test_explanation_sums_to_the_score(parameters):  # implicit#175, #646: half a step apart
    matrix = counts(dislikes=True)
    fitted = model(solver="cg", dtype="float64", **parameters).fit(matrix)
    ids, scores = fitted.recommend(7, matrix)
    for item, score in zip(ids, scores, strict=True):
        explained = fitted.explain(7, int(item), matrix)
        assert explained.total == pytest.approx(score, rel=1e-9)
        assert explained.contributions.sum() == pytest.approx(score, rel=1e-9)
        assert sorted(explained.items) == sorted(matrix[[7]].indices)
        assert (np.diff(explained.contributions) <= 0).all()
    assert fitted.explain(7, 0, matrix[[7]]).total == pytest.approx(fitted.score(7, 0), rel=1e-9)


def test_scores_are_inner_products_and_percentiles_their_places():  # implicit#202, #270, #321, #399, #186
    fitted = model().fit(counts())
    scores = fitted.user_factors_ @ fitted.item_factors_.T
    np.testing.assert_allclose(fitted.score([[0], [5]], [1, 2, 3]), scores[[0, 5]][:, 1:4], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(fitted.score_block([0, 5]), scores[[0, 5]], rtol=1e-5, atol=1e-6)
    order = np.argsort(-scores[4])
    percent = fitted.rank_percentile(np.full(40, 4), order)
    np.testing.assert_allclose(percent, 100 * np.arange(40) / 39)
    empty = np.zeros((40, 40))
    empty[0, 0] = 1
    assert model().fit(empty).rank_percentile(3, 5) == 50.0  # all scores are 0


def test_embeddings_hold_the_factors():
    fitted = model().fit(counts())
    users, items = fitted.to_embeddings()
    product = (users(torch.tensor([3])) * items(torch.tensor([4]))).sum()
    assert product.item() == pytest.approx(float(fitted.score(3, 4)), rel=1e-5)
    assert fitted.user_factors is fitted.user_factors_
    assert fitted.item_factors is fitted.item_factors_


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"factors": 0}, "factors=0 must be a whole number of at least 1"),
        ({"factors": 2.5}, "factors=2.5 must be a whole number"),
        ({"iterations": True}, "iterations=True must be"),
        ({"alpha": -1.0}, "alpha=-1.0 must be finite and at least 0"),
        ({"alpha": math.nan}, "alpha=nan must be finite"),
        ({"regularization": -0.1}, "regularization=-0.1 must be finite and at least 0"),
        ({"epsilon": 0.0}, "epsilon=0.0 must be finite and above 0"),
        ({"unobserved_weight": 0.0}, "unobserved_weight=0.0 must be finite and above 0"),
        ({"frequency_exponent": math.inf}, "frequency_exponent=inf must be finite"),
        ({"confidence": "log2"}, "confidence='log2' is not one of 'linear', 'log', 'raw'"),
        ({"target": "bpr"}, "target='bpr' is not one of 'hkv', 'rendle'"),
        ({"solver": "lu"}, "solver='lu' is not one of 'auto', 'cholesky', 'cg', 'subspace'"),
        ({"dtype": "float16"}, "dtype='float16' is not one of"),
        ({"tol": -1.0}, "tol=-1.0 must be at least 0"),
        ({"n_jobs": 0}, "n_jobs=0 must be at least 1"),
        ({"factors": 41, "regularization": 0.0}, "regularization=0 leaves a singular system"),
        ({"alpha": 1e38}, "a confidence is beyond float32"),
    ],
)
def test_parameters_out_of_range_are_refused(parameters, message):
    with pytest.raises(ValueError, match=f"^{message}".replace("(", r"\(")):
        model().set_params(**parameters).fit(counts())


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros((3, 4)), r"X of shape \(3, 4\) has no entry that is not zero"),
        (np.zeros((0, 4)), r"X of shape \(0, 4\) has no entry"),
        (np.array([[1, np.nan]]), r"X\[0, 1\] = nan; finite numbers"),
        (np.array([[1, 0], [0, np.inf]]), r"X\[1, 1\] = inf"),
        (np.ones(3), r"X has shape \(3,\); a matrix \(users, items\) is needed"),
        (np.array([["a"]]), "X holds <U1; floats, integers or booleans are needed"),
    ],
)
def test_matrices_that_hold_nothing_usable_are_refused(matrix, message):
    with pytest.raises(ValueError, match=message):
        model(factors=1).fit(matrix)


def test_failed_fit_leaves_the_fitted_model_as_it_was():
    fitted = model().fit(counts())
    history, items = fitted.loss_history_, fitted.item_factors_
    with pytest.raises(ValueError, match="singular"):
        fitted.set_params(factors=41, regularization=0.0).fit(counts())
    assert fitted.loss_history_ is history
    assert fitted.item_factors_ is items


def test_matrices_of_another_shape_are_refused_with_both_shapes():  # implicit#608, #370, #655, #705, #738
    fitted, matrix = model().fit(counts()), counts()
    for call in (fitted.loss, fitted.partial_fit, lambda x: fitted.recommend(0, x), lambda x: fitted.explain(0, 0, x)):
        with pytest.raises(ValueError, match=r"\(40, 60\).*\(60, 40\).*this one is transposed"):
            call(matrix.T)
    with pytest.raises(ValueError, match=r"X has shape \(60, 39\)"):
        fitted.recommend(0, matrix[:, :39])
    with pytest.raises(ValueError, match=r"X has shape \(40, 60\), but \(rows, items\) with 40 columns is needed"):
        fitted.fold_in_users(matrix.T)
    with pytest.raises(ValueError, match="engine='spark' is not one of 'local', 'ray'"):
        fitted.fit(matrix, engine="spark")


def test_ids_that_are_none_are_refused():  # negative ids wrap round in implicit
    fitted, matrix = model().fit(counts()), counts()
    for call in (
        lambda user: fitted.recommend(user, matrix),
        lambda user: fitted.score(user, 0),
        lambda user: fitted.rank_percentile(user, 0),
        lambda user: fitted.explain(user, 0, matrix),
        fitted.similar_users,
    ):
        for user in (-1, 60):
            with pytest.raises(ValueError, match=f"user {user} is not one of the 60 users 0 to 59"):
                call(user)
    with pytest.raises(ValueError, match="item 40 is not one of the 40 items"):
        fitted.similar_items(40)
    with pytest.raises(ValueError, match="user ids must be whole numbers, not <U3"):
        fitted.recommend("ann", matrix)
    with pytest.raises(ValueError, match="one user, or a list of them"):
        fitted.recommend([[0, 1]], matrix)
