"""Users by items with their ids: built from arrays, weighted by age, cut to minimum counts, aligned to other ids."""

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from tenfold.errors import InputError
from tenfold.recommend.events import Events, momentum_weights
from tenfold.recommend.identifiers import encode_ids, find_ids
from tenfold.recommend.interactions import Interactions
from tenfold.recommend.matrices import canonical_matrix

IDS = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30),
    st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1), min_size=1, max_size=30),
)


# --- ids ---------------------------------------------------------------------------------------------------------------


@given(IDS)
def test_ids_come_back_from_their_codes(values):
    distinct, codes = encode_ids(values, "users")
    assert distinct.tolist() == sorted(set(values))
    assert distinct[codes].tolist() == values


@given(IDS, st.randoms())
def test_ids_are_found_in_any_order(values, random):
    distinct = encode_ids(values, "users")[0]
    shuffled = distinct[random.sample(range(len(distinct)), len(distinct))]
    assert shuffled[find_ids(shuffled, values, "users")].tolist() == values


def test_order_of_events_changes_nothing():
    users, items = np.array(["c", "a", "b", "a"]), np.array([9, 3, 3, 1])
    one, other = Interactions(users, items), Interactions(users[::-1], items[::-1])
    assert one.user_ids.tolist() == other.user_ids.tolist() == ["a", "b", "c"]
    assert (one.matrix != other.matrix).nnz == 0


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ([1, "a"], r"users\[1\] = 'a', the first is 1; ids are all integers or all strings"),
        (["a", None], r"users\[1\] = None, the first is 'a'"),
        ([None, "a"], r"users\[0\] = None"),
        (["a", ""], r"users\[1\] is an empty string"),
        ([1.0, 2.0], r"users\[0\] = 1.0"),
        (np.array([1.5, 2.0]), r"users holds float64; users\[0\] is np.float64\(1.5\); ids are integers or strings"),
        ([True, False], r"users\[0\] = True"),
        ([2**63, 1], r"users holds an integer beyond 64 bits; give such ids as strings"),
        (np.array([2**63, 1], dtype=np.uint64), r"must be below 2\*\*63"),
        (["a\0", "a"], r"ends in a NUL character"),
        ([[1], [2]], r"users\[0\] = \[1\]"),
        (np.ones((2, 1), int), r"users has shape \(2, 1\)"),
    ],
)
def test_ids_that_are_neither_integers_nor_strings_are_named(users, message):
    with pytest.raises(ValueError, match=message):
        Interactions(users, [1, 2])


def test_unseen_ids_are_named():
    plays = Interactions(["ann", "bob"], [1, 2])
    assert plays.user_index("bob") == 1
    assert plays.user_index(["bob", "ann"]).tolist() == [1, 0]
    assert plays.item_index(np.array([2])).tolist() == [1]
    with pytest.raises(InputError, match="user 'eve' is not among the 2 known users"):
        plays.user_index("eve")
    with pytest.raises(InputError, match=r"item 8 \(and 1 more\) is not among the 2 known items"):
        plays.item_index([1, 8, 9])
    with pytest.raises(InputError, match="item -1 is not among"):  # implicit: negative ids wrap round
        plays.item_index(-1)
    with pytest.raises(ValueError, match=r"user ids are integers \(such as 3\), but the known ids are strings"):
        plays.user_index(3)


# --- the matrix --------------------------------------------------------------------------------------------------------


