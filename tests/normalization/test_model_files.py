"""Networks from a file that the user names, weights from files that cannot run code; what is wrong in either is one line."""

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from tenfold.errors import InputError
from tenfold.normalization.model_files import (
    build_network,
    load_build,
    load_weights,
    read_weights,
    save_weights,
    takes,
)

NET = """
from torch import nn
import layers

def build(num_classes=3):
    return nn.Sequential(layers.first(), nn.BatchNorm1d(4), nn.Linear(4, num_classes))

def broken():
    raise KeyError("no such thing")

def number():
    return 3

constant = 7
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "layers.py").write_text("from torch import nn\n\ndef first():\n    return nn.Linear(2, 4)\n")
    return tmp_path


def network(place, offers=None):
    source = f"{place}/net.py:build"
    return build_network(source, load_build(source), offers or {})


def test_a_function_is_found_with_what_lies_beside_its_file(place):
    assert network(place)[2].out_features == 3
    assert network(place, {"num_classes": 5})[2].out_features == 5
    assert takes(load_build(f"{place}/net.py:build"), "num_classes")


def test_two_files_of_one_name_are_two_networks(place):
    (place / "b").mkdir()
    (place / "b" / "net.py").write_text("from torch import nn\ndef build(): return nn.Identity()\n")
    assert isinstance(network(place), nn.Sequential)
    assert isinstance(network(place / "b"), nn.Identity)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("net.py", r"'.*net.py' names no function in a file; write it as net.py:build"),
        ("net.py:", "names no function"),
        ("net.py:a-b", "names no function"),
        ("gone.py:build", r"gone.py: there is no such file"),
        ("net.txt:build", r"net.txt: a Python file \(.py\) is needed"),
        ("net.py:constant", r"net.py: has no function 'constant'; there are broken, build, number"),
        ("syntax.py:build", r"syntax.py:2: SyntaxError"),
        ("raises.py:build", r"raises.py:3: ZeroDivisionError: division by zero"),
        ("missing.py:build", r"missing.py:1: ModuleNotFoundError: .*no_such_package"),
    ],
)
def test_files_that_cannot_be_used_are_named_with_the_line(place, source, message):
    (place / "net.txt").write_text(NET)
    (place / "syntax.py").write_text("x = 1\ndef build(:\n")
    (place / "raises.py").write_text("x = 1\n\ny = x / 0\n")
    (place / "missing.py").write_text("import no_such_package\n")
    with pytest.raises(InputError, match=message) as error:
        load_build(f"{place}/{source}")
    assert "\n" not in str(error.value)


def test_functions_that_fail_are_named_with_the_line(place):
    for name, message in (
        ("broken", r"net.py:9: broken\(\) raised KeyError: 'no such thing'"),
        ("number", r"net.py: number\(\) gave a int; a torch.nn.Module is needed"),
    ):
        source = f"{place}/net.py:{name}"
        with pytest.raises(InputError, match=message):
            build_network(source, load_build(source), {})
    (place / "net.py").write_text("def build(width): pass\n")
    with pytest.raises(InputError, match=r"net.py: build needs the argument 'width'; it is offered num_classes"):
        network(place, {"num_classes": 3})


def test_weights_go_out_and_come_back(place):
    first = network(place)
    with torch.no_grad():
        for tensor in first.state_dict().values():
            tensor.add_(3)
    for name in ("w.safetensors", "w.pt", "w.pth"):
        save_weights(first, place / name)
        second = network(place)
        load_weights(second, place / name)
        for key, tensor in first.state_dict().items():
            assert torch.equal(tensor, second.state_dict()[key])
    with pytest.raises(InputError, match=r"w.bin: weights are written as .safetensors, .pt or .pth"):
        save_weights(first, place / "w.bin")


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "model_state_dict"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_wrapped_and_prefixed_weights_are_found(place, wrapper, prefix):
    weights = {prefix + name: tensor + 1 for name, tensor in network(place).state_dict().items()}
    torch.save({"epoch": 3, wrapper: weights, "optimizer": {"state": {}, "lr": 0.1}}, place / "c.pt")
    net = network(place)
    load_weights(net, place / "c.pt")
    assert torch.equal(net[0].weight, weights[prefix + "0.weight"])


def test_weights_of_other_networks_are_refused(place):
    net = network(place)
    weights = net.state_dict()
    for change, message in (
        ({"3.weight": torch.zeros(2)}, r"c.pt: does not fit the network: the network has no 3.weight"),
        ({"0.bias": None}, r"does not fit the network: it lacks 0.bias"),
        ({"0.bias": torch.zeros(5)}, r"0.bias has shape \(5,\), the network's \(4,\)"),
    ):
        torch.save({k: v for k, v in {**weights, **change}.items() if v is not None}, place / "c.pt")
        with pytest.raises(InputError, match=message):
            load_weights(net, place / "c.pt")
    # torch 0.4 and before counted no batches
    torch.save({k: v for k, v in weights.items() if "num_batches" not in k}, place / "old.pt")
    load_weights(net, place / "old.pt")


class Trap:
    def __reduce__(self):
        return (open, ("trapped", "w"))


def test_no_pickle_is_opened(place, monkeypatch):
    monkeypatch.chdir(place)
    for name, save in (
        ("whole.pt", lambda path: torch.save(network(place), path)),
        ("trap.pt", lambda path: torch.save({"a": torch.zeros(1), "b": Trap()}, path)),
        ("plain.pkl", lambda path: path.write_bytes(pickle.dumps(Trap()))),
    ):
        save(place / name)
        with pytest.raises(InputError, match=rf"{name}: holds more than tensors and plain values, or is damaged"):
            read_weights(place / name)
    assert not (place / "trapped").exists()


@pytest.mark.parametrize("content", [3, [torch.zeros(1)], {}, {"state_dict": {}}, {"a": 1, "b": torch.zeros(1)}])
def test_checkpoints_without_a_state_dict(tmp_path, content):
    torch.save(content, tmp_path / "c.pt")
    with pytest.raises(InputError, match=r"c.pt: holds no state_dict"):
        read_weights(tmp_path / "c.pt")


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=120), st.sampled_from(["c.pt", "c.safetensors"]), st.integers(0, 400))
def test_damaged_checkpoints_are_refused_in_one_line(tmp_path_factory, content, name, cut):
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / name
    weights = {"a": torch.arange(4.0)}
    if content and content[0] % 2:
        torch.save(weights, path) if name == "c.pt" else save_file(weights, path)
        whole = path.read_bytes()
        path.write_bytes(whole[: min(cut, len(whole) - 1)] + content)
    else:
        path.write_bytes(content)
    message = refusal(path)
    assert message is None or ("\n" not in message and name in message)


def refusal(path):
    try:
        weights = read_weights(path)
    except InputError as error:
        return str(error)
    assert all(isinstance(tensor, torch.Tensor) for tensor in weights.values())
    return None
