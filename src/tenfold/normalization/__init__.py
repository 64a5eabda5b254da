"""Batch Normalization and Group Normalization: fused layers, statistics that hold, and surgery on models that have them."""

from typing import TYPE_CHECKING

from tenfold.lazy_names import lazy_names

if TYPE_CHECKING:
    from tenfold.normalization.accumulation import pooled_statistics
    from tenfold.normalization.batch_normalization import BatchNorm1d, BatchNorm2d, BatchNorm3d, batch_norm
    from tenfold.normalization.conversion import convert
    from tenfold.normalization.cross_process import CrossProcessBatchNorm
    from tenfold.normalization.diagnosis import diagnose
    from tenfold.normalization.folding import fold
    from tenfold.normalization.frozen import FrozenBatchNorm
    from tenfold.normalization.ghost import GhostBatchNorm
    from tenfold.normalization.group_normalization import GroupNorm, group_norm
    from tenfold.normalization.groups import recommend_groups
    from tenfold.normalization.recurrent import BatchNormLSTM, SequenceBatchNormLSTM
    from tenfold.normalization.reestimation import reestimate
    from tenfold.normalization.renorm import BatchRenorm, papers_schedule
    from tenfold.normalization.statistics import mask_from_lengths, name_layers
    from tenfold.normalization.study import norm_study

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "BatchNormLSTM",
    "BatchRenorm",
    "CrossProcessBatchNorm",
    "FrozenBatchNorm",
    "GhostBatchNorm",
    "GroupNorm",
    "SequenceBatchNormLSTM",
    "batch_norm",
    "convert",
    "diagnose",
    "fold",
    "group_norm",
    "mask_from_lengths",
    "name_layers",
    "norm_study",
    "papers_schedule",
    "pooled_statistics",
    "recommend_groups",
    "reestimate",
]

_HOMES = {
    "BatchNorm1d": "batch_normalization",
    "BatchNorm2d": "batch_normalization",
    "BatchNorm3d": "batch_normalization",
    "BatchNormLSTM": "recurrent",
    "BatchRenorm": "renorm",
    "CrossProcessBatchNorm": "cross_process",
    "FrozenBatchNorm": "frozen",
    "GhostBatchNorm": "ghost",
    "GroupNorm": "group_normalization",
    "SequenceBatchNormLSTM": "recurrent",
    "batch_norm": "batch_normalization",
    "convert": "conversion",
    "diagnose": "diagnosis",
    "fold": "folding",
    "group_norm": "group_normalization",
    "mask_from_lengths": "statistics",
    "name_layers": "statistics",
    "norm_study": "study",
    "papers_schedule": "renorm",
    "pooled_statistics": "accumulation",
    "recommend_groups": "groups",
    "reestimate": "reestimation",
}

__getattr__ = lazy_names(__name__, _HOMES)
