"""Successive halving keeps the better candidates and goes on where it stopped."""

import json
import math

import pytest

from tenfold.errors import InputError
from tenfold.recommend.tuning import SPACE, draw_candidates, rounds, successive_halving, total_iterations

CANDIDATES = [{"alpha": float(a)} for a in range(9)]


def hill(parameters, iterations):
    """Best at alpha = 6; more iterations tell it more clearly."""
    return {"recall@20": -abs(parameters["alpha"] - 6) * iterations, "mpr": abs(parameters["alpha"] - 6)}


def test_candidates_are_the_same_for_the_same_seed_and_lie_in_the_space():
    found = draw_candidates(20, seed=3)
    assert found == draw_candidates(20, seed=3) != draw_candidates(20, seed=4)
    for name, (kind, low, high) in SPACE.items():
        values = [candidate[name] for candidate in found]
        assert all(low * 0.99 <= value <= high * 1.01 for value in values)
        if kind == "log":  # one in each twentieth of the logarithmic range
            places = sorted(math.log(v / low) / math.log(high / low) * 20 for v in values)
            assert all(abs(place - i - 0.5) <= 0.6 for i, place in enumerate(places))
    assert all(isinstance(candidate["factors"], int) for candidate in found)


def test_first_candidate_can_be_given():
    assert draw_candidates(3, {"alpha": ("even", 0, 1)}, first={"alpha": 40.0})[0] == {"alpha": 40.0}


@pytest.mark.parametrize("bounds", [("log", 2.0, 1.0), ("log", 0.0, 1.0), ("whole", -1, 3), ("even", 1, math.nan)])
def test_bounds_out_of_order_are_refused(bounds):
    with pytest.raises(ValueError, match="the bounds must be in order"):
        draw_candidates(2, {"alpha": bounds})


def test_last_round_has_all_iterations_and_a_ninth_of_the_candidates():
    assert rounds(27, 18) == [(27, 2), (9, 6), (3, 18)]
    assert rounds(1, 15) == [(1, 15)]
    assert rounds(9, 2) == [(9, 1), (3, 2)] or rounds(9, 2)[-1][1] == 2
    assert total_iterations(27, 18) == 3 * 54


@pytest.mark.parametrize("metric", ["mpr", "recall@20"])
def test_the_best_candidate_wins(metric):
    attempts = successive_halving(hill, CANDIDATES, metric=metric, iterations=9)
    assert attempts[0]["parameters"] == {"alpha": 6.0}
    assert attempts[0]["iterations"] == 9
    assert len(attempts) == 9 + 3 + 1


def test_a_candidate_that_gives_nan_never_wins():
    def broken(parameters, iterations):
        return {"mpr": math.nan if parameters["alpha"] == 6 else hill(parameters, iterations)["mpr"]}

    assert successive_halving(broken, CANDIDATES, metric="mpr")[0]["parameters"]["alpha"] in (5.0, 7.0)


def test_an_interrupted_run_goes_on_and_ends_like_one_that_was_not(tmp_path):
    calls = []

    def stopping(parameters, iterations):
        calls.append(parameters)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return hill(parameters, iterations)

    log = tmp_path / "tuning.json"
    with pytest.raises(KeyboardInterrupt):
        successive_halving(stopping, CANDIDATES, metric="mpr", log=log, settings={"seed": 0})
    assert len(json.loads(log.read_text())["attempts"]) == 4
    again = successive_halving(stopping, CANDIDATES, metric="mpr", log=log, settings={"seed": 0}, resume=True)
    assert again == successive_halving(hill, CANDIDATES, metric="mpr")
    assert len(calls) == 5 + 5 + 3 + 1


def test_log_of_other_settings_or_of_nonsense_is_refused(tmp_path):
    log = tmp_path / "tuning.json"
    successive_halving(hill, CANDIDATES, metric="mpr", log=log, settings={"seed": 0})
    with pytest.raises(InputError, match="was made with seed=0, now seed=1"):
        successive_halving(hill, CANDIDATES, metric="mpr", log=log, settings={"seed": 1}, resume=True)
    log.write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        successive_halving(hill, CANDIDATES, metric="mpr", log=log, settings={"seed": 0}, resume=True)
