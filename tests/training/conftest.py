import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def runs() -> ModuleType:
    """The small run in runs.py, which is also a program of its own."""
    specification = importlib.util.spec_from_file_location("tenfold_small_runs", Path(__file__).with_name("runs.py"))
    module = importlib.util.module_from_spec(specification)
    sys.modules["tenfold_small_runs"] = module
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def uninterrupted(runs, tmp_path_factory):
    """A run that nothing stopped, with a checkpoint after each step: its folder, and its weights."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    network, _ = runs.run(folder, checkpoint_minutes=0, keep=100)
    return folder, runs.weights(network)
