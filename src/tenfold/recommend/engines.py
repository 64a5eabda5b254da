"""Who solves the half steps: compiled kernels on this machine's processors, torch on an accelerator, or a Ray cluster."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float

from tenfold.recommend import torch_solver
from tenfold.recommend.solvers import Rows, Solver, half_step
from tenfold.recommend.training import HalfStep
from tenfold.runtime import choose_device

ENGINES = ("local", "ray")
EXACT = ("auto", "cholesky")


def chosen_engine(engine: str = "local", device: str | None = None, solver: Solver = "auto") -> HalfStep:
    """The half step of an engine and a device.

    Args:
        engine: ``"local"``, or ``"ray"`` (extra ``ray``).
        device: None for the compiled kernels; a name for torch's exact solver on that device; ``"auto"`` for a GPU if there is
            one, else the compiled kernels.
        solver: Torch has the exact one only.

    Raises:
        ValueError: Another engine, a device that is not here, an engine or solver that a device does not have.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r} is not one of {', '.join(map(repr, ENGINES))}")
    if engine == "ray":
        if device is not None:
            raise ValueError(f"device={device!r}: engine='ray' solves with the compiled kernels; device must be None")
        from tenfold.recommend.ray_engine import ray_half_step

        return ray_half_step
    if device is None:
        return half_step
    place = choose_device(device)
    if device == "auto" and place.type == "cpu":
        return half_step
    if solver not in EXACT:
        raise ValueError(f"solver={solver!r}: device={device!r} solves exactly; solver must be 'auto' or 'cholesky'")
    return _on_device(place)


def _on_device(device: torch.device) -> HalfStep:
    def step(
        fixed: Float[np.ndarray, "items k"],
        rows: Rows,
        regularization: Float[np.ndarray, " rows"],
        *,
        unobserved_weight: float = 1.0,
        start: Float[np.ndarray, "rows k"] | None = None,
        solver: Solver = "auto",
        n_jobs: int | None = None,
        gains: Float[np.ndarray, " rows"] | None = None,
        in_place: bool = False,
    ) -> Float[np.ndarray, "rows k"]:
        """`tenfold.recommend.solvers.half_step` on the device; exact: ``start`` and ``solver`` do not matter."""
        if regularization.min(initial=np.inf) <= 0:  # no rows to solve: only the compiled solver's check of the rank
            nothing = Rows(np.zeros(1, np.int64), rows.indices[:0], rows.values[:0], rows.base)
            half_step(fixed, nothing, regularization, unobserved_weight=unobserved_weight, solver="cholesky")
        table = torch.from_numpy(fixed).to(device)
        try:
            solved = torch_solver.half_step(
                table, rows, regularization, unobserved_weight=unobserved_weight, gains=gains
            )
        except torch.linalg.LinAlgError as error:
            raise ValueError("the system of a row is not positive definite; set regularization higher") from error
        return solved.cpu().numpy()

    return step
