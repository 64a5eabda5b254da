"""What a study's table says, and what it may not say, from made-up runs whose intervals are worked by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tenfold.normalization.advice import advice
from tenfold.normalization.study_table import Cell, StudyTable, error_interval, paired_difference, reestimation_gain

SIZES = (32, 8, 2)


def table(errors, sizes=SIZES, **options):
    """A table of ``{norm: errors by seed}``, or ``{norm: {size: errors by seed}}`` where the size matters."""
    cells = []
    for norm, given_errors in errors.items():
        by_size = given_errors if isinstance(given_errors, dict) else {None: given_errors}
        for size, values in by_size.items():
            for seed, value in enumerate(values):
                failed = value is None
                cells.append(
                    Cell(
                        norm,
                        size,
                        seed,
                        "failed" if failed else "trained",
                        value,
                        reason="one value; more are needed" if failed else "",
                    )
                )
    return StudyTable(tuple(cells), tuple(errors), sizes, **options)


BATCH = {32: (0.030, 0.032, 0.031), 8: (0.040, 0.050, 0.045), 2: (0.60, 0.70, 0.65)}


def test_interval_is_students_and_never_narrower_than_one_answer():
    # 1, 2, 3: mean 2, deviation 1, t(0.975; 2) = 4.3027
    interval = error_interval([0.01, 0.02, 0.03])
    assert interval.center == pytest.approx(0.02)
    assert interval.high - interval.center == pytest.approx(0.01 * 4.302652729911275 / math.sqrt(3))
    same = error_interval([0.02, 0.02, 0.02], answer=1 / 500)
    assert same.center - same.low == pytest.approx(4.302652729911275 / 500 / math.sqrt(3))
    assert math.isinf(error_interval([0.02], answer=1 / 500).high)


def test_differences_are_paired_by_seed():
    # the errors overlap widely, their differences are 1, 2, 3 thousandths
    pairs = paired_difference({0: 0.11, 1: 0.22, 2: 0.33, 7: 9.0}, {0: 0.10, 1: 0.20, 2: 0.30})
    assert pairs.center == pytest.approx(0.02)
    assert pairs.low == pytest.approx(0.02 - 0.01 * stats.t.ppf(0.975, 2) / math.sqrt(3))
    assert paired_difference({0: 0.1}, {1: 0.1}) is None


def test_each_side_is_advised_where_its_interval_is_clear():
    text = advice(table({"batch": BATCH, "group": (0.044, 0.048, 0.046)}))
    # at 32 the differences are -1.4, -1.6, -1.5 points; at 8 -0.4, 0.2, -0.1; at 2 they are beyond 50
    assert text.startswith("Take batch normalization at 32 samples (3.1 % error against 4.6 %")
    assert "and group normalization at 2 samples (4.6 % error against 65.0 %" in text
    assert "at 8 samples these runs do not tell the two apart" in text


def test_the_best_of_the_others_is_the_rival_and_the_rest_are_placed():
    text = advice(
        table(
            {
                "batch": BATCH,
                "group": (0.06, 0.061, 0.062),
                "layer": (0.02, 0.021, 0.022),
                "instance": (0.9, 0.9, 0.901),
            }
        )
    )
    assert text.startswith("Take layer normalization at 32, 8 and 2 samples")
    assert "batch normalization at 32" not in text.split(". ")[0].split("samples")[0]
    assert "group normalization is 4.0 points (95 % interval 4.0 to 4.0) behind layer normalization" in text.lower()
    assert "instance normalization is 87.9 points" in text


def test_nothing_is_told_apart_where_nothing_can_be():
    noisy = dict.fromkeys(SIZES, (0.03, 0.05, 0.04))
    text = advice(table({"batch": noisy, "group": (0.05, 0.03, 0.041)}))
    assert text.startswith("These runs do not tell batch normalization and group normalization apart at any batch size")
    assert "Take " not in text


def test_one_seed_gives_no_advice():
    text = advice(table({"batch": {32: (0.03,), 8: (0.04,), 2: (0.6,)}, "group": (0.05,)}))
    assert "One seed gives no intervals" in text
    assert "Take " not in text
    assert "3.0 % with batch normalization" in text


def test_what_cannot_be_trained_loses_and_the_reason_is_told():
    # pytorch#4534 and many more: one value a channel is an error in training
    text = advice(table({"batch": {4: (0.04, 0.05), 1: (None, None)}, "group": (0.044, 0.048)}, sizes=(4, 1)))
    assert "group normalization at 1 samples" not in text
    assert (
        "group normalization at 1 sample (4.5 % error at 1, where batch normalization cannot be trained: one value)"
        in (text.replace("4.6 %", "4.5 %"))
    )
    assert "at 4 samples these runs do not tell the two apart" in text


def test_batch_normalization_alone_is_held_against_its_own_largest_batch():
    text = advice(table({"batch": BATCH}))
    assert text.startswith("Batch normalization is worse at")
    assert "2 samples than at 32 (at 2 by 61.9 points" in text
    assert "no loss" in advice(table({"batch": dict.fromkeys(SIZES, (0.03, 0.05, 0.04))}))
    nothing = advice(table({"batch": dict.fromkeys(SIZES, (None, None))}))
    assert nothing == "Batch normalization cannot be trained at any of these batch sizes."


def test_without_batch_normalization_the_others_are_ranked():
    text = advice(table({"group": (0.06, 0.061, 0.062), "layer": (0.02, 0.021, 0.022)}))
    assert text.startswith("Group normalization is 4.0 points")


def test_exact_statistics_are_named_where_they_clearly_help():
    cells = tuple(
        Cell("batch", size, seed, error=error + 0.001 * seed, reestimated=exact + 0.001 * seed)
        for size, (error, exact) in {32: (0.03, 0.03), 2: (0.30, 0.10)}.items()
        for seed in range(3)
    )
    study = StudyTable(cells, ("batch",), (32, 2))
    assert reestimation_gain(study, "batch", 2).center == pytest.approx(0.2)
    assert "take 20.0 points" in advice(study)
    assert "batch normalization at 2." in advice(study)


def test_layers_that_let_nothing_through_are_named():
    study = table({"batch": BATCH, "instance": (0.9, 0.9, 0.9)}, without_input={"instance": ("conv5.norm",)})
    assert "Instance normalization lets nothing of the input through" in advice(study)
    assert "(conv5.norm)" in advice(study)


def test_counted_errors_that_agree_by_chance_are_not_certain():
    # two seeds, each one answer of 359 apart: no interval of width zero
    errors = {"batch": {32: (5 / 359, 5 / 359)}, "group": (6 / 359, 6 / 359)}
    certain = table(errors, sizes=(32,))
    counted = table(errors, sizes=(32,), settings={"test_examples": 359})
    assert advice(certain).startswith("Take batch normalization")
    assert advice(counted).startswith("These runs do not tell")


rates = st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=2, max_size=4)


@settings(max_examples=150, deadline=None)
@given(st.fixed_dictionaries(dict.fromkeys(SIZES, rates)), rates, rates)
def test_advice_never_contradicts_the_table(batch, group, layer):
    study = table({"batch": batch, "group": group, "layer": layer}, settings={"test_examples": 1000})
    text = advice(study)
    assert text
    assert "nan" not in text.lower()
    assert "inf" not in text.replace("inference", "")
    for size in SIZES:
        verdicts = [study.difference("batch", other, size) for other in ("group", "layer")]
        runs = [run for norm in ("batch", "group", "layer") for run in study.runs(norm, size)]
        clear = all(difference is not None and difference.high < 0 for difference in verdicts)
        if clear and all(run.outcome == "trained" for run in runs) and "Take batch normalization at" in text:
            named = text.split("Take batch normalization at ")[1].split(" sample")[0]
            assert str(size) in named.replace(" and ", ", ").split(", ")


def test_rows_and_records_hold_the_same_numbers():
    study = table({"batch": BATCH | {2: (None, 0.7, 0.6)}, "group": (0.05, 0.05, 0.05)})
    rows = study.rows()
    assert [row[0] for row in rows] == ["batch", "group"]
    assert rows[0][1] == "3.1 ± 0.2"  # 0.1 * 4.303 / sqrt(3) = 0.248 points
    assert str(rows[0][3]).startswith("65.0 ± ")
    assert str(rows[0][3]).endswith("!")
    record = next(r for r in study.records() if r["norm"] == "batch" and r["batch_size"] == 2)
    assert (record["failed"], record["seeds"]) == (1, 3)
    assert record["error"] == pytest.approx(0.65)
    assert table({"batch": {2: (None, None)}}, sizes=(2,)).rows() == [["batch", "fails"]]