def test_duplicates_are_summed_and_zeros_dropped():
    # ann-x: 1 + 2 = 3; ann-y: 0 is no interaction; bob-y: 2 - 2 = 0 is none; eve stays with an empty row
    plays = Interactions(
        ["ann", "ann", "ann", "bob", "bob", "eve"], list("xxyyyz"), np.array([1, 2, 0, 2, -2, 0], dtype=np.int16)
    )
    assert plays.matrix.toarray().tolist() == [[3, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert plays.matrix.nnz == 1
    assert plays.matrix.dtype == np.float32
    assert plays.matrix.has_canonical_format
    assert isinstance(plays.matrix, sparse.csr_array)
    assert plays.shape == (3, 3)


def test_sums_are_taken_in_double_precision():
    # In float32 2**24 + 1 + 1 stays 2**24.
    assert Interactions([1] * 3, [1] * 3, [2.0**24, 1, 1]).matrix.data.tolist() == [2.0**24 + 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_values_that_are_no_finite_numbers_are_named(bad):
    with pytest.raises(ValueError, match=r"values\[1\] = "):
        Interactions([1, 2], [1, 2], [1.0, bad])
    with pytest.raises(ValueError, match=r"values\[0\] = "):
        Interactions([1, 2], [1, 2], ["1", "2"])


def test_a_sum_beyond_float32_is_refused():
    with pytest.raises(ValueError, match="beyond float32"):
        Interactions([1, 1], [1, 1], [3e38, 3e38])


def test_lengths_must_agree_and_events_exist():
    with pytest.raises(ValueError, match="users has 2 entries, items 1"):
        Interactions([1, 2], [1])
    with pytest.raises(ValueError, match="users has 2 entries, values 3"):
        Interactions([1, 2], [1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="there are no events"):
        Interactions([], [])


def test_a_matrix_keeps_its_rows_and_columns():
    dense = np.array([[0, 2.0, 0], [1, 0, 0]])
    plain = Interactions.from_matrix(dense)
    assert plain.matrix.toarray().tolist() == dense.tolist()
    named = Interactions.from_matrix(sparse.coo_array(dense), ["zoe", "ann"], [30, 10, 20])
    assert named.matrix.toarray()[named.user_index("zoe"), named.item_index(10)] == 2
    assert named.user_ids.tolist() == ["ann", "zoe"]
    with pytest.raises(ValueError, match=r"user_ids holds 1 ids, 1 of them distinct, for a matrix of shape \(2, 3\)"):
        Interactions.from_matrix(dense, ["zoe"])
    with pytest.raises(ValueError, match="2 ids, 1 of them distinct"):
        Interactions.from_matrix(dense, ["zoe", "zoe"])


@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csc_array, sparse.coo_array, sparse.lil_array, np.asarray])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.bool_])
def test_every_kind_of_matrix_becomes_the_same(make, dtype):
    dense = np.array([[0, 1, 0], [1, 0, 1]], dtype=dtype)
    found = canonical_matrix(make(dense), "X")
    assert found.toarray().tolist() == dense.astype(float).tolist()
    assert (found.dtype, found.has_canonical_format) == (np.float32, True)


def test_float32_duplicates_and_explicit_zeros_are_made_canonical_and_the_input_is_left_alone():
    # implicit 0.7.3 takes duplicates of a float32 CSR as two entries, and explicit zeros as seen.
    given = sparse.csr_array((np.array([1, 2, 0], np.float32), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 2))
    assert canonical_matrix(given, "X").toarray().tolist() == [[0, 3], [0, 0]]
    assert canonical_matrix(given, "X").nnz == 1
    assert given.data.tolist() == [1, 2, 0]


def test_matrices_with_64_bit_indices_are_accepted():  # implicit#86, implicit#380
    given = sparse.csr_array(np.eye(3, dtype=np.float64))
    given.indices, given.indptr = given.indices.astype(np.int64), given.indptr.astype(np.int64)
    assert canonical_matrix(given, "X").toarray().tolist() == np.eye(3).tolist()


def test_a_transposed_matrix_is_refused_with_both_shapes():  # implicit#608, #370, #655, #705, #738
    with pytest.raises(
        ValueError, match=r"X has shape \(40, 60\), but \(users, items\) = \(60, 40\) is needed; this one is transposed"
    ):
        canonical_matrix(sparse.csr_array((40, 60)), "X", shape=(60, 40))
    with pytest.raises(ValueError, match=r"X\[1, 0\] = nan"):
        canonical_matrix([[0, 1], [np.nan, 0]], "X")
    with pytest.raises(ValueError, match="X holds complex128"):
        canonical_matrix(np.eye(2) * 1j, "X")
    with pytest.raises(ValueError, match=r"X has shape \(3,\)"):
        canonical_matrix(np.ones(3), "X")


# --- time --------------------------------------------------------------------------------------------------------------


def test_values_halve_with_each_half_life_before_they_are_summed():  # implicit#39, lightfm#52
    # Two plays of x, 10 and 0 days old at a half-life of 5 days: 4 / 4 + 3 = 4; y is 5 days old: 2 / 2 = 1.
    days = np.array(["2020-01-01", "2020-01-11", "2020-01-06"], dtype="datetime64[D]")
    plays = Interactions(["a"] * 3, ["x", "x", "y"], [4, 3, 2], days)
    assert plays.decay(timedelta(days=5)).matrix.toarray().tolist() == [[4, 1]]
    assert plays.decay(5 * 86400).matrix.toarray().tolist() == [[4, 1]]
    assert plays.matrix.toarray().tolist() == [[7, 2]]
    # five days later everything counts half
    now = days.max().astype("datetime64[s]").astype(float) + 5 * 86400
    assert plays.decay(timedelta(days=5), now=now).matrix.toarray().tolist() == [[2, 0.5]]


def test_decay_needs_time_stamps_a_positive_half_life_and_no_future():
    with pytest.raises(ValueError, match="these interactions have none"):
        Interactions([1], [1]).decay(1.0)
    dated = Interactions([1, 1], [1, 2], timestamps=[0, 10])
    for half_life in (0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="must be positive and finite"):
            dated.decay(half_life)
    with pytest.raises(ValueError, match="before the last event"):
        dated.decay(1.0, now=5)
    with pytest.raises(ValueError, match=r"timestamps\[1\] = nan"):
        Interactions([1, 1], [1, 2], timestamps=[0, np.nan])
    with pytest.raises(ValueError, match=r"timestamps\[0\] is missing"):
        Interactions([1], [1], timestamps=np.array(["NaT"], dtype="datetime64[s]"))
    with pytest.raises(ValueError, match="timestamps: shape"):
        Interactions([1], [1], timestamps=["2020"])


