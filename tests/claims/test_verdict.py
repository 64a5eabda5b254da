import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tenfold.claims import Criterion, Verdict, confidence_interval, judge
from tenfold.claims.verdict import worst


def test_t_interval_of_three_values_by_hand():
    interval = confidence_interval([1.0, 2.0, 3.0])
    half = 4.302652729911275 / math.sqrt(3)  # t(0.975, 2), from tables; sample deviation 1
    assert (interval.center, interval.low, interval.high) == pytest.approx((2.0, 2.0 - half, 2.0 + half))


def test_t_interval_covers_the_mean_in_95_percent_of_samples():
    samples = np.random.default_rng(0).normal(1.0, 2.0, size=(1000, 4))
    intervals = [confidence_interval(list(sample)) for sample in samples]
    covered = sum(interval.low <= 1.0 <= interval.high for interval in intervals)
    assert stats.binomtest(covered, len(samples), 0.95).pvalue > 1e-3


def test_interval_of_a_geometric_mean_is_that_of_the_logarithms_by_hand():
    interval = confidence_interval([1.0, 10.0, 100.0], "geometric mean")
    half = 4.302652729911275 / math.sqrt(3)  # of the logarithms to base 10: 0, 1, 2, sample deviation 1
    assert (interval.center, interval.low, interval.high) == pytest.approx((10.0, 10 ** (1 - half), 10 ** (1 + half)))


def test_geometric_interval_covers_the_median_of_log_normal_ratios_in_95_percent_of_samples():
    samples = np.random.default_rng(0).lognormal(math.log(3.0), 2.0, size=(1000, 4))
    intervals = [confidence_interval(list(sample), "geometric mean") for sample in samples]
    covered = sum(interval.low <= 3.0 <= interval.high for interval in intervals)
    assert stats.binomtest(covered, len(samples), 0.95).pvalue > 1e-3
    assert all(interval.low > 0 for interval in intervals)


def test_interval_of_a_mean_keeps_to_the_range_of_the_number():
    half = 4.302652729911275 / math.sqrt(3)
    for possible, ends in [((0.0, math.inf), (0.0, 2 + half)), ((-9.0, 3.0), (2 - half, 3.0))]:
        interval = confidence_interval([1.0, 2.0, 3.0], possible=possible)
        assert (interval.center, interval.low, interval.high) == pytest.approx((2.0, *ends))


def test_a_value_that_cannot_be_is_an_error_that_names_the_seed():
    ratio = Criterion("ratio", "at most", 1.0, statistic="geometric mean")
    judgement = judge(ratio, [1.0, 0.0])
    assert judgement.verdict is Verdict.ERROR
    assert judgement.note == "ratio is 0.0 in seed 1, which is not positive, as a geometric mean needs it"


def test_an_interval_wholly_outside_the_range_is_an_error_and_chance_is_none():
    judgement = judge(Criterion("share", "at most", 1.0), [1.5, 1.5], (0.0, 1.0))
    assert judgement.verdict is Verdict.ERROR
    assert judgement.note == "share: the interval from 1.5 to 1.5 lies outside the range from 0 to 1"
    chance = judge(
        Criterion("gap", "at most", 1.0), [-0.01, 0.002, 0.001], (0.0, math.inf)
    )  # a divergence from samples
    assert chance.verdict is Verdict.HOLDS
    assert chance.interval is not None
    assert chance.interval.low == 0.0
    assert confidence_interval([-1.0], possible=(0.0, math.inf)).low == -math.inf  # of one seed nothing is known


def test_median_interval_is_made_of_values_and_reproducible():
    values = [1.0, 2.0, 3.3, 4.0, 7.0, 9.0, 3.0]
    interval = confidence_interval(values, "median")
    assert interval.center == 3.3
    assert 1.0 <= interval.low < 3.3 < interval.high <= 9.0
    assert interval == confidence_interval(values, "median")
    assert interval.note == ""


def test_median_interval_of_few_seeds_says_that_it_cannot_reach_95_percent():
    assert "75 %" in confidence_interval([1.0, 2.0, 3.0], "median").note  # 1 - 2 (1/2)^3


def test_median_interval_falls_back_where_bca_is_undefined():
    interval = confidence_interval([1.0, 1.0, 1.0, 1.0, 1.0, 2.0], "median")
    assert "percentile" in interval.note
    assert (interval.center, interval.low) == (1.0, 1.0)
    assert math.isfinite(interval.high)


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_equal_values_give_a_point_and_say_so(statistic):
    interval = confidence_interval([0.1] * 5, statistic)
    assert (interval.center, interval.low, interval.high) == (0.1, 0.1, 0.1)
    assert "same value" in interval.note


def test_one_value_gives_no_interval_and_no_verdict():
    judgement = judge(Criterion("bias", "at most", 1.0), [0.0])
    assert judgement.interval is not None
    assert (judgement.interval.low, judgement.interval.high) == (-math.inf, math.inf)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "one seed" in judgement.note


@pytest.mark.parametrize(
    ("relation", "values", "verdict"),
    [
        ("at most", [0.1, 0.2, 0.3], Verdict.HOLDS),
        ("at most", [0.9, 1.0, 1.1], Verdict.INCONCLUSIVE),
        ("at most", [5.1, 5.2, 5.3], Verdict.DOES_NOT_HOLD),
        ("at most", [1.0, 1.0], Verdict.HOLDS),
        ("at least", [0.1, 0.2, 0.3], Verdict.DOES_NOT_HOLD),
        ("at least", [0.9, 1.0, 1.1], Verdict.INCONCLUSIVE),
        ("at least", [5.1, 5.2, 5.3], Verdict.HOLDS),
        ("at least", [1.0, 1.0], Verdict.HOLDS),
    ],
)
@pytest.mark.parametrize("statistic", ["mean", "geometric mean", "median"])
def test_the_side_of_the_interval_is_the_verdict(relation, values, verdict, statistic):
    assert judge(Criterion("number", relation, 1.0, statistic=statistic), values).verdict is verdict


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_an_error_that_names_the_seed(bad):
    judgement = judge(Criterion("loss", "at most", 1.0), [0.5, 0.5, bad])
    assert judgement.verdict is Verdict.ERROR
    assert judgement.note == f"loss is {bad} in seed 2"


def test_no_value_is_an_error():
    assert judge(Criterion("loss", "at most", 1.0), []).verdict is Verdict.ERROR
    with pytest.raises(ValueError, match="no value"):
        confidence_interval([])


def test_the_worst_verdict_wins_in_any_order():
    ranking = [Verdict.HOLDS, Verdict.INCONCLUSIVE, Verdict.DOES_NOT_HOLD, Verdict.ERROR]
    for better, worse in itertools.combinations(ranking, 2):
        assert worst([better, worse]) is worst([worse, better]) is worse
