"""Which claims to run: those of all areas, of some areas, or some by their id."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from tenfold import areas as known
from tenfold.areas import Area
from tenfold.claims.claim import Claim
from tenfold.errors import InputError, MissingExtraError


def select_claims(
    areas: Sequence[str] = (), ids: Sequence[str] = (), scale: str | None = None
) -> tuple[tuple[Claim, ...], tuple[str, ...]]:
    """The claims that a user asks for.

    Args:
        areas: Names of areas; none means all.
        ids: Ids of claims; none means all of the areas.
        scale: Only claims that are measured at this scale; None for all.

    Returns:
        The claims in the library's order, and a sentence for each area that cannot run here
            and was not asked for by name, and one on the claims of other scales.

    Raises:
        InputError: There is no such area or claim; the message names the nearest. A claim is not for the scale.
        MissingExtraError: An area that was asked for by name needs packages that are not installed.

    >>> select_claims(areas=["mixtures"])
    Traceback (most recent call last):
    ...
    tenfold.errors.InputError: there is no area 'mixtures'; did you mean mixture?
    """
    names = [area.name for area in known.AREAS]
    for name in areas:
        if name not in names:
            raise InputError(f"there is no area {name!r}; {nearest(name, names, 'the areas are')}")
    named = {*areas, *(identifier.partition(".")[0] for identifier in ids)}
    chosen = [area for area in known.AREAS if not areas or area.name in areas]
    if ids and all(identifier.partition(".")[0] in names for identifier in ids):
        chosen = [area for area in chosen if area.name in named]
    claims: list[Claim] = []
    notes: list[str] = []
    for area in chosen:
        missing = area.missing()
        if not missing:
            claims += area.claims()
            continue
        error = MissingExtraError(missing[0], area.extra or area.name)
        if area.name in named:
            raise error
        notes.append(f"The area {area.name} was not run: {error}")
    selected = _by_id(claims, ids, chosen)
    other = [claim for claim in selected if scale is not None and scale not in claim.scales]
    if other and ids:
        raise InputError(f"the claim {other[0].id} is measured at scale {', '.join(other[0].scales)} only")
    if other:
        left_out = ", ".join(f"{claim.id} (scale {', '.join(claim.scales)})" for claim in other)
        notes.append(f"Not measured at scale {scale}: {left_out}.")
    return tuple(claim for claim in selected if claim not in other), tuple(notes)


def _by_id(claims: Sequence[Claim], ids: Sequence[str], areas: Iterable[Area]) -> tuple[Claim, ...]:
    available = [claim.id for claim in claims]
    for identifier in ids:
        if identifier not in available:
            where = ", ".join(area.name for area in areas)
            hint = nearest(identifier, available, "see tenfold reproduce --list; there is")
            raise InputError(f"there is no claim {identifier!r} in {where or 'the library'}; {hint}")
    return tuple(claim for claim in claims if not ids or claim.id in ids)


def nearest(name: str, names: Sequence[str], otherwise: str) -> str:
    """What a misspelled name may have meant.

    >>> nearest("mixtrue.bias", ["mixture.bias", "mixture.variance"], "there is")
    'did you mean mixture.bias?'
    >>> nearest("zebra", ["mixture", "ponder"], "the areas are")
    'the areas are mixture, ponder'
    """
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.65)
    if not close:  # an id without its area, or a part of one
        close = [full for full in names if len(name) > 2 and name.lower() in full][:3]
    return f"did you mean {' or '.join(close)}?" if close else f"{otherwise} {', '.join(names) or 'none'}"
