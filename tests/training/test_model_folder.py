import json
import os
from datetime import datetime
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from safetensors.torch import load_file, load_model, save_file
from torch import nn

from tenfold import __version__
from tenfold.errors import InputError
from tenfold.training import ModelFolder


class Tagger(nn.Module, ModelFolder):
    def __init__(self, vocabulary: int, sizes: list[int], *, dropout: float = 0.5, tie: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, sizes[0])
        self.norm = nn.BatchNorm1d(sizes[0])
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(sizes[0], vocabulary, bias=False)
        if tie:
            self.out.weight = self.embed.weight

    def forward(self, words):
        return self.out(self.dropout(self.norm(self.embed(words))))


class Speller(nn.Module, ModelFolder):
    extra_files = ("vocabulary.txt",)
    file_arguments = ("vocabulary",)

    def __init__(self, vocabulary: list[str], dim: int = 2) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.embed = nn.Embedding(len(vocabulary), dim)

    def write_files(self, folder: Path) -> None:
        (folder / "vocabulary.txt").write_text("\n".join(self.vocabulary))

    @classmethod
    def read_files(cls, folder: Path) -> dict:
        return {"vocabulary": (folder / "vocabulary.txt").read_text().splitlines()}


@pytest.fixture
def tagger():
    torch.manual_seed(0)
    return Tagger(7, [4, 8], dropout=0.25)


@pytest.fixture
def folder(tagger, tmp_path):
    tagger.save_pretrained(tmp_path / "tagger")
    return tmp_path / "tagger"


def change(folder, **config):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))


def test_model_comes_back_the_same_and_in_evaluation_mode(tagger, folder):
    back = Tagger.from_pretrained(folder)
    words = torch.tensor([0, 3, 6])
    assert not back.training
    assert torch.equal(back(words), tagger.eval()(words))
    assert back.dropout.p == 0.25


def test_config_holds_every_argument_the_class_and_the_version(folder):
    assert json.loads((folder / "config.json").read_text()) == {
        "_class": "Tagger",
        "_tenfold_version": __version__,
        "vocabulary": 7,
        "sizes": [4, 8],
        "dropout": 0.25,
        "tie": True,
    }


def test_tied_weights_are_written_once_and_come_back_tied(folder):
    assert "out.weight" not in load_file(folder / "model.safetensors")
    back = Tagger.from_pretrained(folder)
    assert back.out.weight is back.embed.weight
    loose = Tagger.from_pretrained(folder, tie=False)
    assert loose.out.weight is not loose.embed.weight
    assert torch.equal(loose.out.weight, back.embed.weight)


def test_weights_are_readable_by_safetensors_own_function(tagger, folder):
    other = Tagger(7, [4, 8])
    load_model(other, folder / "model.safetensors")
    assert torch.equal(other.embed.weight, tagger.embed.weight)


def test_file_without_the_tied_name_fills_a_tied_model(tagger, folder):
    tensors = {name: tensor.clone() for name, tensor in tagger.state_dict().items() if name != "out.weight"}
    save_file(tensors, folder / "model.safetensors")
    assert torch.equal(Tagger.from_pretrained(folder).out.weight, tagger.out.weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_is_kept(tagger, tmp_path, dtype):
    tagger.to(dtype).save_pretrained(tmp_path / "tagger")
    back = Tagger.from_pretrained(tmp_path / "tagger")
    assert {value.dtype for value in back.parameters()} == {dtype}
    assert back.norm.num_batches_tracked.dtype == torch.int64
    assert back.out.weight is back.embed.weight
    assert torch.equal(back.embed.weight, tagger.embed.weight)


def test_views_of_a_larger_tensor_are_written_by_themselves(tmp_path):
    class Halves(nn.Module, ModelFolder):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.arange(6.0)
            self.register_buffer("whole", whole)
            self.register_buffer("tail", whole[3:])

    Halves().save_pretrained(tmp_path / "halves")
    assert load_file(tmp_path / "halves" / "model.safetensors")["tail"].tolist() == [3, 4, 5]
    assert Halves.from_pretrained(tmp_path / "halves").tail.tolist() == [3, 4, 5]


def test_further_files_travel_with_the_model(tmp_path):
    Speller(["a", "ß"]).save_pretrained(tmp_path / "speller")
    assert "vocabulary" not in json.loads((tmp_path / "speller" / "config.json").read_text())
    assert Speller.from_pretrained(str(tmp_path / "speller")).vocabulary == ["a", "ß"]


def test_old_folder_is_replaced_and_what_the_user_put_there_stays(tagger, folder):
    (folder / "README.md").write_text("my own words")
    (folder / "notes.txt").write_text("mine")
    with torch.no_grad():
        tagger.embed.weight.fill_(2)
    tagger.save_pretrained(folder)
    assert Tagger.from_pretrained(folder).embed.weight.eq(2).all()
    assert (folder / "README.md").read_text() == "my own words"
    assert (folder / "notes.txt").read_text() == "mine"


def test_failure_leaves_the_old_model(tagger, folder, monkeypatch):
    def fail(self, temporary):
        raise OSError("disk full")

    monkeypatch.setattr(Tagger, "write_files", fail)
    with torch.no_grad():
        tagger.embed.weight.fill_(2)
    with pytest.raises(OSError, match="disk full"):
        tagger.save_pretrained(folder)
    assert not Tagger.from_pretrained(folder).embed.weight.eq(2).any()
    assert [path.name for path in folder.parent.iterdir()] == ["tagger"]


def test_config_of_another_program_is_not_overwritten(tagger, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match=r"another program's config\.json"):
        tagger.save_pretrained(tmp_path)
    assert (tmp_path / "config.json").read_text() == '{"model_type": "bert"}'


def test_folder_is_checked_before_long_work_and_tells_what_would_be_replaced(tagger, tmp_path):
    place = tmp_path / "tagger"
    assert tagger.check_folder(place) is None
    (place / "checkpoints").mkdir(parents=True)  # of a run that was stopped
    assert tagger.check_folder(place) is None
    tagger.save_pretrained(place)
    os.utime(place / "config.json", (0, 1_000_000_000))
    assert tagger.check_folder(place) == f"a Tagger of {datetime.fromtimestamp(1_000_000_000):%Y-%m-%d %H:%M}"
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(InputError, match=r"photos: this folder holds other files \(cat\.png\) and no model"):
        tagger.check_folder(tmp_path / "photos")


@pytest.mark.parametrize("value", [object(), float("nan"), torch.float32, {1: 2}])
def test_argument_that_json_cannot_hold_is_refused_by_name(tmp_path, value):
    class Any(nn.Module, ModelFolder):
        def __init__(self, thing: object) -> None:
            super().__init__()

    with pytest.raises(InputError, match=r"argument 'thing' of Any is .*, which JSON cannot hold"):
        Any(value).save_pretrained(tmp_path / "any")
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_get_pythons_own_message():
    with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument: 'sizes'"):
        Tagger(3)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"_class": "Parser"}, r"config\.json: this is the folder of a Parser; a Tagger was asked for"),
        ({"_class": None}, "there is no '_class' in it"),
        ({"layers": 3}, "Tagger has no argument 'layers'; it has vocabulary, sizes, dropout, tie"),
        ({"dropout": 3.0}, "Tagger refuses these arguments: dropout probability"),
        ({"vocabulary": 9}, r"model\.safetensors: '(embed|out)\.weight' has shape \(7, 4\), in Tagger it is \(9, 4\)"),
    ],
)
def test_config_that_does_not_fit_names_file_and_key(folder, config, said):
    change(folder, **config)
    with pytest.raises(InputError, match=said):
        Tagger.from_pretrained(folder)


