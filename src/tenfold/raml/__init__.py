"""Reward-augmented maximum likelihood with exact samplers of the payoff distribution (Norouzi et al. 2016, arXiv 1609.00150)."""

from typing import TYPE_CHECKING

from tenfold.lazy_names import lazy_names

if TYPE_CHECKING:
    from tenfold.raml.collator import RAMLCollator, RAMLDataset
    from tenfold.raml.crf import crf_raml_loss
    from tenfold.raml.data import Vocabulary, read_pairs
    from tenfold.raml.decoding import beam_search, greedy
    from tenfold.raml.distance_counts import count_at_distance
    from tenfold.raml.edit import EditPayoff
    from tenfold.raml.hamming import HammingPayoff
    from tenfold.raml.importance import ImportanceWeighted
    from tenfold.raml.metrics import edit_distance, error_rate
    from tenfold.raml.model import Seq2SeqModel
    from tenfold.raml.objective import raml_loss, raml_report
    from tenfold.raml.rewards import SentenceBLEU, SentenceChrF, negative_edit_distance
    from tenfold.raml.risk import minimum_risk_loss
    from tenfold.raml.seq2seq import AttentionGRU, SmallTransformer
    from tenfold.raml.temperature import geometric_schedule, linear_schedule, temperature_limit
    from tenfold.raml.trainer_mixin import RAMLTrainerMixin
    from tenfold.raml.training import Seq2SeqModule, fit_pairs

__all__ = [
    "AttentionGRU",
    "EditPayoff",
    "HammingPayoff",
    "ImportanceWeighted",
    "RAMLCollator",
    "RAMLDataset",
    "RAMLTrainerMixin",
    "SentenceBLEU",
    "SentenceChrF",
    "Seq2SeqModel",
    "Seq2SeqModule",
    "SmallTransformer",
    "Vocabulary",
    "beam_search",
    "count_at_distance",
    "crf_raml_loss",
    "edit_distance",
    "error_rate",
    "fit_pairs",
    "geometric_schedule",
    "greedy",
    "linear_schedule",
    "minimum_risk_loss",
    "negative_edit_distance",
    "raml_loss",
    "raml_report",
    "read_pairs",
    "temperature_limit",
]

_HOMES = {
    "AttentionGRU": "seq2seq",
    "EditPayoff": "edit",
    "HammingPayoff": "hamming",
    "ImportanceWeighted": "importance",
    "RAMLCollator": "collator",
    "RAMLDataset": "collator",
    "RAMLTrainerMixin": "trainer_mixin",
    "SentenceBLEU": "rewards",
    "SentenceChrF": "rewards",
    "Seq2SeqModel": "model",
    "Seq2SeqModule": "training",
    "SmallTransformer": "seq2seq",
    "Vocabulary": "data",
    "beam_search": "decoding",
    "count_at_distance": "distance_counts",
    "crf_raml_loss": "crf",
    "edit_distance": "metrics",
    "error_rate": "metrics",
    "fit_pairs": "training",
    "geometric_schedule": "temperature",
    "greedy": "decoding",
    "linear_schedule": "temperature",
    "minimum_risk_loss": "risk",
    "negative_edit_distance": "rewards",
    "raml_loss": "objective",
    "raml_report": "objective",
    "read_pairs": "data",
    "temperature_limit": "temperature",
}

__getattr__ = lazy_names(__name__, _HOMES)
