"""Makes `reference` importable, fixes the seed of every test, and lists what is no sample shape."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(20160707)


@pytest.fixture(
    params=[
        (5, TypeError, r"sample_shape=5 must be a tuple of sizes, such as \(5,\)"),
        (torch.tensor(3), TypeError, r"sample_shape=tensor\(3\) must be a tuple of sizes, such as \(3,\)"),
        ((2.5,), TypeError, r"sample_shape=\(2.5,\) must be a tuple of integer sizes"),
        (None, TypeError, r"sample_shape=None must be a tuple of integer sizes"),
        ((2, -1), ValueError, r"sample_shape=\(2, -1\) holds a negative size"),
    ]
)
def wrong_sample_shape(request):
    """A sample shape that is none, the error that it raises and its message."""
    return request.param
