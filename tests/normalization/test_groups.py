"""The number of groups: the paper's two rules, and what is said where they do not divide."""

import pytest

from tenfold.normalization.groups import groups_for_any, nearest_divisors, recommend_groups


@pytest.mark.parametrize("channels", [32, 64, 256, 2048])
def test_the_default_is_the_papers_32(channels):
    assert recommend_groups(channels) == 32


@pytest.mark.parametrize(("channels", "groups"), [(16, 1), (64, 4), (256, 16)])
def test_sixteen_channels_a_group(channels, groups):
    assert recommend_groups(channels, channels_per_group=16) == groups


def test_error_names_both_numbers_and_the_nearest_choices():
    with pytest.raises(ValueError, match=r"groups=32 does not divide num_channels=100; .* groups=25 and groups=50"):
        recommend_groups(100)
    with pytest.raises(
        ValueError, match=r"groups=32 does not divide num_channels=8; the nearest that does is groups=8"
    ):
        recommend_groups(8)
    with pytest.raises(ValueError, match=r"channels_per_group=16 does not divide num_channels=40; .*=10 and .*=20"):
        recommend_groups(40, channels_per_group=16)


def test_both_arguments_and_numbers_below_one_are_refused():
    with pytest.raises(ValueError, match="give one of them"):
        recommend_groups(64, 32, channels_per_group=2)
    for arguments in (
        {"num_channels": 0},
        {"num_channels": 8, "groups": 0},
        {"num_channels": 8, "channels_per_group": -1},
    ):
        with pytest.raises(ValueError, match="at least 1"):
            recommend_groups(**arguments)


def test_nearest_divisors_by_brute_force():
    for number in range(1, 60):
        for wanted in range(1, 70):
            if number % wanted:
                found = nearest_divisors(number, wanted)
                assert all(number % d == 0 for d in found)
                gaps = [abs(d - wanted) for d in range(1, number + 1) if number % d == 0]
                assert min(abs(d - wanted) for d in found) == min(gaps)


def test_any_width_gets_groups_of_at_least_two_channels():
    for channels in range(2, 300):
        groups = groups_for_any(channels)
        assert channels % groups == 0
        assert groups <= 32
        assert channels // groups >= 2
