"""Normalization and the activation that follows, in training on the CPU: Tenfold beside torch.nn.

Shapes are those of ResNet-50 and of a diffusion U-Net. Backward passes include the gradients of gamma and beta. Two figures are
kept apart: beside ``torch.nn`` the allocator is tuned for both (`tenfold.runtime.tune_allocator`); ``torch.nn, default
allocator`` is torch as it comes, which takes a process of its own::

    python -m benchmarks normalization --case "(32, 256, 56, 56)" --peer "torch.nn, default allocator=$(which python)"
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.case import Case, MissingContestantError, Peer

if TYPE_CHECKING:
    from torch import Tensor, nn

    Work = dict[str, Any]

GROUPS = 32


def _work(shape: tuple[int, ...], kind: str, last: bool, backward: bool) -> Work:
    import torch

    generator = torch.Generator().manual_seed(0)
    layout = torch.channels_last if last else torch.contiguous_format
    x, dy = (torch.randn(shape, generator=generator).to(memory_format=layout) for _ in range(2))
    return {"x": x.requires_grad_(backward), "dy": dy, "kind": kind, "backward": backward}


def _ours(work: Work) -> Work:
    from tenfold.normalization import BatchNorm2d, GroupNorm
    from tenfold.runtime import tune_allocator

    tune_allocator()
    channels = work["x"].shape[1]
    group = work["kind"] == "GroupNorm + SiLU"
    layer = GroupNorm(GROUPS, channels, activation="silu") if group else BatchNorm2d(channels, activation="relu")
    return {**work, "layer": layer}


def _torchs(work: Work) -> Work:
    from torch import nn

    channels = work["x"].shape[1]
    if work["kind"] == "GroupNorm + SiLU":
        return {**work, "layer": nn.Sequential(nn.GroupNorm(GROUPS, channels), nn.SiLU(inplace=True))}
    return {**work, "layer": nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True))}


def _untuned(work: Work) -> Work:
    from tenfold.runtime import allocator_state

    if "not tuned" not in allocator_state():
        raise MissingContestantError("needs a process of its own: --peer 'torch.nn, default allocator'=PYTHON")
    return _torchs(work)


def _run(work: Work) -> Tensor | None:
    import torch

    layer: nn.Module = work["layer"]
    if not work["backward"]:
        with torch.no_grad():
            y: Tensor = layer(work["x"])
            return y
    layer(work["x"]).backward(work["dy"])
    work["x"].grad = None
    return None


TORCH = Peer(_run, package="torch", prepare=_torchs)
UNTUNED = Peer(_run, package="torch", prepare=_untuned)
GOALS = {  # kind, channels last, backward: ours divided by torch's
    ("GroupNorm + SiLU", False, False): 1 / 1.4,
    ("GroupNorm + SiLU", False, True): 1 / 1.4,
    ("BatchNorm + ReLU", False, False): 1 / 4,
    ("BatchNorm + ReLU", False, True): 1 / 2,
    ("GroupNorm + SiLU", True, False): 1 / 1.3,
    ("GroupNorm + SiLU", True, True): 1 / 1.2,
    ("BatchNorm + ReLU", True, False): 1 / 1.3,
    ("BatchNorm + ReLU", True, True): 1 / 1.2,
}
DEFAULT_GOALS = {
    ("GroupNorm + SiLU", False): 1 / 5,
    ("BatchNorm + ReLU", False): 1 / 8,
    ("GroupNorm + SiLU", True): 1 / 7,
}
LARGE = (32, 256, 56, 56)  # 98 MiB: beyond what the default allocator keeps
SHAPES = (
    LARGE,
    (8, 64, 56, 56),
    (32, 2048, 7, 7),
    (1, 512, 7, 7),
    (64, 256, 14, 14),
    (8, 512, 28, 28),
    (2, 320, 64, 64),
    (2, 1280, 16, 16),
    (1, 128, 256, 256),
)


def _case(shape: tuple[int, ...], kind: str, last: bool, backward: bool) -> Case:
    peers = {"torch.nn": TORCH}
    goal = {"torch.nn": GOALS[kind, last, backward]}
    if shape == LARGE and not last:
        peers["torch.nn, default allocator"] = UNTUNED
        if (kind, backward) in DEFAULT_GOALS:
            goal["torch.nn, default allocator"] = DEFAULT_GOALS[kind, backward]
    layout, passes = ("channels last" if last else "contiguous"), ("forward and backward" if backward else "forward")
    return Case(
        f"{kind}, {passes}, {layout}, {shape}",
        lambda: _work(shape, kind, last, backward),
        _run,
        peers,
        prepare=_ours,
        quick=shape in ((8, 64, 56, 56), (2, 1280, 16, 16)),
        goal=goal,
        note="goals are geometric means over the shapes; GroupNorm of torch loses digits with channels last",
    )


CASES = [
    _case(shape, kind, last, backward)
    for shape in SHAPES
    for kind in ("GroupNorm + SiLU", "BatchNorm + ReLU")
    for last in (False, True)
    for backward in (False, True)
]
