"""Collaborative filtering for implicit feedback (Hu, Koren and Volinsky 2008)."""

from typing import TYPE_CHECKING

from tenfold.lazy_names import lazy_names

if TYPE_CHECKING:
    from tenfold.recommend.als import ImplicitALS
    from tenfold.recommend.baselines import ItemCosine, Popularity
    from tenfold.recommend.interactions import Interactions
    from tenfold.recommend.metrics import ranking_metrics

__all__ = ["ImplicitALS", "Interactions", "ItemCosine", "Popularity", "ranking_metrics"]

_HOMES = {
    "ImplicitALS": "als",
    "Interactions": "interactions",
    "ItemCosine": "baselines",
    "Popularity": "baselines",
    "ranking_metrics": "metrics",
}

__getattr__ = lazy_names(__name__, _HOMES)
