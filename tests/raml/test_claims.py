"""Every claim is a program that gives the numbers on which it will be judged."""

import math

import pytest
import torch

from tenfold.raml.claims import CLAIMS
from tenfold.raml.measurements import all_strings, same_optimum, samplers


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_smoke_measurement_gives_every_number_of_the_criteria(claim):
    measurement = claim.measure(0, "smoke")
    for name in {criterion.number for criterion in claim.criteria} | set(claim.units):
        assert name in measurement.numbers
    assert set(measurement.numbers) == set(claim.descriptions)
    assert set(claim.ranges) <= set(measurement.numbers)
    for name, value in measurement.numbers.items():
        assert math.isfinite(value), name
        assert value > 0 or claim.statistic(name) != "geometric mean"
        low, high = claim.ranges.get(name, (-math.inf, math.inf))
        assert low <= value <= high, name
    for plot in measurement.plots.values():
        for name, curve in plot.curves.items():
            assert len(curve.x) == len(curve.y) > 0, name
            assert all(map(math.isfinite, curve.y)), name


@pytest.mark.parametrize("name", ["raml.same-optimum", "raml.gradient-variance", "raml.label-smoothing"])
def test_exact_claims_hold_at_every_scale(name):
    claim = next(claim for claim in CLAIMS if claim.id == name)
    numbers = claim.measure(1, "smoke").numbers
    for criterion in claim.criteria:
        value = numbers[criterion.number]
        assert value <= criterion.threshold if criterion.relation == "at most" else value >= criterion.threshold


def test_chi_square_has_the_power_to_see_what_is_not_exact():
    numbers = samplers(0, "smoke").numbers
    assert numbers["chi_square_edit"] < 2 < numbers["chi_square_edit_without_rejection"]


def test_optima_differ_where_the_model_cannot_represent_the_payoff_distribution():
    numbers = same_optimum(0, "smoke").numbers
    assert numbers["difference"] < 1e-4 < numbers["difference_restricted"]


def test_strings_are_numbered_by_what_they_spell():
    strings = all_strings(3, 4)
    assert strings.shape == (81, 4)
    assert (strings * 3 ** torch.arange(3, -1, -1)).sum(1).tolist() == list(range(81))
    assert all_strings(2, 0).shape == (1, 0)
