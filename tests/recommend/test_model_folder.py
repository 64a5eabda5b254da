"""Models as folders: what comes back, and what is refused."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from scipy import sparse

from tenfold.errors import InputError
from tenfold.recommend import ImplicitALS

USERS = [f"ann{number}" for number in range(29)] + ['zoë "of\nthe\u2028sea"']


@pytest.fixture(scope="module")
def fitted():
    matrix = sparse.random_array((30, 20), density=0.3, format="csr", rng=0)
    model = ImplicitALS(3, alpha=5.0, random_state=np.random.RandomState(0), iterations=2, tol=1e-9, n_jobs=1)
    return model.fit(matrix)


@pytest.fixture
def folder(fitted, tmp_path):
    fitted.save_pretrained(tmp_path / "model", user_ids=USERS, item_ids=np.arange(20) * 7)
    return tmp_path / "model"


def test_model_comes_back_with_parameters_factors_losses_and_ids(fitted, folder):
    read = ImplicitALS.from_pretrained(str(folder))
    assert read.get_params() == {**fitted.get_params(), "random_state": None}
    np.testing.assert_array_equal(read.user_factors_, fitted.user_factors_)
    np.testing.assert_array_equal(read.item_factors_, fitted.item_factors_)
    assert read.loss_history_ == fitted.loss_history_
    assert read.n_iter_ == 2
    assert read.user_ids_.tolist() == USERS
    assert read.item_ids_.tolist() == list(range(0, 140, 7))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "users.jsonl"]


def test_ids_stay_when_a_model_is_read_and_saved_again(folder, tmp_path):
    ImplicitALS.from_pretrained(folder).save_pretrained(tmp_path / "again")
    again = ImplicitALS.from_pretrained(tmp_path / "again")
    assert again.user_ids_.tolist() == USERS
    assert again.item_ids_[1] == 7


def test_model_without_ids_leaves_none_of_an_older_one(fitted, folder):
    fitted.save_pretrained(folder)
    read = ImplicitALS.from_pretrained(folder)
    assert not hasattr(read, "user_ids_")
    assert not hasattr(read, "item_ids_")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b"], "user_ids has 2 ids, 2 of them distinct; there are 30 users"),
        (["a"] * 30, "user_ids has 30 ids, 1 of them distinct"),
        (np.linspace(0, 1, 30), "user_ids holds float64"),
    ],
)
def test_ids_that_do_not_fit_are_refused(fitted, tmp_path, ids, message):
    with pytest.raises(InputError, match=message):
        fitted.save_pretrained(tmp_path / "model", user_ids=ids)
    assert not (tmp_path / "model").exists()


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({name: v for name, v in config.items() if v != "gone"}))


def change_tensors(folder, **changes):
    tensors = load_file(folder / "model.safetensors") | changes
    save_file({name: v for name, v in tensors.items() if v is not None}, folder / "model.safetensors")


BROKEN = {
    "there is no such model folder": lambda f: f.rename(f.with_name("elsewhere")),
    "it has no config.json": lambda f: (f / "config.json").unlink(),
    "it has no model.safetensors": lambda f: (f / "model.safetensors").unlink(),
    "config.json:1: this is not JSON": lambda f: (f / "config.json").write_text("{"),
    "this is not JSON: it is not text": lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"),
    "this must be a JSON object": lambda f: (f / "config.json").write_text("[1]"),
    "this is the folder of a MixtureVAE; a ImplicitALS": lambda f: change_config(f, _class="MixtureVAE"),
    "there is no '_class' in it": lambda f: change_config(f, _class="gone"),
    "ImplicitALS has no parameter 'rank'": lambda f: change_config(f, rank=3),
    "alpha=-1.0 must be": lambda f: change_config(f, alpha=-1.0),
    "'user_factors' is float32 .*factors=4": lambda f: change_config(f, factors=4),
    "'user_factors' is float32 .*float64": lambda f: change_config(f, dtype="float64"),
    "these weights are damaged": lambda f: (f / "model.safetensors").write_bytes(b"\x80\x04junk, much of it"),
    "'item_factors' is missing": lambda f: change_tensors(f, item_factors=None),
    "'item_factors' holds NaN": lambda f: change_tensors(f, item_factors=np.full((20, 3), np.nan, np.float32)),
    "'item_ids' is int64 \\(3,\\)": lambda f: change_tensors(f, item_ids=np.arange(3)),
    "there are 1 ids, but 30 users": lambda f: (f / "users.jsonl").write_text('"a"\n'),
    "users.jsonl:2: this line is not JSON": lambda f: (f / "users.jsonl").write_text('"a"\nb\n'),
    "users.jsonl:1: 7 is not the id of a user": lambda f: (f / "users.jsonl").write_text("7\n"),
    "not text in UTF-8": lambda f: (f / "users.jsonl").write_bytes(b"\xff\n"),
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_folder_is_told_in_one_line(folder, message):
    BROKEN[message](folder)
    with pytest.raises(InputError, match=message) as told:
        ImplicitALS.from_pretrained(folder)
    assert "\n" not in str(told.value)


def test_folder_of_another_program_is_not_overwritten(fitted, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"another program's config\.json"):
        fitted.save_pretrained(tmp_path)


def test_device_of_the_fit_is_not_asked_of_the_machine_that_reads(tmp_path):
    ImplicitALS(2, device="cpu", iterations=1).fit(np.eye(3)).save_pretrained(tmp_path / "m")
    assert ImplicitALS.from_pretrained(tmp_path / "m").device is None
