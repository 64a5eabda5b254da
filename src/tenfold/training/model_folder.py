"""Models that are folders: ``config.json`` with the constructor's arguments and ``model.safetensors`` with the
weights, as on the Hub.

`ModelFolder` builds on huggingface_hub's mixin, so that ``push_to_hub``, model cards and
``from_pretrained("user/model")`` are the ones that people know. It differs where a folder could surprise: it is
written whole or not at all, arguments that JSON cannot hold are refused instead of dropped, class, argument names,
weight names and shapes are checked with the file and key named, weights keep the dtype in which they were saved, and a
pickle is never loaded.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from huggingface_hub import ModelCard, ModelCardData, PyTorchModelHubMixin, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from tenfold import __version__
from tenfold.errors import InputError
from tenfold.files import atomic_folder
from tenfold.files.atomic import check_folder
from tenfold.training.model_config import (
    CLASS,
    CONFIG,
    VERSION,
    WEIGHTS,
    check_replaceable,
    read_arguments,
    read_config,
)

CARD = "README.md"
BESIDE = {CARD, "checkpoints", "logs"}  # what a run that was stopped has left in a folder without a model

Model = TypeVar("Model", bound="ModelFolder")


class ModelFolder(PyTorchModelHubMixin, library_name="tenfold", tags=["tenfold"]):
    """Mixin for an ``nn.Module`` or ``LightningModule`` whose constructor takes plain values.

    Args in the constructor must be None, bool, int, float, str, or lists and dicts of these (a tuple comes back as a
    list). An argument that belongs in a file of its own, such as a vocabulary, is named in `file_arguments`, written
    by `write_files` and read by `read_files`.

    >>> import tempfile
    >>> class Scorer(nn.Linear, ModelFolder):
    ...     def __init__(self, dim: int, bias: bool = True):
    ...         super().__init__(dim, 1, bias)
    >>> scorer = Scorer(3)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = scorer.save_pretrained(f"{place}/scorer")
    ...     print(sorted(path.name for path in Path(place, "scorer").iterdir()))
    ...     torch.equal(Scorer.from_pretrained(f"{place}/scorer").weight, scorer.weight)
    ['README.md', 'config.json', 'model.safetensors']
    True
    """

    extra_files: ClassVar[tuple[str, ...]] = ()
    """Names of further files in the folder."""

    file_arguments: ClassVar[tuple[str, ...]] = ()
    """Arguments of the constructor that `read_files` gives, and that are therefore not in ``config.json``."""

    card_text: ClassVar[str] = ""
    """Markdown that follows in the model card: what the model is good for, how it is used."""

    _arguments: Mapping[str, Any] | None = None

    def __new__(cls: type[Model], *args: Any, **kwargs: Any) -> Model:
        """Notes the constructor's arguments."""
        instance = super().__new__(cls, *args, **kwargs)
        try:
            bound = inspect.signature(cls.__init__).bind(instance, *args, **kwargs)
        except TypeError:
            return instance  # __init__ is about to say what is wrong with them
        bound.apply_defaults()
        arguments: dict[str, Any] = {}
        for name, value in list(bound.arguments.items())[1:]:
            kind = bound.signature.parameters[name].kind
            arguments.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
        # nn.Module.__setattr__ does not work before __init__
        instance.__dict__["_arguments"] = arguments
        return instance

    def write_files(self, folder: Path) -> None:
        """Writes `extra_files` into the folder; for subclasses."""

    @classmethod
    def read_files(cls, folder: Path) -> dict[str, Any]:
        """Reads `extra_files` and returns the values of `file_arguments`; for subclasses."""
        return {}

    @staticmethod
    def check_folder(folder: str | os.PathLike[str]) -> str | None:
        """Refuses a folder that no model should be trained into; to be asked before long work.

        Returns:
            What `save_pretrained` would replace in it, such as "a MixtureVAE of 2026-05-01 12:30"; None for nothing.

        Raises:
            InputError: It is a file, holds the working directory, or holds files but no model of Tenfold's.
        """
        check_folder(folder)
        place = Path(folder)
        check_replaceable(place)
        if (place / CONFIG).exists():
            written = datetime.fromtimestamp((place / CONFIG).stat().st_mtime).strftime("%Y-%m-%d %H:%M")
            return f"a {read_config(place / CONFIG)[CLASS]} of {written}"
        others = sorted({entry.name for entry in place.iterdir()} - BESIDE) if place.is_dir() else []
        if others:
            raise InputError(
                f"this folder holds other files ({', '.join(others[:3])}) and no model; give a folder of its own",
                path=folder,
            )
        return None

    def generate_model_card(self, *args: Any, **metadata: Any) -> ModelCard:
        """The card (README.md): what the model is, how it is loaded, and the arguments that it was made with.

        Args:
            args: None are taken.
            metadata: Entries of the card's head, such as ``license`` or ``datasets``.
        """
        data = ModelCardData(**{"library_name": "tenfold", "tags": ["tenfold"], **metadata})
        return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{self._card()}")

    def _card(self) -> str:
        kind = type(self)
        what = (inspect.getdoc(kind) or "").split("\n\n")[0]
        arguments = {n: v for n, v in (self._arguments or {}).items() if n not in kind.file_arguments and v is not None}
        rows = [f"| `{name}` | {_cell(value)} |" for name, value in arguments.items()]
        weights = sum(parameter.numel() for parameter in self._network().parameters())
        return "\n".join(
            [
                f"# {kind.__name__}",
                "",
                *([what, ""] if what else []),
                f"{weights:,} weights in `{WEIGHTS}`, written by Tenfold {__version__}.",
                "",
                "```python",
                f"from {_public_module(kind)} import {kind.__name__}",
                "",
                f'model = {kind.__name__}.from_pretrained("this/folder")',
                "```",
                *(["", inspect.cleandoc(kind.card_text)] if kind.card_text else []),
                *(["", "Made with these arguments:", "", "| argument | value |", "|---|---|", *rows] if rows else []),
                "",
            ]
        )

    def save_pretrained(  # type: ignore[override]
        self,
        save_directory: str | os.PathLike[str],
        *,
        config: dict[str, Any] | None = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: dict[str, Any] | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Writes the model's folder, whole or not at all. What else is in an existing folder, an edited README.md too,
        stays there.

        Args:
            save_directory: The folder.
            config: Arguments to write instead of those that the model was made with.
            repo_id: Name on the Hub, if it is pushed.
            push_to_hub: Whether to push it to the Hub as well.
            model_card_kwargs: Values for the model card.
            push_to_hub_kwargs: Passed on to `push_to_hub`.

        Returns:
            The address on the Hub if it was pushed, or None.

        Raises:
            InputError: An argument cannot be written as JSON, or the folder holds something else's ``config.json``.

        """
        folder = Path(save_directory)
        described = self._described(config)
        check_replaceable(folder)
        with atomic_folder(folder) as temporary:
            text = json.dumps(described, indent=2, allow_nan=False)
            (temporary / CONFIG).write_text(text + "\n", encoding="utf-8")
            _write_weights(self._network(), temporary / WEIGHTS)
            self.write_files(temporary)
            if not (folder / CARD).exists():
                self.generate_model_card(**(model_card_kwargs or {})).save(temporary / CARD)
        if not push_to_hub:
            return None
        return self.push_to_hub(
            repo_id or folder.name, config=config, model_card_kwargs=model_card_kwargs, **push_to_hub_kwargs
        )

    @classmethod
    def from_pretrained(
        cls: type[Model],
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        map_location: str | torch.device = "cpu",
        **arguments: Any,
    ) -> Model:
        """Makes a model from its folder, in evaluation mode.

        Args:
            pretrained_model_name_or_path: A folder, or ``"user/model"`` on the Hub.
            force_download: Download again what is in the cache.
            token: For private models on the Hub.
            cache_dir: The Hub's cache.
            local_files_only: Do not use the network.
            revision: Branch, tag or commit on the Hub.
            map_location: Device of the weights.
            arguments: Values that replace those in ``config.json``.

        Raises:
            InputError: There is no such model, or its files do not fit this class; the message names file and key.
        """
        hub = {"force_download": force_download, "token": token, "cache_dir": cache_dir, "revision": revision}
        folder = _folder(pretrained_model_name_or_path, cls.extra_files, local_files_only=local_files_only, **hub)
        config = read_arguments(folder, cls.__name__)
        _check_arguments(cls, {**config, **dict.fromkeys(cls.file_arguments)}, folder / CONFIG)
        try:
            model = cls(**{**config, **cls.read_files(folder), **arguments})
        except InputError:
            raise
        except (ValueError, TypeError) as error:
            raise InputError(f"{cls.__name__} refuses these arguments: {error}", path=folder / CONFIG) from error
        network = model._network()
        _read_weights(network, folder / WEIGHTS)
        network.to(map_location)
        network.eval()
        return model

    def _network(self) -> nn.Module:
        if not isinstance(self, nn.Module):
            raise TypeError(f"{type(self).__name__} must be an nn.Module as well as a ModelFolder")
        return self

    def _described(self, config: Mapping[str, Any] | None) -> dict[str, Any]:
        """What goes into config.json."""
        kind = type(self)
        arguments = self._arguments if config is None else config
        if arguments is None:
            raise InputError(f"this {kind.__name__} was not made by its constructor; give save_pretrained its config")
        written = {name: value for name, value in arguments.items() if name not in kind.file_arguments}
        for name, value in written.items():
            if not _is_json(value):
                raise InputError(f"argument {name!r} of {kind.__name__} is {value!r:.80}, which JSON cannot hold")
        return {CLASS: kind.__name__, VERSION: __version__, **written}


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(_is_json(item) for item in value)
    return (
        value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and abs(value) < float("inf"))
    )


def _public_module(kind: type) -> str:
    """The package that re-exports the class, or its own module."""
    package = kind.__module__.rpartition(".")[0]
    return package if getattr(sys.modules.get(package), kind.__name__, None) is kind else kind.__module__


def _cell(value: Any) -> str:
    """A value in a cell of a Markdown table, in one line and cut where it is long."""
    text = " ".join(json.dumps(value, ensure_ascii=False, default=repr).split()).replace("|", "\\|")
    return text if len(text) <= 80 else f"{text[:77]}..."


def _folder(name: str | os.PathLike[str], extra_files: tuple[str, ...], **hub: Any) -> Path:
    """The model's folder here, downloaded if the name is one on the Hub."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    try:
        validate_repo_id(name if isinstance(name, str) else "/")
    except HFValidationError:
        raise InputError("there is no such model folder", path=name) from None
    try:
        return Path(snapshot_download(str(name), allow_patterns=[CONFIG, WEIGHTS, *extra_files], **hub))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"there is no such folder here, nor can it be had from the Hub: {reason}", path=name
        ) from error


