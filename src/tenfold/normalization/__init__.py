"""Batch Normalization and Group Normalization: fused layers, statistics that hold, and surgery on models that have them."""

from tenfold.lazy_names import lazy_names

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
__all__ = sorted(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
