"""Where tensors live: the accelerator if there is one, or the device that was asked for, checked by name."""

from __future__ import annotations

import torch

from tenfold.errors import InputError


def default_device() -> torch.device:
    """The best device here: CUDA before Apple's MPS before the CPU.

    >>> default_device().type in {"cuda", "mps", "cpu"}
    True
    """
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def available_devices() -> list[str]:
    """The names that `choose_device` accepts here, besides "auto".

    >>> "cpu" in available_devices()
    True
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [f"cuda:{index}" for index in range(count)]
    names = ["cuda", *names] if names else []
    return names + (["mps"] if torch.backends.mps.is_available() else []) + ["cpu"]


def choose_device(name: str | torch.device = "auto") -> torch.device:
    """The device of that name, if it is there.

    Args:
        name: "auto" (`default_device`), "cpu", "cuda", "cuda:1", "mps", or a torch.device.

    Raises:
        InputError: There is no such device here; the message lists those there are.

    >>> choose_device("cpu")
    device(type='cpu')
    >>> choose_device("gpu")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tenfold.errors.InputError: device 'gpu' is not here; available: auto, ...
    """
    if str(name) == "auto":
        return default_device()
    if str(name) not in available_devices():
        raise InputError(f"device {str(name)!r} is not here; available: {', '.join(['auto', *available_devices()])}")
    return torch.device(name)