def _check_arguments(cls: type, config: Mapping[str, Any], path: Path) -> None:
    parameters = list(inspect.signature(cls).parameters.values())
    names = [parameter.name for parameter in parameters]
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        for name in config:
            if name not in names:
                raise InputError(f"{cls.__name__} has no argument {name!r}; it has {', '.join(names)}", path=path)


def _write_weights(network: nn.Module, path: Path) -> None:
    """The state dict as safetensors; a tensor that has several names is written once, the other names are in the
    metadata.

    Metadata {other name: name written} is how safetensors' own ``save_model`` does it, so that ``load_model`` can read
    the file.
    """
    tensors: dict[str, Tensor] = {}
    metadata = {"format": "pt"}
    written: dict[tuple[Any, ...], str] = {}
    storages: set[int] = set()
    for name, tensor in network.state_dict().items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise InputError(f"{type(network).__name__}: {name!r} in the state dict is not a dense tensor")
        key = _identity(tensor)
        if key in written:
            metadata[name] = written[key]
            continue
        storage = tensor.untyped_storage().data_ptr()
        # a view of part of another tensor's memory is written by itself
        tensors[name] = tensor.detach().clone() if storage in storages and tensor.numel() else tensor.detach()
        tensors[name] = tensors[name].contiguous().cpu()
        storages.add(storage)
        if tensor.numel():
            written[key] = name
    save_file(tensors, path, metadata)
    path.chmod((path.parent / CONFIG).stat().st_mode)  # safetensors lets nobody else read it


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _read_weights(network: nn.Module, path: Path) -> None:
    """Fills the network with the file's tensors, of the file's dtypes, after every name and shape was checked."""
    kind = type(network).__name__
    places: dict[str, Tensor] = dict(network.named_parameters(remove_duplicate=False))
    places |= dict(network.named_buffers(remove_duplicate=False))
    wanted = {name: places[name] for name in network.state_dict() if name in places}
    try:
        with safe_open(path, "pt") as file:
            names, tied = set(file.keys()), file.metadata() or {}
            filled = {_identity(wanted[name]) for name in names & wanted.keys()}
            for name in sorted(names - wanted.keys()):
                raise InputError(f"{kind} has no weight {name!r}", path=path)
            sources = {name: name if name in names else tied.get(name, name) for name in wanted}
            for name, source in list(sources.items()):
                if source not in names:
                    if _identity(wanted[name]) not in filled:
                        raise InputError(f"the weight {name!r} of {kind} is missing", path=path)
                    del sources[name]  # tied to one that is there
                elif (shape := tuple(file.get_slice(source).get_shape())) != tuple(wanted[name].shape):
                    raise InputError(
                        f"{name!r} has shape {shape}, in {kind} it is {tuple(wanted[name].shape)}", path=path
                    )
            for name, source in sources.items():
                tensor = file.get_tensor(source)
                # .data: the parameter stays the object that others may share, and takes the file's dtype
                wanted[name].data = wanted[name].data.to(tensor.dtype)
                wanted[name].data.copy_(tensor)
    except FileNotFoundError as error:
        raise InputError(f"this is no model folder: it has no {WEIGHTS}", path=path.parent) from error
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"these weights are damaged or not safetensors ({' '.join(str(error).split())})", path=path
        ) from error
