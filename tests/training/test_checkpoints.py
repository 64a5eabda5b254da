import json
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tenfold.errors import InputError
from tenfold.training import clear_checkpoints, last_checkpoint, read_checkpoint
from tenfold.training.checkpoints import checkpoint_path, list_checkpoints, write_checkpoint


@pytest.fixture
def path(tmp_path):
    return tmp_path / "step-00000001.safetensors"


def test_nested_state_comes_back_as_it_was(path):
    state = {
        "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(2, 3)}, 1: {}},
        "groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1], "foreach": None, "flag": True}],
        "milestones": Counter({30: 1, 80: 2}),
        "ordered": OrderedDict(a=1),
        "best": float("inf"),
        "tiny": 5e-324,
        "text": "größer 'a.b' \n",
        "array": np.arange(3, dtype=np.int32),
        "number": np.float64(1 / 3),
        "$": "a key that looks like a mark",
    }
    write_checkpoint(path, state)
    back = read_checkpoint(path)
    assert torch.equal(back["state"][0]["exp_avg"], state["state"][0]["exp_avg"])
    assert back["state"][0]["step"].shape == ()
    assert back["array"].dtype == np.int32
    assert isinstance(back["milestones"], Counter)
    for name in "groups", "milestones", "ordered", "best", "tiny", "text", "number", "$":
        assert back[name] == state[name]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_dtypes_and_empty_tensors_are_kept(path, dtype):
    write_checkpoint(path, {"some": torch.tensor([0, 1, 1]).to(dtype), "none": torch.zeros(0, 3, dtype=dtype)})
    back = read_checkpoint(path)
    assert back["some"].dtype == back["none"].dtype == dtype
    assert back["some"].tolist() == [0, 1, 1]
    assert back["none"].shape == (0, 3)


def test_tensors_that_share_memory_are_saved_each_by_itself(path):
    whole = torch.arange(6.0)
    write_checkpoint(path, {"whole": whole, "same": whole, "part": whole[2:4], "turned": whole.view(2, 3).T})
    back = read_checkpoint(path)
    assert torch.equal(back["same"], whole)
    assert back["part"].tolist() == [2, 3]
    assert torch.equal(back["turned"], whole.view(2, 3).T)


def test_names_with_dots_do_not_collide(path):
    write_checkpoint(path, {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}})
    back = read_checkpoint(path)
    assert (back["a.b"].item(), back["a"]["b"].item()) == (0, 1)


@pytest.mark.parametrize(
    ("value", "said"),
    [(object(), r"hparams\.0\.encoder is a builtins\.object"), (torch.zeros(2, dtype=torch.complex64), "complex64")],
)
def test_what_is_neither_tensor_nor_json_is_refused_by_name_and_nothing_written(path, value, said):
    with pytest.raises(TypeError, match=said):
        write_checkpoint(path, {"hparams": [{"encoder": value}]})
    assert list(path.parent.iterdir()) == []


def test_truncated_flipped_and_foreign_files_are_one_line_errors(path):
    write_checkpoint(path, {"weights": torch.arange(100.0)})
    whole = path.read_bytes()
    broken = [whole[: len(whole) // 2], whole[:-7] + bytes([whole[-7] ^ 1]) + whole[-6:], b"", b"PK\x03\x04 not this"]
    for content in broken:
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"damaged|no checkpoint") as error:
            read_checkpoint(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)


def test_pickle_is_not_opened(path):
    torch.save({"weights": torch.zeros(3)}, path)
    with pytest.raises(InputError, match="no checkpoint or a damaged one"):
        read_checkpoint(path)


def test_model_weights_are_no_checkpoint(path):
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(InputError, match="no checkpoint of a training run"):
        read_checkpoint(path)


def test_header_that_points_to_missing_tensors_is_damaged(path):
    content = json.dumps({"state_dict": {"$": "tensor", "key": "gone"}})
    save_file({}, path, {"format": "tenfold-checkpoint-1", "content": content, "crc32": "00000000"})
    with pytest.raises(InputError, match="damaged"):
        read_checkpoint(path)


def test_newest_is_the_one_with_most_steps_and_other_files_are_left_alone(tmp_path):
    for step in 9, 10, 100_000_000:
        write_checkpoint(checkpoint_path(tmp_path, step), {"step": step})
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-2.safetensors").write_text("not ours")
    assert read_checkpoint(last_checkpoint(tmp_path))["step"] == 100_000_000
    clear_checkpoints(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "step-2.safetensors"]


def test_only_the_newest_are_kept_and_no_temporary_file_stays(runs, tmp_path):
    runs.run(tmp_path, max_epochs=2, checkpoint_minutes=0, keep=3)
    assert [path.stem for path in sorted(tmp_path.iterdir())] == [f"step-{step:08d}" for step in (10, 11, 12)]


@pytest.mark.parametrize(("share", "steps"), [(float("inf"), (6, 12, 18)), (0.0, (6, 18))])
def test_ends_of_epochs_are_kept_as_long_as_saving_has_its_share_of_the_time(runs, tmp_path, monkeypatch, share, steps):
    monkeypatch.setattr("tenfold.training.lightning_parts.SAVING", share)
    runs.run(tmp_path, keep=100)
    assert [path.stem for path in list_checkpoints(tmp_path)] == [f"step-{step:08d}" for step in steps]


def test_checkpoint_of_another_model_is_refused_by_the_name_of_the_weight(runs, uninterrupted, monkeypatch):
    checkpoint = uninterrupted[0] / "step-00000018.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(
            runs.nn, "Linear", lambda inputs, outputs: torch.nn.modules.linear.Linear(inputs, outputs, bias=False)
        )
        with pytest.raises(InputError, match=r"Network has no 'layers\.\d\.bias'"):
            runs.run(None, resume=checkpoint)


def test_missing_checkpoint_is_named(runs, tmp_path):
    with pytest.raises(InputError, match="no such checkpoint"):
        runs.run(None, resume=tmp_path / "step-00000001.safetensors")
