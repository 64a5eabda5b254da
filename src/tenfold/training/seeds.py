"""Seeds, independent streams derived from a seed, and the state of every global random generator as plain tensors."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def derived_seed(seed: int, *path: int) -> int:
    """A 63-bit seed for one of the streams that belong to `seed`, for example ``derived_seed(seed, epoch, rank)``.

    Streams with different paths are independent (numpy's ``SeedSequence`` hashes them), which ``seed + epoch`` would
    not be: there, epoch 1 of seed 0 is epoch 0 of seed 1.

    Args:
        seed: Not negative.
        path: Numbers that name the stream, not negative.

    Raises:
        ValueError: A number is negative.

    >>> derived_seed(0, 1) == derived_seed(1, 0), derived_seed(0, 1) == derived_seed(0, 1)
    (False, True)
    """
    numbers = (seed, *path)
    if min(numbers) < 0:
        raise ValueError(f"seed={seed} with path {path}: seeds are whole numbers from 0 up")
    # the length is hashed as well: SeedSequence pads with zeros, so [3] and [3, 0] would be one stream
    words = np.random.SeedSequence([len(numbers), *numbers]).generate_state(1, np.uint64)
    return int(words[0]) >> 1


def seeded_generator(seed: int, *path: int, device: str | torch.device = "cpu") -> torch.Generator:
    """A torch generator with a stream of its own, for sampling that must not disturb or depend on the global one.

    >>> torch.equal(torch.rand(3, generator=seeded_generator(0, 7)), torch.rand(3, generator=seeded_generator(0, 7)))
    True
    """
    return torch.Generator(device).manual_seed(derived_seed(seed, *path))


def seed_everything(seed: int) -> int:
    """Seeds the global generators of Python, numpy and torch (all devices). Call it before the model is built.

    Args:
        seed: Not negative.

    Returns:
        The seed.

    Raises:
        ValueError: The seed is negative.

    >>> seed_everything(7), torch.rand(1).item() == (seed_everything(7), torch.rand(1).item())[1]
    (7, True)
    """
    if seed < 0:
        raise ValueError(f"seed={seed}: seeds are whole numbers from 0 up")
    random.seed(seed)
    np.random.seed(derived_seed(seed) % 2**32)  # users' code may draw from numpy's global generator
    torch.manual_seed(seed % 2**63)
    return seed


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, the global generators on the CPU are seeded; afterwards they go on as if nothing had been drawn.

    >>> before = torch.manual_seed(0).get_state()
    >>> with seeded(3):
    ...     _ = torch.rand(2), random.random(), np.random.rand()
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)  # this device only: seeding a GPU could not be undone here
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def random_state() -> dict[str, Any]:
    """State of the global generators of Python, numpy and torch (CPU and this process's GPU): tensors and numbers."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    if kind != "MT19937":
        raise ValueError(f"numpy's global generator is {kind}; only MT19937, its default, can be saved")
    state: dict[str, Any] = {
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
        "numpy": [torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Puts back what `random_state` returned. A device that is not here now is passed over.

    >>> state = random_state()
    >>> first = random.random(), np.random.rand(), torch.rand(1).item()
    >>> restore_random_state(state)
    >>> first == (random.random(), np.random.rand(), torch.rand(1).item())
    True
    """
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"].cpu())
