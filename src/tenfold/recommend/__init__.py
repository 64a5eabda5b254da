"""Collaborative filtering for implicit feedback (Hu, Koren and Volinsky 2008)."""

from tenfold.recommend.als import ImplicitALS
from tenfold.recommend.baselines import ItemCosine, Popularity
from tenfold.recommend.interactions import Interactions
from tenfold.recommend.metrics import ranking_metrics

__all__ = ["ImplicitALS", "Interactions", "ItemCosine", "Popularity", "ranking_metrics"]
