"""Finished measurements on disk: ``<cache>/<claim>/<scale>-seed<N>-<code version>.json``, each written in one step.

A measurement is used again only for the same claim, scale, seed and code version. The files of older code tell what a
measurement costs.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from tenfold.claims.claim import Claim
from tenfold.claims.code_version import code_version
from tenfold.claims.result import SeedRun, measurement_from_json

KEPT_VERSIONS = 4  # files that stay for a claim, scale and seed


def default_cache() -> Path:
    """Folder of finished measurements: ``claims`` in ``$TENFOLD_CACHE``, or in the user's cache folder."""
    if "TENFOLD_CACHE" in os.environ:
        return Path(os.environ["TENFOLD_CACHE"]) / "claims"
    import pooch

    return Path(pooch.os_cache("tenfold")) / "claims"


class Store:
    """The finished measurements of one scale, a JSON file each."""

    def __init__(self, folder: Path, scale: str) -> None:
        self.folder = folder
        self.scale = scale

    def load(self, claim: Claim, seed: int) -> SeedRun | None:
        """The stored run of a seed by the present code; None if there is none, or its file cannot be read."""
        try:
            record = json.loads(self._file(claim, seed).read_bytes())
            measurement = measurement_from_json(record.pop("measurement"))
            if any(criterion.number not in measurement.numbers for criterion in claim.criteria):
                return None
            return SeedRun(**{**record, "measurement": measurement, "cached": True})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # missing, or not written by us: it is measured anew

    def save(self, claim: Claim, run: SeedRun) -> None:
        """Stores a run; files of older code go when there are many."""
        from tenfold.files import atomic_write

        file = self._file(claim, run.seed)
        atomic_write(file, json.dumps(asdict(run)))
        others = [path for path in file.parent.glob(f"{self.scale}-seed{run.seed}-*.json") if path != file]
        for path in sorted(others, key=_modified, reverse=True)[KEPT_VERSIONS - 1 :]:
            path.unlink(missing_ok=True)

    def seconds(self, claim: str) -> float | None:
        """Mean cost of a measurement of the claim in earlier runs, of whatever code; None if there was none."""
        costs = []
        for path in (self.folder / claim).glob(f"{self.scale}-seed*.json"):
            try:
                costs.append(float(json.loads(path.read_bytes())["seconds"]))
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return sum(costs) / len(costs) if costs else None

    def _file(self, claim: Claim, seed: int) -> Path:
        return self.folder / claim.id / f"{self.scale}-seed{seed}-{code_version(claim.measure)}.json"


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
