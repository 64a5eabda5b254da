"""A fitted model as a folder: ``config.json``, ``model.safetensors``, and the original ids.

``config.json`` holds the class, the version and the parameters; ``model.safetensors`` the factors, the losses and integer
ids; ``users.jsonl`` and ``items.jsonl`` ids that are strings, one JSON string a line in the order of the factors. The
folder is written whole or not at all, and read without executing anything in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from sklearn.base import BaseEstimator

from tenfold import __version__
from tenfold.errors import InputError
from tenfold.files import atomic_folder
from tenfold.recommend.identifiers import as_ids
from tenfold.training.model_config import CLASS, CONFIG, VERSION, WEIGHTS, check_replaceable, read_arguments

SIDES = ("user", "item")

Model = TypeVar("Model", bound=BaseEstimator)


def write_model(model: Any, folder: Path, user_ids: Any = None, item_ids: Any = None) -> None:
    """Writes a fitted model.

    Args:
        model: An `ImplicitALS` that was fitted.
        folder: Written whole or not at all; other files in it stay.
        user_ids: Integers or strings in the order of the users; None for those that the model was read with, if any.
        item_ids: The same for items.

    Raises:
        InputError: Ids that do not fit the factors, or a folder of another program.
    """
    tensors = {
        "user_factors": np.ascontiguousarray(model.user_factors_),
        "item_factors": np.ascontiguousarray(model.item_factors_),
        "loss_history": np.array(model.loss_history_, np.float64),
    }
    texts: dict[str, list[str]] = {}
    for side, given in zip(SIDES, (user_ids, item_ids), strict=True):
        ids = getattr(model, f"{side}_ids_", None) if given is None else given
        if ids is None:
            continue
        try:
            ids = as_ids(ids, f"{side}_ids")
        except ValueError as error:
            raise InputError(str(error)) from error
        count = len(tensors[f"{side}_factors"])
        if len(ids) != count or len(np.unique(ids)) != count:
            raise InputError(
                f"{side}_ids has {len(ids)} ids, {len(np.unique(ids))} of them distinct; there are {count} {side}s"
            )
        if ids.dtype.kind == "U":
            texts[side] = ids.tolist()
        else:
            tensors[f"{side}_ids"] = np.ascontiguousarray(ids)
    config = {CLASS: type(model).__name__, VERSION: __version__, **_plain_parameters(model)}
    check_replaceable(folder)
    with atomic_folder(folder) as temporary:
        (temporary / CONFIG).write_text(json.dumps(config, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        save_file(tensors, temporary / WEIGHTS)
        (temporary / WEIGHTS).chmod((temporary / CONFIG).stat().st_mode)  # safetensors lets nobody else read it
        for side in SIDES:
            lines = "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in texts.get(side, ()))
            if side in texts or (folder / f"{side}s.jsonl").exists():  # an older model's ids must not stay
                (temporary / f"{side}s.jsonl").write_text(lines, encoding="utf-8")


def _plain_parameters(model: Any) -> dict[str, Any]:
    """The constructor's parameters as JSON knows them; a device or a random state that is no number has no meaning later."""
    parameters = {}
    for name, value in model.get_params(deep=False).items():
        if name == "device" or (name == "random_state" and not isinstance(value, int | np.integer | None)):
            value = None
        parameters[name] = value.item() if isinstance(value, np.generic) else value
    return parameters


def read_model(cls: type[Model], folder: Path) -> Model:
    """Reads what `write_model` wrote.

    Raises:
        InputError: Names the file and what is wrong with it.
    """
    if not folder.is_dir():
        raise InputError("there is no such model folder", path=folder)
    config = read_arguments(folder, cls.__name__)
    known = cls().get_params(deep=False)
    for name in config:
        if name not in known:
            raise InputError(
                f"{cls.__name__} has no parameter {name!r}; it has {', '.join(known)}", path=folder / CONFIG
            )
    model: Any = cls(**config)
    try:
        model.check_parameters()
    except (ValueError, TypeError) as error:
        raise InputError(str(error), path=folder / CONFIG) from error
    tensors = _read_tensors(folder / WEIGHTS, model)
    model.user_factors_, model.item_factors_ = tensors["user_factors"], tensors["item_factors"]
    model.loss_history_ = tensors["loss_history"].tolist()
    model.n_iter_ = len(model.loss_history_)
    for side in SIDES:
        ids = tensors.get(f"{side}_ids")
        if ids is None:
            ids = _read_texts(folder / f"{side}s.jsonl", len(tensors[f"{side}_factors"]), side)
        if ids is not None:
            setattr(model, f"{side}_ids_", ids)
    return model


def _read_tensors(path: Path, model: Any) -> dict[str, np.ndarray]:
    try:
        tensors = load_file(path)
    except FileNotFoundError as error:
        raise InputError(f"this is no model folder: it has no {WEIGHTS}", path=path.parent) from error
    except (SafetensorError, OSError, KeyError) as error:
        raise InputError(
            f"these weights are damaged or not safetensors ({' '.join(str(error).split())})", path=path
        ) from error
    for name in ("user_factors", "item_factors", "loss_history"):
        if name not in tensors:
            raise InputError(f"{name!r} is missing; it holds {', '.join(sorted(tensors)) or 'nothing'}", path=path)
        dtype = np.dtype(np.float64 if name == "loss_history" else model.dtype)
        axes = 1 if name == "loss_history" else 2
        shape = tensors[name].shape
        if len(shape) != axes or (axes == 2 and shape[1] != model.factors) or tensors[name].dtype != dtype:
            needed = "(iterations,)" if axes == 1 else f"(rows, factors={model.factors})"
            raise InputError(f"{name!r} is {tensors[name].dtype} {shape}; {dtype} {needed} is needed", path=path)
        if not np.isfinite(tensors[name]).all():
            raise InputError(f"{name!r} holds NaN or infinity", path=path)
    for side in SIDES:
        ids, count = tensors.get(f"{side}_ids"), len(tensors[f"{side}_factors"])
        if ids is not None and (ids.dtype != np.int64 or ids.shape != (count,)):
            raise InputError(f"'{side}_ids' is {ids.dtype} {ids.shape}; int64 ({count},) is needed", path=path)
    return tensors


def _read_texts(path: Path, count: int, side: str) -> np.ndarray | None:
    if not path.exists():
        return None
    ids: list[str] = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except UnicodeDecodeError as error:
        raise InputError("this is not text in UTF-8", path=path) from error
    if not lines:
        return None
    for number, line in enumerate(lines, start=1):
        try:
            ids.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise InputError(f"this line is not JSON: {error.msg}", path=path, line=number) from error
        if not isinstance(ids[-1], str) or not ids[-1]:
            raise InputError(f"{line} is not the id of a {side}; a JSON string is needed", path=path, line=number)
    if len(ids) != count:
        raise InputError(f"there are {len(ids)} ids, but {count} {side}s", path=path)
    return as_ids(ids, f"{side} ids")