def test_missing_argument_is_named(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["sizes"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"config\.json: .*'sizes'"):
        Tagger.from_pretrained(folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{\n'a'", r"config\.json:2: this is not JSON"), (b"[1]", "must be a JSON object"), (b"\xff\xfe", "not text")],
)
def test_broken_config_names_file_and_line(folder, content, said):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=said):
        Tagger.from_pretrained(folder)


def test_weights_that_do_not_fit_are_named(tagger, folder):
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"extra.weight": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"Tagger has no weight 'extra\.weight'"):
        Tagger.from_pretrained(folder)
    del tensors["norm.bias"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"model\.safetensors: the weight 'norm\.bias' of Tagger is missing"):
        Tagger.from_pretrained(folder)


def test_pickles_and_damaged_weights_are_refused(tagger, folder):
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    torch.save(tagger.state_dict(), weights)
    with pytest.raises(InputError, match="damaged or not safetensors"):
        Tagger.from_pretrained(folder)
    weights.write_bytes(whole[:-5])
    with pytest.raises(InputError, match="damaged or not safetensors"):
        Tagger.from_pretrained(folder)
    weights.unlink()
    torch.save(tagger.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"it has no model\.safetensors"):
        Tagger.from_pretrained(folder)


@pytest.mark.parametrize("name", ["no/such/folder", "/no/such", Path("model")])
def test_missing_folder_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"{name}: there is no such model folder"):
        Tagger.from_pretrained(name)


def test_name_on_the_hub_that_is_not_in_the_cache_is_one_line(tmp_path):
    with pytest.raises(InputError, match="someone/model: there is no such folder here, nor") as error:
        Tagger.from_pretrained("someone/model", cache_dir=tmp_path, local_files_only=True)
    assert "\n" not in str(error.value)


def test_name_on_the_hub_is_read_from_its_cache(tagger, tmp_path):
    snapshot = tmp_path / "models--someone--model" / "snapshots" / ("0" * 40)
    tagger.save_pretrained(snapshot)
    (tmp_path / "models--someone--model" / "refs").mkdir()
    (tmp_path / "models--someone--model" / "refs" / "main").write_text("0" * 40)
    back = Tagger.from_pretrained("someone/model", cache_dir=tmp_path, local_files_only=True)
    assert torch.equal(back.embed.weight, tagger.embed.weight)


def test_pushing_uploads_the_folder(tagger, monkeypatch):
    seen = {}

    def upload(self, *, folder_path, **rest):
        seen.update({path.name: path.read_bytes() for path in Path(folder_path).iterdir()})
        return "address"

    monkeypatch.setattr(
        HfApi, "create_repo", lambda self, repo_id, **rest: type("Repository", (), {"repo_id": repo_id})
    )
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    assert tagger.push_to_hub("someone/tagger") == "address"
    assert sorted(seen) == ["README.md", "config.json", "model.safetensors"]


def test_model_card_names_the_library(folder):
    assert ModelCard.load(folder / "README.md").data.library_name == "tenfold"


def test_lightning_module_is_a_model_folder_too(runs, tmp_path):
    class Saved(runs.Network, ModelFolder):
        pass

    Saved(pause=0.0).save_pretrained(tmp_path / "saved")
    assert isinstance(Saved.from_pretrained(tmp_path / "saved"), runs.LightningModule)
