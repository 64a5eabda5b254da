"""A diagnosis as a table for polars."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from tenfold.normalization.diagnosis import Diagnosis


def diagnosis_frame(diagnosis: Diagnosis) -> pl.DataFrame:
    """A row for each layer; the findings of a layer as one text.

    Args:
        diagnosis: What `diagnose` found.
    """
    records = [
        asdict(row) | {"dead_channels": list(row.dead_channels), "findings": "; ".join(row.findings)}
        for row in diagnosis.rows
    ]
    schema: dict[str, Any] = {
        **dict.fromkeys(("name", "kind"), pl.String),
        **dict.fromkeys(("channels", "calls", "values", "updates"), pl.Int64),
        **dict.fromkeys(("momentum", "gap", "drift", "batch_noise"), pl.Float64),
        "worst_channel": pl.Int64,
        "dead_channels": pl.List(pl.Int64),
        "never_positive": pl.Int64,
        "findings": pl.String,
    }
    return pl.DataFrame(records, schema=schema)
