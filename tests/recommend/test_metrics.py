"""Metrics of rankings: worked by hand, by brute force, and by scikit-learn where the definitions meet."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.metrics import ndcg_score, roc_auc_score

from tenfold.recommend.metrics import bootstrap_interval, ranking_metrics

# Six items. The order by score is 2, 0, 5, 1, 4, 3. Item 0 was seen in training: candidates 2, 5, 1, 4, 3.
SCORES = np.array([[0.8, 0.4, 0.9, 0.1, 0.3, 0.6]])
SEEN = np.array([[1, 0, 0, 0, 0, 0]])
TEST = np.array([[0, 0, 0, 3, 0, 1]])  # item 5 (r = 1) has rank 2, item 3 (r = 3) rank 5: n = 2


def test_one_user_by_hand():
    found = ranking_metrics(SCORES, TEST, exclude=SEEN, k=(1, 2, 5))
    log = np.log2
    expected = {
        "recall@1": 0 / 1,  # min(1, 2) = 1
        "recall@2": 1 / 2,
        "recall@5": 2 / 2,  # min(5, 2) = 2
        "precision@1": 0,
        "precision@2": 1 / 2,
        "precision@5": 2 / 5,
        "ndcg@1": 0,
        "ndcg@2": (1 / log(3)) / (1 / log(2) + 1 / log(3)),
        "ndcg@5": (1 / log(3) + 1 / log(6)) / (1 / log(2) + 1 / log(3)),
        "map@1": 0,
        "map@2": (1 / 2) / 2,
        "map@5": (1 / 2 + 2 / 5) / 2,
        "hit_rate@1": 0,
        "hit_rate@2": 1,
        "hit_rate@5": 1,
        "mrr": 1 / 2,
        # pairs of a relevant item and one of 2, 1, 4: item 5 beats 1 and 4, item 3 beats none: 2 of 6
        "auc": 2 / 6,
        # ranks 2 and 5 of 5 lie at 25 % and 100 %: (1 * 25 + 3 * 100) / 4
        "mpr": 81.25,
        "coverage@1": 1 / 6,
        "coverage@2": 2 / 6,
        "coverage@5": 5 / 6,
    }
    assert set(found) == set(expected)
    assert dict(found) == pytest.approx(expected)


def test_means_are_over_users_and_mpr_is_weighted_by_r():
    # user 0 finds her item first (r = 1, 0 %), user 1 last (r = 3, 100 %), user 2 has no test items
    scores = np.array([[3.0, 2, 1], [3, 2, 1], [1, 2, 3]])
    test = sparse.csr_array(np.array([[1.0, 0, 0], [0, 0, 3], [0, 0, 0]]))
    found = ranking_metrics(scores, test, k=1)
    assert found["recall@1"] == 0.5
    assert found["mrr"] == pytest.approx((1 + 1 / 3) / 2)
    assert found["mpr"] == pytest.approx((1 * 0 + 3 * 100) / 4)
    assert found["coverage@1"] == pytest.approx(1 / 3)  # both lists hold item 0; user 2 is not judged
    assert found.per_user["recall@1"].tolist() == [1, 0]
    assert found.per_user["mpr"].tolist() == [0, 100]
    assert found.users.tolist() == [0, 1]
    assert (found.left_out, found.unscored) == (1, 0)
    assert found.user_weights.tolist() == [1, 3]


def test_weights_replace_the_values_of_the_test():
    scores, test = np.array([[3.0, 2, 1]]), np.array([[1, 0, 1]])  # at 0 % and 100 %
    assert ranking_metrics(scores, test)["mpr"] == 50
    assert ranking_metrics(scores, test, weights=np.array([[3, 5, 1]]))["mpr"] == 25
    with pytest.raises(ValueError, match="weights are zero at every test entry"):
        ranking_metrics(scores, test, weights=np.array([[0, 1, 0]]))
    with pytest.raises(ValueError, match="must be 0 or more"):
        ranking_metrics(scores, test, weights=-test)
    with pytest.raises(ValueError, match="weights has shape"):
        ranking_metrics(scores, test, weights=np.ones((1, 2)))


def test_ties_go_by_item_index_for_ranks_and_by_the_middle_for_auc_and_mpr():
    # All of 5 equal: item 3 has rank 4 in order and rank 3 in the middle: 50 %, and beats half of the others.
    found = ranking_metrics(np.zeros((1, 5)), np.array([[0, 0, 0, 1, 0]]), k=(3, 4))
    assert (found["recall@3"], found["recall@4"], found["mrr"]) == (0, 1, 1 / 4)
    assert (found["auc"], found["mpr"]) == (0.5, 50)
    assert found["coverage@3"] == 3 / 5


def test_chance_is_half_way():
    rng = np.random.default_rng(0)
    test = sparse.random_array((500, 200), density=0.05, rng=rng)
    found = ranking_metrics(rng.random((500, 200)), test)
    # about 5,000 entries of uniform percentile, standard deviation 29: 0.41 of the mean
    assert found["mpr"] == pytest.approx(50, abs=5 * 0.5)
    assert found["auc"] == pytest.approx(0.5, abs=0.02)


def test_minus_infinity_is_never_recommended():
    found = ranking_metrics(np.array([[1.0, -np.inf, -np.inf]]), np.array([[0, 1, 0]]), k=3)
    assert (found["recall@3"], found["mrr"], found["ndcg@3"], found["coverage@3"]) == (0, 0, 0, 1 / 3)
    assert found["mpr"] == 75  # the middle of ranks 2 and 3 of 3


def test_a_single_candidate_is_in_the_middle_and_has_no_auc():
    found = ranking_metrics(np.ones((1, 2)), np.array([[1, 0]]), exclude=np.array([[0, 1]]))
    assert found["mpr"] == 50
    assert np.isnan(found["auc"])
    assert found["recall@100"] == 1


def brute_force(scores, test, excluded, k):
    """Straight from the definitions, one user at a time."""
    rows = []
    for s, t, e in zip(scores, test, excluded, strict=True):
        relevant = set(np.flatnonzero(t > 0))
        if not relevant:
            continue
        candidates = sorted((i for i in range(len(s)) if not e[i]), key=lambda i: (-s[i], i))
        rank = {item: place for place, item in enumerate(candidates, start=1)}
        hits = [rank[i] for i in candidates[:k] if i in relevant]
        ideal = sum(1 / np.log2(place + 1) for place in range(1, min(k, len(relevant)) + 1))
        pairs = [(s[i] > s[j]) + 0.5 * (s[i] == s[j]) for i in relevant for j in candidates if j not in relevant]
        middle = {
            i: 1 + sum(s[j] > s[i] for j in candidates) + (sum(s[j] == s[i] for j in candidates) - 1) / 2
            for i in relevant
        }
        last = len(candidates) - 1
        rows.append(
            {
                f"recall@{k}": len(hits) / min(k, len(relevant)),
                f"precision@{k}": len(hits) / k,
                f"ndcg@{k}": sum(1 / np.log2(r + 1) for r in hits) / ideal,
                f"map@{k}": sum((place + 1) / r for place, r in enumerate(hits)) / min(k, len(relevant)),
                f"hit_rate@{k}": float(bool(hits)),
                "mrr": 1 / min(rank[i] for i in relevant),
                "auc": np.mean(pairs) if pairs else np.nan,
                "mpr": sum(t[i] * (100 * (middle[i] - 1) / last if last else 50) for i in relevant)
                / sum(t[i] for i in relevant),
                "top": set(candidates[:k]),
            }
        )
    return rows


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 9), st.integers(1, 12), st.booleans(), st.integers(1, 4)
)
def test_every_metric_equals_its_definition(seed, users, items, k, coarse, block):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 3, (users, items)).astype(float) if coarse else rng.random((users, items))
    kind = rng.integers(0, 4, (users, items))  # 0: test, 1: training, 2 and 3: neither
    test, seen = np.where(kind == 0, rng.integers(1, 5, kind.shape), 0), kind == 1
    if not test.any():
        return
    expected = brute_force(scores, test, seen, k)
    found = ranking_metrics(lambda some: scores[some], test, exclude=seen, k=k, block_size=block)
    for name, values in found.per_user.items():
        np.testing.assert_allclose(values, [row[name] for row in expected], rtol=1e-12, err_msg=name)
    assert found[f"coverage@{k}"] == pytest.approx(len(set().union(*(row["top"] for row in expected))) / items)
    assert found.left_out == users - len(expected)


def test_scikit_learn_agrees_on_ndcg_and_auc():
    rng = np.random.default_rng(3)
    scores, test = rng.random((30, 40)), rng.random((30, 40)) < 0.2
    test[:, 0] = True
    found = ranking_metrics(scores, test, k=10)
    assert found["ndcg@10"] == pytest.approx(ndcg_score(test, scores, k=10))
    assert found["auc"] == pytest.approx(np.mean([roc_auc_score(t, s) for t, s in zip(test, scores, strict=True)]))


def test_dislikes_and_explicit_zeros_in_the_test_are_not_relevant():
    test = sparse.csr_array((np.array([1.0, 0.0, -2.0]), np.array([0, 1, 2]), np.array([0, 3])), shape=(1, 3))
    found = ranking_metrics(np.array([[3.0, 2, 1]]), test, k=3)
    assert (found["recall@3"], found["precision@3"], found["mpr"]) == (1, 1 / 3, 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_scores_of_any_type_are_ranked_and_left_as_they_were(dtype):
    scores = (10 * SCORES).astype(dtype)
    before = scores.copy()
    assert ranking_metrics(scores, TEST, exclude=SEEN)["mpr"] == 81.25
    assert (scores == before).all()


def test_missing_scores_are_named_or_their_users_left_out_and_counted():  # SPARK-14489
    scores = np.array([[1.0, 2.0], [np.nan, np.nan]])
    test = np.array([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="the score of item 0 for user 1 is NaN; unscored='left out'"):
        ranking_metrics(scores, test)
    found = ranking_metrics(scores, test, unscored="left out")
    assert (found["mrr"], found.unscored, found.users.tolist()) == (1, 1, [0])
    scores[1, 1] = 0
    with pytest.raises(ValueError, match=r"the score of item 0 for user 1 is NaN$"):
        ranking_metrics(scores, test, unscored="left out")
    with pytest.raises(ValueError, match="all are NaN"):
        ranking_metrics(np.full((1, 2), np.nan), [[0, 1]], unscored="left out")


@pytest.mark.parametrize(
    ("scores", "changes", "message"),
    [
        (SCORES.T, {}, r"scores has shape \(6, 1\), test \(1, 6\): both are \(users, items\); scores are transposed"),
        (SCORES[:, :5], {}, r"scores has shape \(1, 5\), test \(1, 6\)"),
        (lambda users: SCORES[0], {}, r"shape \(6,\) for 1 users and 6 items; \(1, 6\) is needed"),
        (SCORES * 1j, {}, "scores are complex128"),
        (SCORES, {"exclude": SEEN.T}, r"exclude has shape \(6, 1\), .* transposed"),
        (SCORES, {"exclude": TEST}, r"item 3 of user 0 is in test and in exclude \(2 such entries\)"),
        (SCORES, {"test": 0 * TEST}, "there is nothing to find"),
        (SCORES, {"k": 0}, "k=0 must be one or more whole numbers from 1"),
        (SCORES, {"k": (5, True)}, "whole numbers from 1"),
        (SCORES, {"k": ()}, "must name at least one length"),
        (SCORES, {"unscored": "skip"}, "neither 'error' nor 'left out'"),
        (SCORES, {"block_size": 0}, "block_size=0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(scores, changes, message):  # implicit#608 among them
    with pytest.raises(ValueError, match=message):
        ranking_metrics(scores, **({"test": TEST} | changes))


def test_a_function_is_asked_for_judged_users_a_block_at_a_time():
    asked = []

    def scores(users):
        asked.append(users.tolist())
        return np.zeros((len(users), 3), np.float32)

    test = np.array([[1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 1, 0]])
    ranking_metrics(scores, test, block_size=2)
    assert asked == [[0, 2], [3]]


def test_bootstrap_interval_has_the_width_of_the_standard_error():
    values = np.random.default_rng(0).normal(size=4000)
    low, high = bootstrap_interval(values, random_state=1)
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / np.sqrt(4000), rel=0.1)
    assert low < values.mean() < high
    assert bootstrap_interval(values, random_state=1) == (low, high)


def test_interval_of_mpr_is_weighted_as_mpr_is():
    rng = np.random.default_rng(0)
    found = ranking_metrics(rng.random((200, 30)), rng.integers(0, 40, (200, 30)) * (rng.random((200, 30)) < 0.1))
    low, high = found.interval("mpr", random_state=0)
    assert low < found["mpr"] < high
    low, high = found.interval("recall@10", random_state=0)
    assert low < found["recall@10"] < high
    with pytest.raises(ValueError, match="'coverage@10' has no values of single users"):
        found.interval("coverage@10")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": [np.nan]}, "nothing but NaN"),
        ({"values": [[1.0]]}, r"shape \(users,\)"),
        ({"values": [1.0], "weights": [1.0, 2.0]}, r"shape \(users,\)"),
        ({"values": [1.0], "confidence": 95}, "must lie between 0 and 1"),
        ({"values": [1.0], "resamples": 0}, "must be 1 or more"),
    ],
)
def test_bootstrap_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(**arguments)
