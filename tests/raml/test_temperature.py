"""The two scales, the limit, and schedules."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenfold.raml import EditPayoff, geometric_schedule, linear_schedule, temperature_limit
from tenfold.raml.temperature import raw_temperature, scaled_temperature


def test_one_edit_costs_one_plus_ln_v_on_the_papers_scale():
    assert raw_temperature(0.85, 60) == pytest.approx(0.85 / (1 + math.log(60)), rel=1e-15)
    assert EditPayoff(60, 0.85).weight == pytest.approx(math.exp(-(1 + math.log(60)) / 0.85), rel=1e-12)
    # a tau of exp(-d / tau) as most code has it would be improper
    assert temperature_limit(60, "raw") == pytest.approx(1 / math.log(60), rel=1e-15)
    assert temperature_limit(60) == pytest.approx(1 + 1 / math.log(60), rel=1e-15)


@given(tau=st.floats(0, 1e6), vocab_size=st.integers(2, 10**9), scale=st.sampled_from(["paper", "raw"]))
def test_scales_are_inverse(tau, vocab_size, scale):
    raw = raw_temperature(tau, vocab_size, scale)
    assert scaled_temperature(raw, vocab_size, scale) == pytest.approx(tau, rel=1e-12)


def test_schedules_begin_and_end_where_they_say():  # neuralmonkey#739, OpenNMT-tf#90
    for schedule in (linear_schedule(0.9, 0.3, 10), geometric_schedule(0.9, 0.3, 10)):
        assert schedule(0) == 0.9
        assert schedule(10) == pytest.approx(0.3)
        assert schedule(1000) == pytest.approx(0.3)
        values = [schedule(step) for step in range(11)]
        assert values == sorted(values, reverse=True)
    assert linear_schedule(0.9, 0.0, 10)(10) == 0.0
    for wrong in [(-1.0, 0.5, 3), (0.5, 0.5, 0)]:
        with pytest.raises(ValueError, match="must be"):
            linear_schedule(*wrong)
    with pytest.raises(ValueError, match="must be positive"):
        geometric_schedule(0.5, 0.0, 3)
