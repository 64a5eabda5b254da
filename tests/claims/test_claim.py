import pytest
import sample_claims as sample

from tenfold.claims import Claim, Criterion, Curve, Measurement, Plot


def claim(**changed):
    arguments = {
        "id": "sample.one",
        "area": "sample",
        "title": "One",
        "statement": "One is one.",
        "paper": "Peano 1889",
        "published": "1",
        "measure": sample.nothing_random,
        "criteria": (Criterion("answer", "at least", 1.0),),
    }
    return Claim(**{**arguments, **changed})


def test_seeds_left_out_keep_their_default():
    assert claim(seeds={"full": 30}).seeds == {"smoke": 2, "quick": 3, "full": 30}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"id": "other.one"}, "id='other.one'"),
        ({"id": "sample.One Thing"}, "id='sample.One Thing'"),
        ({"criteria": ()}, "criteria is empty"),
        ({"measure": lambda seed, scale: Measurement({})}, "no top-level function"),
        ({"seeds": {"huge": 3}}, "huge"),
        ({"seeds": {"quick": 0}}, "quick"),
        ({"ranges": {"bias": (1.0, 0.0)}}, r"ranges\['bias'\]=\(1.0, 0.0\) must go from low to high"),
        (
            {"criteria": (Criterion("a", "at most", 1.0), Criterion("a", "at least", 0.0, statistic="median"))},
            "'a' is asked for by two statistics",
        ),
    ],
)
def test_a_claim_that_breaks_a_rule_is_refused_with_the_rule(changed, message):
    with pytest.raises(ValueError, match=message):
        claim(**changed)


@pytest.mark.parametrize(
    "wrong",
    [{"y": [1.0]}, {"x": [], "y": []}, {"low": [0.0, 0.0]}, {"low": [0.0], "high": [1.0]}],
)
def test_a_curve_of_unequal_lengths_or_half_a_band_is_refused(wrong):
    with pytest.raises(ValueError, match="Curve"):
        Curve(**{"x": [1.0, 2.0], "y": [1.0, 2.0], **wrong})


def test_a_plot_needs_a_curve():
    with pytest.raises(ValueError, match="no curve"):
        Plot("Nothing", "x", "y", {})


def test_a_criterion_refuses_a_threshold_that_is_nan():
    with pytest.raises(ValueError, match="NaN"):
        Criterion("bias", "at most", float("nan"))
