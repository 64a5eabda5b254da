"""The sentences of advice under a study's table, derived from its numbers and their intervals and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from tenfold.claims.verdict import Interval
from tenfold.normalization.study_table import StudyTable, paired_difference, reestimation_gain, spelled

Better = Literal["first", "second", "neither"]


def advice(table: StudyTable) -> str:
    """What the numbers say about which normalization to take at which batch size.

    Batch normalization is held at each batch size against the best of the others, which is the one with the lowest mean
    error over all batch sizes. What cannot be told apart at 95 % is said to be so, and one seed tells nothing apart.

    Args:
        table: The table of a study.

    Returns:
        One to four sentences.

    >>> from tenfold.normalization.study_table import Cell
    >>> errors = {("batch", 32): (0.03, 0.03), ("batch", 2): (0.6, 0.6), ("group", None): (0.05, 0.05)}
    >>> cells = tuple(Cell(n, b, s, error=e) for (n, b), pair in errors.items() for s, e in enumerate(pair))
    >>> import textwrap
    >>> print(textwrap.fill(advice(StudyTable(cells, ("batch", "group"), (32, 2))), 100))
    Take batch normalization at 32 samples (3.0 % error against 5.0 % with group normalization at 32:
    2.0 points less, 95 % interval 2.0 to 2.0) and group normalization at 2 samples (5.0 % error against
    60.0 % with batch normalization at 2: 55.0 points less, 95 % interval 55.0 to 55.0).
    """
    others = [norm for norm in table.norms if norm != "batch" and _mean(table, norm) is not None]
    best = min(others, key=lambda norm: _mean(table, norm) or 0.0, default=None)
    sentences = []
    if max((len(table.runs(norm, size)) for norm in table.norms for size in table.batch_sizes), default=0) < 2:
        sentences.append(_one_seed(table))
    else:
        if "batch" in table.norms and best is not None:
            sentences.append(_against(table, best))
        elif "batch" in table.norms:
            sentences.append(_alone(table))
        if best is not None and len(others) > 1:
            sentences.append(_rest(table, best, [norm for norm in others if norm != best]))
        sentences += _reestimation(table)
    sentences += [
        f"{spelled(norm).capitalize()} lets nothing of the input through where each set is one value ({_listed(layers)})."
        for norm, layers in table.without_input.items()
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _mean(table: StudyTable, norm: str) -> float | None:
    """Mean error over the batch sizes at which the normalization trains at all."""
    found = [interval.center for size in table.batch_sizes if (interval := table.interval(norm, size)) is not None]
    return sum(found) / len(found) if found else None


def _told_apart(table: StudyTable, first: str, second: str, size: int) -> Better:
    """Which of two is better at a batch size; one that fails there is worse than one that does not."""
    failed = {norm: any(run.outcome == "failed" for run in table.runs(norm, size)) for norm in (first, second)}
    if failed[first] != failed[second]:
        return "second" if failed[first] else "first"
    difference = table.difference(first, second, size)
    if difference is None:
        return "neither"
    return "first" if difference.high < 0 else "second" if difference.low > 0 else "neither"


def _against(table: StudyTable, other: str) -> str:
    """Batch normalization against the best of the others, batch size by batch size."""
    by_winner: dict[Better, list[int]] = {"first": [], "second": [], "neither": []}
    for size in table.batch_sizes:
        by_winner[_told_apart(table, "batch", other, size)].append(size)
    batch, undecided = spelled("batch"), by_winner["neither"]
    clauses = []
    for winner, names in (("first", ("batch", other)), ("second", (other, "batch"))):
        sizes = by_winner[winner]  # type: ignore[index]
        if sizes:
            # the end of the range at which the case is clearest: large for batch normalization, small for the others
            shown = sizes[0] if winner == "first" else sizes[-1]
            clauses.append(f"{spelled(names[0])} at {_samples(sizes)} ({_evidence(table, *names, shown)})")
    if not clauses:
        widest = max(undecided, key=lambda size: abs(_center(table.difference("batch", other, size))))
        return (
            f"These runs do not tell {batch} and {spelled(other)} apart at any batch size (the largest difference is "
            f"{_points(table.difference('batch', other, widest))} at {widest}): take either, or run more seeds."
        )
    rest = f"; at {_samples(undecided)} these runs do not tell the two apart (more seeds may)" if undecided else ""
    return f"Take {' and '.join(clauses)}{rest}."


def _evidence(table: StudyTable, better: str, worse: str, size: int) -> str:
    mine, theirs = table.interval(better, size), table.interval(worse, size)
    difference = table.difference(worse, better, size)
    if mine is None:
        return ""
    text = f"{_percent(mine.center)} error"
    failures = [run.reason for run in table.runs(worse, size) if run.outcome == "failed"]
    if failures:
        return f"{text} at {size}, where {spelled(worse)} cannot be trained: {failures[0].split(';')[0].rstrip('.')}"
    if theirs is None or difference is None:
        return text
    return (
        f"{text} against {_percent(theirs.center)} with {spelled(worse)} at {size}: {100 * difference.center:.1f} points "
        f"less, 95 % interval {100 * difference.low:.1f} to {100 * difference.high:.1f}"
    )


def _alone(table: StudyTable) -> str:
    """Batch normalization at smaller sizes against itself at the largest at which it trains."""
    sizes = [size for size in table.batch_sizes if table.interval("batch", size) is not None]
    if not sizes:
        return "Batch normalization cannot be trained at any of these batch sizes."
    first = table.errors("batch", sizes[0])
    worse: list[tuple[int, Interval]] = []
    for size in sizes[1:]:
        change = paired_difference(table.errors("batch", size), first, table.answer)
        if change is not None and change.low > 0:
            worse.append((size, change))
    if not worse:
        return f"These runs show no loss of batch normalization at smaller batches than {sizes[0]}."
    size, change = worse[-1]
    return (
        f"Batch normalization is worse at {_samples([size for size, _ in worse])} than at {sizes[0]} "
        f"(at {size} by {_points(change)}); other normalizations were not tried."
    )


def _rest(table: StudyTable, best: str, others: Sequence[str]) -> str:
    """The others against the best of them, at the largest batch size."""
    size = table.batch_sizes[0]
    where = f"At {size}, " if table.real_batch else ""
    clauses, level = [], []
    for norm in others:
        difference = table.difference(norm, best, size)
        if _told_apart(table, norm, best, size) != "second":
            level.append(spelled(norm))
        elif difference is not None:
            clauses.append(f"{spelled(norm)} is {_points(difference)} behind {spelled(best)}")
        else:
            clauses.append(f"{spelled(norm)} cannot be trained")
    if level:
        verb = "is" if len(level) == 1 else "are"
        clauses.append(f"{_listed(level)} {verb} not told apart from {spelled(best)}")
    return _sentence(where + "; ".join(clauses))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _reestimation(table: StudyTable) -> list[str]:
    """Where exact population statistics help batch normalization, by how much at most."""
    gains = {size: reestimation_gain(table, "batch", size) for size in table.batch_sizes if "batch" in table.norms}
    clear = {size: gain for size, gain in gains.items() if gain is not None and gain.low > 0}
    if not clear:
        return []
    size = max(clear, key=lambda size: clear[size].center)
    return [
        f"Exact population statistics in the place of running averages take {_points(clear[size])} from the error of "
        f"batch normalization at {size}."
    ]


def _one_seed(table: StudyTable) -> str:
    size = table.batch_sizes[0]
    found = {norm: interval.center for norm in table.norms if (interval := table.interval(norm, size)) is not None}
    if not found:
        return "Nothing could be trained."
    best = min(found, key=lambda norm: found[norm])
    return (
        f"One seed gives no intervals, so nothing is told apart; the lowest error at {size} is {_percent(found[best])} "
        f"with {spelled(best)}. Run at least three seeds for advice."
    )


def _center(interval: Interval | None) -> float:
    return 0.0 if interval is None else interval.center


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _points(interval: Interval | None) -> str:
    """A difference in points of per cent, and its interval where there is one."""
    text = f"{100 * _center(interval):.1f} points"
    if interval is None or not math.isfinite(interval.low):
        return text
    return f"{text} (95 % interval {100 * interval.low:.1f} to {100 * interval.high:.1f})"


def _samples(sizes: Sequence[int]) -> str:
    return f"{_listed([str(size) for size in sizes])} sample{'s' if list(sizes) != [1] else ''}"


def _listed(parts: Sequence[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
