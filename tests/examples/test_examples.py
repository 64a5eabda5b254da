"""The programs in ``examples/`` run, and show what they say that they show."""

from pathlib import Path

import pytest

from examples import mixture_gradients, mixture_posterior

ROOT = Path(__file__).parents[2]


def test_every_example_has_its_test():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {"mixture_gradients", "mixture_posterior"}


def test_more_components_come_nearer_to_the_ring(capsys: pytest.CaptureFixture[str]) -> None:
    mixture_posterior.main(steps=100)
    lines = capsys.readouterr().out.splitlines()
    one, four, twelve = (float(line.split()[-2]) for line in lines)
    assert 0 < max(four, twelve) < one / 4


def test_the_default_is_best_for_means_and_the_combination_for_weights() -> None:
    found = mixture_gradients.compare(3, 5, 0.5, repeats=1000)
    weights, means, deviations = zip(*found.values(), strict=True)
    quantile, responsibility, expectation, _ = range(4)
    assert expectation == min(range(4), key=weights.__getitem__)
    assert means[responsibility] < means[quantile]
    assert deviations[responsibility] < deviations[quantile]


def test_the_table_in_the_docs_has_the_form_that_the_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    mixture_gradients.main(repeats=50)
    page = (ROOT / "docs" / "areas" / "mixture.md").read_text(encoding="utf-8")
    for line in capsys.readouterr().out.splitlines():
        assert line.rpartition(" | ")[0].rpartition(" | ")[0].rpartition(" | ")[0] in page
