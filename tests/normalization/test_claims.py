"""Every claim is a program that gives the numbers on which it will be judged."""

import math
from collections import Counter

import pytest
import torch

from tenfold.areas import AREAS
from tenfold.normalization.batch_size_measurements import _PerDeviceBatchNorm, crossing
from tenfold.normalization.claims import CLAIMS


def test_ids_are_unique_and_of_this_room():
    assert max(Counter(claim.id for claim in CLAIMS).values()) == 1
    assert all(claim.id.startswith("normalization.") and claim.area == "normalization" for claim in CLAIMS)


def test_area_offers_these_claims():
    area = next(area for area in AREAS if area.name == "normalization")
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
        low, high = claim.ranges.get(name, (-math.inf, math.inf))
        assert low <= value <= high, name
    for plot in measurement.plots.values():
        for name, curve in plot.curves.items():
            assert len(curve.x) == len(curve.y) > 0, name
            assert all(map(math.isfinite, curve.y)), name


def test_independence_holds_at_every_scale():
    claim = next(claim for claim in CLAIMS if claim.id == "normalization.group-independent-of-split")
    numbers = claim.measure(1, "smoke").numbers
    assert numbers["differing_numbers"] == 0
    assert numbers["difference_of_batch_norm"] > 0.01


def test_crossing_is_found_along_the_logarithm_of_the_sizes():
    assert crossing({32: 2.0, 8: 4.0, 2: 8.0}, 3.0) == pytest.approx(16.0)
    assert crossing({2: 8.0, 8: 4.0, 32: 2.0}, 6.0) == pytest.approx(4.0)  # whatever the order
    assert crossing({32: 2.0, 8: 1.0, 2: 8.0}, 1.5) == 32.0  # above it from the start
    assert crossing({32: 2.0, 8: 1.0, 2: 1.5}, 3.0) == 2.0  # never above it


def test_normalization_per_device_is_torchs_on_each_part():
    x = torch.randn(12, 3, 2, 2)
    layer = _PerDeviceBatchNorm(3, 4)
    devices = [torch.nn.BatchNorm2d(3) for _ in range(3)]
    parts = [device(part) for device, part in zip(devices, x.split(4), strict=True)]
    torch.testing.assert_close(layer(x), torch.cat(parts))
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(layer, name), getattr(devices[0], name))
