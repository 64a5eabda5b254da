"""What came out: the run of one seed, and the result of one claim with its verdict; both also as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tenfold.claims.claim import Claim, Curve, Measurement, Plot
from tenfold.claims.verdict import EVERYTHING, Judgement, Verdict, judge, worst


@dataclass(frozen=True)
class SeedRun:
    """One measurement: one claim, one scale, one seed.

    Args:
        seed: The seed.
        measurement: What was measured; None after an error.
        error: What went wrong, one line; empty if nothing did.
        traceback: Python's account of the error, where there is one.
        seconds: Wall time of ``measure``, without starting the process and importing.
        cpu_seconds: Processor time of the same.
        finished: When it ended, ISO 8601 with the offset from UTC.
        cached: Whether it comes from an earlier run.
        code: Version of the code that measured, see ``code_version``.
        machine: The machine it ran on.
        versions: Versions of the libraries it used.
    """

    seed: int
    measurement: Measurement | None = None
    error: str = ""
    traceback: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    finished: str = ""
    cached: bool = False
    code: str = ""
    machine: Mapping[str, object] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """One claim after its seeds: the runs, each criterion's judgement, and the verdict.

    Args:
        claim: The claim.
        scale: The scale it was measured at.
        runs: The seeds that ran, in order; after an error the remaining seeds are not run.
        judgements: One for each criterion, in the claim's order; empty after an error.
        verdict: The worst of the judgements, or ``Verdict.ERROR``.
        error: The first error, one line; empty if there was none.
    """

    claim: Claim
    scale: str
    runs: tuple[SeedRun, ...]
    judgements: tuple[Judgement, ...]
    verdict: Verdict
    error: str = ""

    @property
    def seconds(self) -> float:
        """Wall time of all measurements together."""
        return sum((run.seconds for run in self.runs), 0.0)

    @property
    def as_expected(self) -> bool:
        """False if the claim failed to run, or should hold and does not; an inconclusive claim is no failure."""
        if self.verdict is Verdict.ERROR:
            return False
        return not (self.verdict is Verdict.DOES_NOT_HOLD and self.claim.expected == "holds")

    @property
    def command(self) -> str:
        """The command that repeats the measurement."""
        seeds = (
            f" --seeds {len(self.runs)}" if len(self.runs) != self.claim.seeds[self.scale] and not self.error else ""
        )
        return f"tenfold reproduce --claim {self.claim.id} --scale {self.scale}{seeds}"


def judge_claim(claim: Claim, scale: str, runs: Sequence[SeedRun]) -> Result:
    """The verdict on a claim from the runs of its seeds.

    Args:
        claim: The claim.
        scale: The scale of the runs.
        runs: One a seed; a run with an error makes the verdict an error.
    """
    runs = tuple(sorted(runs, key=lambda run: run.seed))
    failed = [run for run in runs if run.measurement is None]
    if failed or not runs:
        error = f"seed {failed[0].seed}: {failed[0].error}" if failed else "no seed was run"
        return Result(claim, scale, runs, (), Verdict.ERROR, error)
    numbers = [run.measurement.numbers for run in runs if run.measurement is not None]
    judgements = tuple(
        judge(
            criterion,
            [found[criterion.number] for found in numbers],
            claim.ranges.get(criterion.number, EVERYTHING),
        )
        for criterion in claim.criteria
    )
    verdict = worst(judgement.verdict for judgement in judgements)
    error = "; ".join(judgement.note for judgement in judgements if judgement.verdict is Verdict.ERROR)
    return Result(claim, scale, runs, judgements, verdict, error)


def measurement_to_json(measurement: Measurement) -> dict[str, Any]:
    """A measurement in JSON's types; numbers that are not finite stay floats.

    >>> measurement_to_json(Measurement({"bias": 0.5}))
    {'numbers': {'bias': 0.5}, 'plots': {}}
    """
    return asdict(measurement)


def measurement_from_json(record: Mapping[str, Any]) -> Measurement:
    """The inverse of ``measurement_to_json``.

    Raises:
        ValueError: The record is not one that ``measurement_to_json`` wrote.

    >>> plot = Plot("Error", "M", "bias", {"ours": Curve([1.0, 2.0], [3.0, 4.0])}, ticks=["a", "b"])
    >>> measurement = Measurement({"bias": 0.5}, {"error": plot})
    >>> measurement_from_json(measurement_to_json(measurement)) == measurement
    True
    """
    numbers, plots = record.get("numbers"), record.get("plots")
    if not isinstance(numbers, Mapping) or not isinstance(plots, Mapping):
        raise ValueError("the record of a measurement needs numbers and plots")
    return Measurement(
        numbers,
        {
            name: Plot(**{**plot, "curves": {label: Curve(**curve) for label, curve in plot["curves"].items()}})
            for name, plot in plots.items()
        },
    )
