"""The folder of a study: its settings, and a file for each finished run, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from tenfold.errors import InputError
from tenfold.files import atomic_write
from tenfold.normalization.study_table import Cell, StudyTable

SETTINGS_FILE = "settings.json"
RUNS = "runs"


@dataclass(frozen=True)
class Run:
    """What tells a training run from the others of its study.

    Args:
        norm: The normalization.
        batch_size: Samples; None where one run stands for all sizes.
        seed: Of the run.
    """

    norm: str
    batch_size: int | None
    seed: int

    @property
    def file(self) -> str:
        """Name of its file.

        >>> Run("batch", 2, 0).file
        'batch-00002-seed-0.json'
        """
        size = "any" if self.batch_size is None else f"{self.batch_size:05d}"
        return f"{self.norm}-{size}-seed-{self.seed}.json"


def keep_cell(folder: Path, run: Run, cell: Cell) -> None:
    """Writes what came of a run.

    Args:
        folder: Where the study is kept.
        run: The run.
        cell: Its result.
    """
    atomic_write(folder / RUNS / run.file, json.dumps(asdict(cell)))


def open_folder(folder: Path, described: Mapping[str, Any], wanted: Sequence[Run], resume: bool) -> dict[Run, Cell]:
    """The finished runs in a folder of the same study; a new folder is begun.

    Args:
        folder: Where the study is kept.
        described: All that the numbers depend on, beside norm, batch size and seed of a run; what JSON can hold.
        wanted: The runs to look for.
        resume: Whether an earlier study is wanted there.

    Raises:
        InputError: An earlier study without `resume`, one with other settings, damaged files, or files of another kind.
    """
    file = folder / SETTINGS_FILE
    described = json.loads(json.dumps(described))  # as it will be read back
    if folder.exists() and not folder.is_dir():
        raise InputError("this is a file; a folder is needed", path=folder)
    if not file.exists():
        if folder.exists() and any(folder.iterdir()):
            raise InputError("holds other files; give the study a folder of its own", path=folder)
        atomic_write(file, json.dumps(described, indent=1))
        return {}
    if not resume:
        raise InputError("holds an earlier study; --resume goes on with it, or give another folder", path=folder)
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        differing = [name for name in described if found.get(name) != described[name]]
    except (ValueError, AttributeError) as error:
        raise InputError("is damaged; give another folder, or remove it", path=file) from error
    if differing:
        name = differing[0]
        raise InputError(
            f"this study was made with {name}={found.get(name)}, now {name}={described[name]}; give another folder",
            path=folder,
        )
    return {run: cell for run in wanted if (cell := _read_cell(folder / RUNS / run.file, run)) is not None}


def _read_cell(file: Path, run: Run) -> Cell | None:
    if not file.exists():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        content.update({name: tuple(content[name]) for name in ("errors", "losses")})
        cell = Cell(**content)
        if (cell.norm, cell.batch_size, cell.seed) != (run.norm, run.batch_size, run.seed):
            raise ValueError("another run")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError("is damaged; remove it, and the run is made again", path=file) from error
    return cell


def write_study(table: StudyTable, folder: Path) -> list[Path]:
    """Writes the table as CSV, all of the study as JSON, and the two pictures.

    Args:
        table: A study.
        folder: Where.

    Returns:
        The files.
    """
    from tenfold.normalization.study_pictures import draw_curves, draw_errors

    records = table.records()
    text = pl.DataFrame(records, infer_schema_length=None).write_csv()
    files = [folder / name for name in ("table.csv", "study.json", "errors.png", "curves.png")]
    atomic_write(files[0], text)
    atomic_write(files[1], json.dumps(table.to_dict(), indent=1))
    draw_errors(table, files[2])
    draw_curves(table, files[3])
    return files
