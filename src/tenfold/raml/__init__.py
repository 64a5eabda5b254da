"""Reward-augmented maximum likelihood with exact samplers of the payoff distribution (Norouzi et al. 2016, arXiv 1609.00150)."""

from typing import TYPE_CHECKING

from tenfold.lazy_names import lazy_names

if TYPE_CHECKING:
    from tenfold.raml.distance_counts import count_at_distance
    from tenfold.raml.edit import EditPayoff
    from tenfold.raml.hamming import HammingPayoff
    from tenfold.raml.temperature import geometric_schedule, linear_schedule, temperature_limit

__all__ = [
    "EditPayoff",
    "HammingPayoff",
    "count_at_distance",
    "geometric_schedule",
    "linear_schedule",
    "temperature_limit",
]

_HOMES = {
    "EditPayoff": "edit",
    "HammingPayoff": "hamming",
    "count_at_distance": "distance_counts",
    "geometric_schedule": "temperature",
    "linear_schedule": "temperature",
    "temperature_limit": "temperature",
}

__getattr__ = lazy_names(__name__, _HOMES)
