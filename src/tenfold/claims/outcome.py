"""What ``tenfold reproduce`` leaves on the terminal: the verdicts as a table, what to do next, and the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tenfold.claims.claim import Claim
from tenfold.claims.result import Result
from tenfold.claims.verdict import Verdict
from tenfold.claims.wording import (
    SYMBOLS,
    advice,
    comparison_text,
    deciding,
    duration_text,
    expectation_text,
    interval_text,
    number_words,
    summary_text,
)
from tenfold.console.tables import show_table


def exit_code(results: Sequence[Result]) -> int:
    """1 if a claim ended with an error or was expected to hold and does not, else 0.

    An inconclusive claim counts as 0: the measurement says nothing against it, and the table says so.
    """
    return 0 if all(result.as_expected for result in results) else 1


def show_claims(claims: Sequence[Claim], *, json: bool) -> None:
    """Writes the list of claims to standard output."""
    columns = ("claim", "title", "expected", "seeds at quick", "data")
    rows = [[claim.id, claim.title, claim.expected, claim.seeds["quick"], list(claim.needs)] for claim in claims]
    show_table("Claims", columns, rows, json=json)


def show_results(results: Sequence[Result], page: Path, *, notes: Sequence[str] = (), json: bool) -> None:
    """Writes the verdicts to standard output, and for a person the summary and the report's path below.

    Args:
        results: The results.
        page: The report's page.
        notes: Sentences on what was not run.
        json: Write a JSON list with one object a claim instead.
    """
    if json:
        show_table("Claims", JSON_COLUMNS, [_json_row(result) for result in results], json=True)
        return
    rows = []
    for result in results:
        judgement = deciding(result)
        if judgement is None or result.error:
            measured, criterion = result.error, None
        else:
            unit = judgement.criterion.unit
            name = number_words(result.claim, judgement.criterion.number)
            measured = f"{name}: {interval_text(judgement.interval, unit)}"
            criterion = comparison_text(judgement)
        expectation = expectation_text(result)
        verdict = f"{SYMBOLS[result.verdict]} {result.verdict.value}{f' ({expectation})' if expectation else ''}"
        rows.append([result.claim.id, verdict, measured, criterion, duration_text(result.seconds)])
    show_table("Claims", ("claim", "verdict", "measured", "asked", "time"), rows)
    lines = ["", summary_text(results), *notes]
    known = [result for result in results if result.claim.expected == "does not hold"]
    if any(result.verdict is Verdict.DOES_NOT_HOLD for result in known):
        lines.append("Known not to hold in our setting: " + ", ".join(result.claim.id for result in known) + ".")
    if any(result.verdict is Verdict.HOLDS for result in known):
        holding = [result.claim.id for result in known if result.verdict is Verdict.HOLDS]
        lines.append(f"Expected not to hold, and does: {', '.join(holding)}.")
    if hint := advice(results):
        lines.append(hint)
    lines.append(f"Report: {page}")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


JSON_COLUMNS = (
    "claim", "area", "verdict", "as_expected", "number", "statistic", "measured", "low", "high",
    "relation", "threshold", "unit", "seconds", "seeds", "error",
)  # fmt: skip


def _json_row(result: Result) -> list[object]:
    judgement = deciding(result)
    criterion = judgement.criterion if judgement is not None else result.claim.criteria[0]
    interval = judgement.interval if judgement is not None else None
    return [
        result.claim.id,
        result.claim.area,
        result.verdict.value,
        result.as_expected,
        criterion.number,
        criterion.statistic,
        interval.center if interval else None,
        interval.low if interval else None,
        interval.high if interval else None,
        criterion.relation,
        criterion.threshold,
        criterion.unit,
        result.seconds,
        len(result.runs),
        result.error,
    ]
