"""The list of areas: the one place that knows which rooms the library has. Rooms are imported by name, only when used."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

    from tenfold.claims import Claim


@dataclass(frozen=True)
class Area:
    """One area: a package ``tenfold.<name>`` with a method, a command and the claims of its paper.

    Args:
        name: The area's one name: package, command, tests' folder, benchmark and docs page.
        paper: Authors, year and title of the paper or papers.
        summary: What the area does for its user, one line.
        extra: The optional-dependency group that the area's commands need, or None.
        requires: Import names which that extra brings.
    """

    name: str
    paper: str
    summary: str
    extra: str | None = None
    requires: tuple[str, ...] = ()

    def command(self) -> typer.Typer:
        """The area's command-line application, ``tenfold.<name>.cli.app``."""
        return importlib.import_module(f"tenfold.{self.name}.cli").app

    def claims(self) -> tuple[Claim, ...]:
        """The claims of the area's paper, ``tenfold.<name>.claims.CLAIMS``."""
        return tuple(importlib.import_module(f"tenfold.{self.name}.claims").CLAIMS)

    def missing(self) -> tuple[str, ...]:
        """Import names of the extra that are not installed here."""
        return tuple(module for module in self.requires if importlib.util.find_spec(module) is None)


AREAS: tuple[Area, ...] = (
    Area(
        name="mixture",
        paper="Graves 2016, Stochastic backpropagation through mixture density distributions",
        summary="Pathwise gradients through mixture samples; a VAE whose posterior is a mixture.",
    ),
    Area(
        name="normalization",
        paper=(
            "Ioffe & Szegedy 2015, Batch normalization: accelerating deep network training by reducing internal covariate "
            "shift; Wu & He 2018, Group normalization"
        ),
        summary="Batch and group normalization: fused layers, statistics that hold, surgery on networks, a study of your data.",
    ),
    Area(
        name="raml",
        paper="Norouzi et al. 2016, Reward augmented maximum likelihood for neural structured prediction",
        summary="Sequence models trained on targets drawn around the right ones; exact samplers, and a comparison of objectives.",
    ),
    Area(
        name="recommend",
        paper="Hu, Koren & Volinsky 2008, Collaborative filtering for implicit feedback datasets",
        summary="Recommendations from plays, clicks and purchases by alternating least squares: fit, evaluate, explain.",
    ),
)
