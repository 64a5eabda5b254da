"""Batch Normalization and Group Normalization: fused layers, statistics that hold, and surgery on models that have them."""

from tenfold.lazy_names import lazy_names

_HOMES = {
    "BatchNorm1d": "batch_norm",
    "BatchNorm2d": "batch_norm",
    "BatchNorm3d": "batch_norm",
    "BatchNormLSTM": "recurrent",
    "BatchRenorm": "renorm",
    "CrossProcessBatchNorm": "cross_process",
    "FrozenBatchNorm": "frozen",
    "GhostBatchNorm": "ghost",
    "GroupNorm": "group_norm",
    "SequenceBatchNormLSTM": "recurrent",
    "batch_norm": "batch_norm",
    "convert": "conversion",
    "diagnose": "diagnosis",
    "fold": "folding",
    "group_norm": "group_norm",
    "mask_from_lengths": "statistics",
    "name_layers": "statistics",
    "norm_study": "study",
    "papers_schedule": "renorm",
    "pooled_statistics": "accumulation",
    "recommend_groups": "groups",
    "reestimate": "reestimation",
}
__all__ = sorted(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
