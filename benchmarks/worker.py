"""The other end of ``contestant.Worker``: commands on stdin, answers as lines of JSON on stdout.

``python -m benchmarks.worker AREA CASE CONTESTANT`` runs in any interpreter that has the contestant's packages: nothing
but the standard library is imported here.
"""

from __future__ import annotations

import json
import os
import sys

from benchmarks.case import MissingContestantError, load_cases
from benchmarks.contestant import peak_growth, time_calls


def main(area: str, case_name: str, contestant: str) -> None:
    """Make the contestant ready, say so, then answer one line after another until ``quit`` or the end of the input."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the contestant itself prints goes to stderr and cannot be taken for an answer

    def answer(**fields: object) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    try:
        chosen = next(case for case in load_cases(area) if case.name == case_name)
        work = chosen.ready(contestant)
        work()
    except MissingContestantError as missing:
        answer(missing=str(missing))
        return
    except ModuleNotFoundError as error:
        answer(missing=f"not installed: pip install {error.name}")
        return
    answer(ready=True)
    for line in sys.stdin:
        match line.split():
            case ["time", calls]:
                timing = time_calls(work, int(calls))
                answer(wall=timing.wall, cpu=timing.cpu)
            case ["memory"]:
                answer(bytes=peak_growth(work))
            case _:  # "quit"
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
