"""Every claim is a program that gives the numbers on which it will be judged."""

import math
from collections import Counter

import pytest

from tenfold.areas import AREAS
from tenfold.mixture.claims import CLAIMS


def test_ids_are_unique_and_of_this_room():
    assert max(Counter(claim.id for claim in CLAIMS).values()) == 1
    assert all(claim.id.startswith("mixture.") and claim.area == "mixture" for claim in CLAIMS)


def test_area_offers_these_claims():
    area = next(area for area in AREAS if area.name == "mixture")
    assert tuple(area.claims()) == CLAIMS


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
    for plot in measurement.plots.values():
        for name, curve in plot.curves.items():
            assert len(curve.x) == len(curve.y) > 0, name
            assert all(map(math.isfinite, curve.y)), name


def test_exact_claim_holds_at_every_scale():
    claim = next(claim for claim in CLAIMS if claim.id == "mixture.one-component")
    numbers = claim.measure(1, "smoke").numbers
    assert all(numbers[criterion.number] <= criterion.threshold for criterion in claim.criteria)