def test_last_times_belong_to_the_entries_of_the_matrix():
    # entry (0, x): 5 and 9, the latest is 9; (0, y) sums to zero and is gone; (1, x): 7
    dated = Interactions([0, 0, 0, 0, 1], list("xxyyx"), [1, 1, 1, -1, 1], [9, 5, 8, 8, 7])
    assert dated.matrix.data.tolist() == [2, 1]
    assert dated.last_times.tolist() == [9, 7]
    assert Interactions([0], [0]).last_times is None


def test_momentum_is_the_paper_s_logistic():
    # e^-(2t - 6) / (1 + e^-(2t - 6)) at t = 1: e^4 / (1 + e^4)
    assert momentum_weights(1.0) == pytest.approx(np.exp(4) / (1 + np.exp(4)))
    assert momentum_weights([3, 1e9]).tolist() == [0.5, pytest.approx(0)]
    with pytest.raises(ValueError, match="positions must be 0 or more; given -1"):
        momentum_weights([0, -1])


# --- less, and other ids -----------------------------------------------------------------------------------------------


def test_minimum_counts_hold_in_what_remains():
    # Item z has one user; without it user c has one item; without c item y has one user: only a-x, b-x, a-w, b-w remain.
    plays = Interactions(list("aaabbcc"), list("xwyxwyz"))
    left = plays.minimum_counts(user=2, item=2)
    assert (left.user_ids.tolist(), left.item_ids.tolist()) == (["a", "b"], ["w", "x"])
    assert left.matrix.toarray().tolist() == [[1, 1], [1, 1]]


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_minimum_counts_leave_the_largest_part_that_satisfies_them(cells, user, item):
    plays = Interactions([u for u, _ in cells], [i for _, i in cells])
    expected = set(cells)  # one by one, whatever breaks the rule, until nothing does
    while broken := [
        (u, i)
        for u, i in expected
        if sum(v == u for v, _ in expected) < user or sum(j == i for _, j in expected) < item
    ]:
        expected -= {broken[0]}
    if not expected:
        with pytest.raises(ValueError, match="leave nothing"):
            plays.minimum_counts(user=user, item=item)
        return
    left = plays.minimum_counts(user=user, item=item)
    found = left.matrix.tocoo()
    assert set(zip(left.user_ids[found.row].tolist(), left.item_ids[found.col].tolist(), strict=True)) == expected


def test_minimum_counts_keep_time_stamps_and_refuse_what_is_no_count():
    left = Interactions([1, 1, 2], [5, 6, 5], [1, 2, 3], [10, 20, 30]).minimum_counts(item=2)
    assert left.events.timestamps.tolist() == [10, 30]
    for bad in (-1, True):
        with pytest.raises(ValueError, match="must be a whole number"):
            left.minimum_counts(user=bad)


def test_binarize_keeps_entries_of_at_least_the_threshold_and_their_latest_time():
    rated = Interactions([1, 1, 1, 2], [5, 5, 6, 5], [2, 2, 3, -4], [1, 9, 5, 7])  # 4 (last at 9), 3, -4
    assert rated.binarize(4).matrix.toarray().tolist() == [[1, 0], [0, 0]]
    assert rated.binarize(4).events.timestamps.tolist() == [9]
    assert rated.binarize().matrix.toarray().tolist() == [[1, 1], [0, 0]]


def test_align_takes_the_ids_of_a_model():
    plays = Interactions(["b", "c"], ["x", "y"], [2, 3])
    known = plays.align(user_ids=["c", "a", "b"], item_ids=["y", "x", "z"])
    assert known.matrix.toarray().tolist() == [[3, 0, 0], [0, 0, 0], [0, 2, 0]]
    assert known.user_ids.tolist() == ["c", "a", "b"]
    assert known.user_index("a") == 1
    with pytest.raises(InputError, match="item 'y' is not among the 1 known items"):
        plays.align(item_ids=["x"])
    assert plays.align(item_ids=["x"], unknown="drop").matrix.toarray().tolist() == [[2], [0]]
    with pytest.raises(ValueError, match="item_ids holds 'x' more than once"):
        plays.align(item_ids=["x", "x"])
    with pytest.raises(ValueError, match="neither 'error' nor 'drop'"):
        plays.align(unknown="skip")


def test_events_of_undated_interactions_are_the_entries():
    events = Interactions([1, 1], [2, 2], [1, 2]).events
    assert isinstance(events, Events)
    assert (events.users.tolist(), events.items.tolist(), events.values.tolist()) == ([0], [0], [3])
    assert events.timestamps is None
