"""The machine is described in values that JSON can hold, and devices are chosen by names that exist."""

import json
import subprocess
import sys

import pytest
import torch

from tenfold.errors import InputError
from tenfold.runtime import available_devices, choose_device, default_device, describe_machine, threads


def test_the_description_is_json_and_names_what_decides_speed():
    with threads(1):
        machine = json.loads(json.dumps(describe_machine()))
    assert machine["threads"] == machine["torch threads"] == 1
    assert machine["torch"] == torch.__version__
    assert 1 <= machine["available cpus"] <= machine["cpus"]
    assert machine["BLAS"] != "none loaded"
    assert all(machine[name] for name in ("system", "python", "cpu", "allocator", "accelerator", "numpy", "numba"))


def test_the_default_device_is_one_of_those_available_and_can_compute():
    device = default_device()
    assert str(device) in available_devices()
    assert torch.ones(3, device=device).sum().item() == 3
    if torch.cuda.is_available():
        assert device.type == "cuda"


def test_a_device_is_chosen_by_its_name():
    assert choose_device() == choose_device("auto") == default_device()
    assert choose_device(torch.device("cpu")) == torch.device("cpu")


def test_a_device_that_is_not_here_is_refused_with_those_that_are():
    with pytest.raises(InputError, match=r"device 'cuda:99' is not here; available: auto, .*cpu"):
        choose_device("cuda:99")


def test_importing_the_runtime_changes_no_setting():
    code = (
        "import torch; before = torch.get_num_threads(); import tenfold.runtime;"
        "assert torch.get_num_threads() == before;"
        "import sys; assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
