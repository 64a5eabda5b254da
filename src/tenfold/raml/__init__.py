"""Reward-augmented maximum likelihood with exact samplers of the payoff distribution (Norouzi et al. 2016, arXiv 1609.00150)."""

from typing import TYPE_CHECKING

from tenfold.lazy_names import lazy_names

if TYPE_CHECKING:
    from tenfold.raml.data import Vocabulary, read_pairs
    from tenfold.raml.decoding import beam_search, greedy
    from tenfold.raml.distance_counts import count_at_distance
    from tenfold.raml.edit import EditPayoff
    from tenfold.raml.hamming import HammingPayoff
    from tenfold.raml.model import Seq2SeqModel
    from tenfold.raml.risk import minimum_risk_loss
    from tenfold.raml.seq2seq import AttentionGRU, SmallTransformer
    from tenfold.raml.temperature import geometric_schedule, linear_schedule, temperature_limit
    from tenfold.raml.training import Seq2SeqModule, fit_pairs

__all__ = [
    "AttentionGRU",
    "EditPayoff",
    "HammingPayoff",
    "Seq2SeqModel",
    "Seq2SeqModule",
    "SmallTransformer",
    "Vocabulary",
    "beam_search",
    "count_at_distance",
    "fit_pairs",
    "geometric_schedule",
    "greedy",
    "linear_schedule",
    "minimum_risk_loss",
    "read_pairs",
    "temperature_limit",
]

_HOMES = {
    "AttentionGRU": "seq2seq",
    "EditPayoff": "edit",
    "HammingPayoff": "hamming",
    "Seq2SeqModel": "model",
    "Seq2SeqModule": "training",
    "SmallTransformer": "seq2seq",
    "Vocabulary": "data",
    "beam_search": "decoding",
    "count_at_distance": "distance_counts",
    "fit_pairs": "training",
    "geometric_schedule": "temperature",
    "greedy": "decoding",
    "linear_schedule": "temperature",
    "minimum_risk_loss": "risk",
    "read_pairs": "data",
    "temperature_limit": "temperature",
}

__getattr__ = lazy_names(__name__, _HOMES)
