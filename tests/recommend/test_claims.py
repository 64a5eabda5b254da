"""Every claim of the room is a program that gives the numbers on which it will be judged."""

import math

import pytest

from tenfold.areas import AREAS
from tenfold.claims import select_claims
from tenfold.datasets import DatasetUnavailableError
from tenfold.errors import InputError
from tenfold.recommend.claims import CLAIMS
from tenfold.recommend.published import lastfm, msweb, published_recall

SMOKE = [claim for claim in CLAIMS if "smoke" in claim.scales]
FULL = [claim for claim in CLAIMS if claim.scales == ("full",)]


def test_area_offers_these_claims():
    assert tuple(next(area for area in AREAS if area.name == "recommend").claims()) == CLAIMS


@pytest.mark.parametrize("claim", SMOKE, ids=lambda claim: claim.id)
def test_smoke_measurement_gives_every_number_of_the_criteria(claim):
    measurement = claim.measure(0, "smoke")
    for name in {criterion.number for criterion in claim.criteria} | set(claim.units):
        assert name in measurement.numbers
    assert all(map(math.isfinite, measurement.numbers.values()))
    assert set(measurement.numbers) == set(claim.descriptions)
    for plot in measurement.plots.values():
        for curve in plot.curves.values():
            assert len(curve.x) == len(curve.y) > 0
            assert all(map(math.isfinite, curve.y))


@pytest.mark.parametrize("name", ["recommend.loss-never-rises", "recommend.explanations-add-up"])
def test_exact_claims_hold_at_every_scale(name):
    claim = next(claim for claim in CLAIMS if claim.id == name)
    numbers = claim.measure(1, "smoke").numbers
    assert all(numbers[criterion.number] <= criterion.threshold for criterion in claim.criteria)


def test_claims_about_published_settings_are_left_out_of_smaller_scales_and_named():
    chosen, notes = select_claims(["recommend"], scale="quick")
    assert [claim.id for claim in chosen] == [claim.id for claim in SMOKE]
    assert all(claim.id in notes[-1] for claim in FULL)
    with pytest.raises(InputError, match=r"recommend\.published-msd is measured at scale full only"):
        select_claims(ids=["recommend.published-msd"], scale="quick")


@pytest.mark.parametrize("name", ["ml-20m", "msd"])
def test_a_set_that_is_not_here_is_named_with_the_file_to_bring(name, monkeypatch, tmp_path):
    monkeypatch.setenv("TENFOLD_DATA", str(tmp_path))
    monkeypatch.setenv("TENFOLD_CACHE", str(tmp_path))
    with pytest.raises(DatasetUnavailableError, match=rf"put its file .* into \$TENFOLD_DATA/{name}/"):
        published_recall(name, 0)


def test_sets_of_the_user_are_read_as_their_publishers_wrote_them(monkeypatch, tmp_path):
    monkeypatch.setenv("TENFOLD_DATA", str(tmp_path))
    monkeypatch.setenv("TENFOLD_CACHE", str(tmp_path))
    assert lastfm() is None
    assert msweb() is None
    (tmp_path / "lastfm").mkdir()
    (tmp_path / "lastfm" / "user_artists.dat").write_text(
        "userID\tartistID\tweight\n2\t51\t13883\n2\t52\t11690\n3\t51\t7\n"
    )
    assert lastfm().matrix.toarray().tolist() == [[13883, 11690], [7, 0]]
