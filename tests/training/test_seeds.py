import random

import numpy as np
import pytest
import torch

from tenfold.training import derived_seed, seed_everything, seeded_generator
from tenfold.training.seeds import random_state, restore_random_state, seeded


def draws():
    return random.gauss(0, 1), np.random.normal(), torch.randn(()).item()


def test_same_seed_same_numbers_from_all_three_generators():
    seed_everything(3)
    first = draws()
    seed_everything(3)
    assert draws() == first
    seed_everything(4)
    assert draws() != first


def test_state_restores_all_three_generators_in_the_middle_of_a_pair_of_normals():
    seed_everything(0)
    draws()
    state = random_state()
    expected = draws()
    restore_random_state(state)
    assert draws() == expected


def test_seeded_leaves_the_generators_as_they_were():
    seed_everything(0)
    expected = draws()
    seed_everything(0)
    with seeded(8):
        inside = draws()
    assert draws() == expected
    with seeded(8):
        assert draws() == inside


def test_streams_of_a_seed_are_distinct():
    paths = [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0)]
    assert len({derived_seed(*path) for path in paths}) == len(paths)
    assert all(0 <= derived_seed(*path) < 2**63 for path in paths)
    assert not torch.equal(
        torch.rand(4, generator=seeded_generator(0, 1)), torch.rand(4, generator=seeded_generator(1, 0))
    )


def test_negative_seeds_are_refused():
    with pytest.raises(ValueError, match="seed=-1"):
        seed_everything(-1)
    with pytest.raises(ValueError, match="from 0 up"):
        derived_seed(0, -2)
